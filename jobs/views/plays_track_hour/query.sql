SELECT track_id, date_bin(INTERVAL '1 hour', bucket) AS bucket, owner_id, kind, sum(count) AS count
FROM plays_track_quarter
GROUP BY track_id, date_bin(INTERVAL '1 hour', bucket), owner_id, kind
