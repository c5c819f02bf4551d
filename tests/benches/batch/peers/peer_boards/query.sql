WITH visible AS (
    SELECT segment_id, athlete_id, elapsed_time, id, day, day / 10000 - birth_year AS age, gender
    FROM efforts
    WHERE NOT is_hidden AND NOT is_deleted
        AND NOT athlete_is_deleted AND NOT athlete_is_disqualified
),
placed AS (
    SELECT *, 0 AS division, 0 AS period FROM visible
    UNION ALL
    SELECT *, CASE gender WHEN 'F' THEN 1 WHEN 'M' THEN 2 ELSE 3 END AS division, 0 AS period
    FROM visible
    WHERE gender IN ('F', 'M', 'X')
    UNION ALL
    SELECT
        *,
        100 + CASE
            WHEN age < 20 THEN 0
            WHEN age < 25 THEN 20
            WHEN age < 35 THEN 25
            WHEN age < 45 THEN 35
            WHEN age < 55 THEN 45
            WHEN age < 65 THEN 55
            WHEN age < 70 THEN 65
            WHEN age < 75 THEN 70
            ELSE 75
        END AS division,
        0 AS period
    FROM visible
    WHERE age >= 0
    UNION ALL
    SELECT *, 0 AS division, day / 10000 AS period FROM visible
),
best AS (
    SELECT
        segment_id,
        division,
        period,
        athlete_id,
        min(named_struct('elapsed_time', elapsed_time, 'effort_id', id)) AS effort
    FROM placed
    GROUP BY segment_id, division, period, athlete_id
)
SELECT
    segment_id,
    division,
    period,
    athlete_id,
    get_field(effort, 'elapsed_time') AS elapsed_time,
    get_field(effort, 'effort_id') AS effort_id
FROM best
