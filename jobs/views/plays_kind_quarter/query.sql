SELECT kind, bucket, sum(count) AS count
FROM plays_owner_quarter
GROUP BY kind, bucket
