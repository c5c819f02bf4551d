-- Athletes who are deleted are connected to nothing: the counters leave them out, and whether that is so
-- stands beside each pair, since a counter may only fall by what it rose by.

ALTER TABLE connections ADD COLUMN is_away boolean NOT NULL DEFAULT false;
CREATE INDEX connections_by_athlete ON connections (athlete_id);

-- A pair that is new takes from the athlete whether it counts. What becomes of the athlete later moves all
-- pairs (move_away), and who tells of a pair looks whether it met such a change.
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
        INSERT INTO connections AS c (application_id, athlete_id, live, is_away)
        SELECT p.application_id, p.athlete_id, p.more, t.is_deleted IS TRUE
        FROM pairs p LEFT JOIN athletes t ON t.id = p.athlete_id
        ON CONFLICT (application_id, athlete_id) DO UPDATE SET live = c.live + excluded.live
        RETURNING c.application_id, c.athlete_id, c.live, c.is_away),
    change AS (
        SELECT application_id, sum((m.live > 0)::integer - (m.live - p.more > 0)::integer) AS by
        FROM moved m JOIN pairs p USING (application_id, athlete_id)
        WHERE NOT m.is_away GROUP BY application_id)
    UPDATE connected c SET athletes = c.athletes + change.by FROM change
    WHERE c.application_id = change.application_id AND change.by <> 0;
    DELETE FROM connections c USING unnest(applications, athletes) AS p (application_id, athlete_id)
    WHERE c.application_id = p.application_id AND c.athlete_id = p.athlete_id AND c.live + 0 = 0;
END $$;

-- Brings the pairs of some athletes to what is stored of these, and the counters with them, where nobody else holds
-- those; answers the pairs that changed.
CREATE FUNCTION move_away(changed bigint[])
RETURNS TABLE (group_key bigint, member bigint)
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
    held bigint[];
BEGIN
    SELECT array_agg(h.application_id) INTO held FROM (
        SELECT k.application_id FROM connected k WHERE k.application_id IN (
            SELECT c.application_id FROM connections c LEFT JOIN athletes t ON t.id = c.athlete_id
            WHERE c.athlete_id = ANY (changed) AND c.is_away <> (t.is_deleted IS TRUE))
        ORDER BY k.application_id FOR UPDATE SKIP LOCKED) AS h;
    RETURN QUERY WITH states AS (
        SELECT u.id, t.is_deleted IS TRUE AS is_away
        FROM (SELECT DISTINCT a AS id FROM unnest(changed) AS a) u
        LEFT JOIN athletes t ON t.id = u.id),
    moved AS (
        UPDATE connections c SET is_away = s.is_away FROM states s
        WHERE c.athlete_id = s.id AND c.is_away <> s.is_away AND c.application_id = ANY (held)
        RETURNING c.application_id, c.athlete_id, c.live, c.is_away),
    change AS (
        SELECT m.application_id, sum(CASE WHEN m.is_away THEN -1 ELSE 1 END) AS by
        FROM moved m WHERE m.live > 0 GROUP BY m.application_id),
    counted AS (
        UPDATE connected k SET athletes = k.athletes + change.by FROM change
        WHERE k.application_id = change.application_id AND change.by <> 0)
    SELECT m.application_id, m.athlete_id FROM moved m;
END $$;
