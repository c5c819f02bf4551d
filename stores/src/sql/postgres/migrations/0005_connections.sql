-- What is deleted of the pairs that changed is looked for by the pairs: nearly all of `connections` has
-- athletes who are connected, so the planner took a condition on `live` alone for one that no row meets,
-- read the whole table, and compared each row that did with every pair. What is computed has no such statistics.
CREATE OR REPLACE FUNCTION count_connected(applications bigint[], athletes bigint[], more bigint[])
RETURNS void LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
BEGIN
    INSERT INTO connected (application_id)
    SELECT DISTINCT a FROM unnest(applications) AS a ORDER BY a ON CONFLICT DO NOTHING;
    PERFORM 1 FROM connected c WHERE c.application_id = ANY (applications)
    ORDER BY c.application_id FOR UPDATE;
    WITH pairs AS (
        SELECT * FROM unnest(applications, athletes, more) AS p (application_id, athlete_id, more)),
    moved AS (
        INSERT INTO connections AS c (application_id, athlete_id, live)
        SELECT p.application_id, p.athlete_id, p.more FROM pairs p
        ON CONFLICT (application_id, athlete_id) DO UPDATE SET live = c.live + excluded.live
        RETURNING c.application_id, c.athlete_id, c.live),
    change AS (
        SELECT application_id, sum((m.live > 0)::integer - (m.live - p.more > 0)::integer) AS by
        FROM moved m JOIN pairs p USING (application_id, athlete_id) GROUP BY application_id)
    UPDATE connected c SET athletes = c.athletes + change.by FROM change
    WHERE c.application_id = change.application_id AND change.by <> 0;
    DELETE FROM connections c USING unnest(applications, athletes) AS p (application_id, athlete_id)
    WHERE c.application_id = p.application_id AND c.athlete_id = p.athlete_id AND c.live + 0 = 0;
END $$;
