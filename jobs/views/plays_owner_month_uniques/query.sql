SELECT owner_id, date_trunc('month', bucket) AS bucket, listener_cell, kind, sum(count) AS count
FROM plays_owner_day_uniques
GROUP BY owner_id, date_trunc('month', bucket), listener_cell, kind
