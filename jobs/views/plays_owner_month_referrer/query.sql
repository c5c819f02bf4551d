SELECT owner_id, date_trunc('month', bucket) AS bucket, referrer, kind, sum(count) AS count
FROM plays_owner_day_referrer
GROUP BY owner_id, date_trunc('month', bucket), referrer, kind
