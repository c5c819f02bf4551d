SELECT track_id, date_bin(INTERVAL '1 hour', bucket) AS bucket, owner_id, kind, sum(count) AS count
FROM plays_detail
GROUP BY track_id, date_bin(INTERVAL '1 hour', bucket), owner_id, kind
