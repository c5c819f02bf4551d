SELECT owner_id, date_bin(INTERVAL '15 minutes', bucket) AS bucket, kind, sum(count) AS count
FROM plays_detail
GROUP BY owner_id, date_bin(INTERVAL '15 minutes', bucket), kind
