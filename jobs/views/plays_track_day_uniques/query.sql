SELECT track_id, date_bin(INTERVAL '1 day', bucket) AS bucket, owner_id, sketch_cell(listener_id) AS listener_cell, kind, sum(count) AS count
FROM plays_track_day_listener
GROUP BY track_id, date_bin(INTERVAL '1 day', bucket), owner_id, sketch_cell(listener_id), kind
