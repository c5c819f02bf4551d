WITH visible AS (
    SELECT
        segment_id,
        athlete_id,
        elapsed_time,
        id,
        activity_id,
        started_at,
        day,
        day / 10000 - birth_year AS age,
        gender,
        birth_year,
        CASE
            WHEN weight_kg < 55 THEN 0
            WHEN weight_kg < 65 THEN 55
            WHEN weight_kg < 75 THEN 65
            WHEN weight_kg < 85 THEN 75
            WHEN weight_kg < 95 THEN 85
            WHEN weight_kg < 105 THEN 95
            WHEN weight_kg < 115 THEN 105
            WHEN weight_kg >= 115 THEN 115
        END AS weight_class
    FROM efforts
    WHERE NOT is_hidden AND NOT is_deleted AND NOT athlete_is_deleted
),
placed AS (
    SELECT *, -1 AS age_group, 0 AS period FROM visible
    UNION ALL
    SELECT
        *,
        CASE
            WHEN age < 20 THEN 0
            WHEN age < 25 THEN 20
            WHEN age < 35 THEN 25
            WHEN age < 45 THEN 35
            WHEN age < 55 THEN 45
            WHEN age < 65 THEN 55
            WHEN age < 70 THEN 65
            WHEN age < 75 THEN 70
            ELSE 75
        END AS age_group,
        0 AS period
    FROM visible
    WHERE age >= 0
    UNION ALL
    SELECT *, -1 AS age_group, day / 10000 AS period FROM visible
    UNION ALL
    SELECT *, -1 AS age_group, day / 100 AS period FROM visible
    UNION ALL
    SELECT *, -1 AS age_group, day AS period FROM visible
)
SELECT
    segment_id,
    age_group,
    period,
    athlete_id,
    min(elapsed_time) AS elapsed_time,
    first_value(id ORDER BY elapsed_time, id) AS effort_id,
    first_value(activity_id ORDER BY elapsed_time, id) AS activity_id,
    first_value(started_at ORDER BY elapsed_time, id) AS started_at,
    min(gender) AS gender,
    min(birth_year) AS birth_year,
    min(weight_class) AS weight_class,
    count(*) AS efforts
FROM placed
GROUP BY segment_id, age_group, period, athlete_id
