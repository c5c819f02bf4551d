SELECT owner_id, date_bin(INTERVAL '1 day', bucket) AS bucket, sketch_cell(listener_id) AS listener_cell, kind, sum(count) AS count
FROM plays_detail
GROUP BY owner_id, date_bin(INTERVAL '1 day', bucket), sketch_cell(listener_id), kind
