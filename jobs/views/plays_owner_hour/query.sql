SELECT owner_id, date_bin(INTERVAL '1 hour', bucket) AS bucket, kind, sum(count) AS count
FROM plays_owner_quarter
GROUP BY owner_id, date_bin(INTERVAL '1 hour', bucket), kind
