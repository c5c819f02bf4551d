SELECT kind, date_bin(INTERVAL '1 day', bucket) AS bucket, sum(count) AS count
FROM plays_kind_quarter
GROUP BY kind, date_bin(INTERVAL '1 day', bucket)
