SELECT
    owner_id,
    date_bin(INTERVAL '15 minutes', at) AS bucket,
    track_id,
    kind,
    country,
    referrer,
    app_id,
    listener_id,
    sum(amount) AS count
FROM plays
GROUP BY owner_id, date_bin(INTERVAL '15 minutes', at), track_id, kind, country, referrer, app_id, listener_id
