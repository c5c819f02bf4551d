SELECT track_id, date_trunc('month', bucket) AS bucket, owner_id, kind, sum(count) AS count
FROM plays_track_day
GROUP BY track_id, date_trunc('month', bucket), owner_id, kind
