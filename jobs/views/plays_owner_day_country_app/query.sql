SELECT owner_id, date_bin(INTERVAL '1 day', bucket) AS bucket, country, app_id, kind, sum(count) AS count
FROM plays_detail
GROUP BY owner_id, date_bin(INTERVAL '1 day', bucket), country, app_id, kind
