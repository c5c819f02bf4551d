SELECT owner_id, date_bin(INTERVAL '1 hour', at) AS bucket, track_id, kind, sum(amount) AS count
FROM plays
GROUP BY owner_id, date_bin(INTERVAL '1 hour', at), track_id, kind
