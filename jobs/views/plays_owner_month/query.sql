SELECT owner_id, date_trunc('month', bucket) AS bucket, kind, sum(count) AS count
FROM plays_owner_day
GROUP BY owner_id, date_trunc('month', bucket), kind
