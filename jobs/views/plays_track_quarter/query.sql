SELECT track_id, date_bin(INTERVAL '15 minutes', bucket) AS bucket, owner_id, kind, sum(count) AS count
FROM plays_detail
GROUP BY track_id, date_bin(INTERVAL '15 minutes', bucket), owner_id, kind
