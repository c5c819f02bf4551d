SELECT owner_id, date_bin(INTERVAL '1 day', bucket) AS bucket, track_id, kind, sum(count) AS count
FROM plays_detail
GROUP BY owner_id, date_bin(INTERVAL '1 day', bucket), track_id, kind
