SELECT owner_id, date_trunc('month', bucket) AS bucket, track_id, kind, sum(count) AS count
FROM plays_owner_day_track
GROUP BY owner_id, date_trunc('month', bucket), track_id, kind
