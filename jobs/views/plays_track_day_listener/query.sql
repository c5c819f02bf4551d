SELECT track_id, date_bin(INTERVAL '1 day', bucket) AS bucket, owner_id, listener_id, kind, sum(count) AS count
FROM plays_detail
GROUP BY track_id, date_bin(INTERVAL '1 day', bucket), owner_id, listener_id, kind
