SELECT owner_id, date_bin(INTERVAL '1 day', bucket) AS bucket, kind, sum(count) AS count
FROM plays_owner_hour
GROUP BY owner_id, date_bin(INTERVAL '1 day', bucket), kind
