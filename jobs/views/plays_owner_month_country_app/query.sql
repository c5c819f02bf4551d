SELECT owner_id, date_trunc('month', bucket) AS bucket, country, app_id, kind, sum(count) AS count
FROM plays_owner_day_country_app
GROUP BY owner_id, date_trunc('month', bucket), country, app_id, kind
