SELECT track_id, date_trunc('month', bucket) AS bucket, owner_id, listener_cell, kind, sum(count) AS count
FROM plays_track_day_uniques
GROUP BY track_id, date_trunc('month', bucket), owner_id, listener_cell, kind
