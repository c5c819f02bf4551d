SELECT owner_id, kind, sum(count) AS count
FROM plays_owner_month
GROUP BY owner_id, kind
