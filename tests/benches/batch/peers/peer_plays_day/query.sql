SELECT track_id, date_bin(INTERVAL '1 day', at) AS bucket, country, kind, sum(amount) AS count
FROM plays
GROUP BY track_id, date_bin(INTERVAL '1 day', at), country, kind
