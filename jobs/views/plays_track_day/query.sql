SELECT track_id, date_bin(INTERVAL '1 day', bucket) AS bucket, owner_id, kind, sum(count) AS count
FROM plays_track_hour
GROUP BY track_id, date_bin(INTERVAL '1 day', bucket), owner_id, kind
