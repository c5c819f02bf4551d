SELECT
    application_id,
    athlete_id,
    count(*) AS authorizations
FROM authorizations
WHERE revoked_at IS NULL AND NOT athlete_is_deleted
GROUP BY application_id, athlete_id
