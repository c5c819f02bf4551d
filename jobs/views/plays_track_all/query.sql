SELECT track_id, owner_id, kind, sum(count) AS count
FROM plays_track_month
GROUP BY track_id, owner_id, kind
