-- What keeps the counters, and tells of changes that an app makes by its own SQL.
--
-- Functions run with the rights of their owner, so that an app needs rights on the tables of
-- entities only. They find the tables of the schema in which they were made.
--
-- A session that tells by itself, as the adapter's do, sets backstitch.tells to 'no'.

CREATE FUNCTION now_ms() RETURNS bigint LANGUAGE sql
AS $$ SELECT floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint $$;

-- Until the commit, either many change efforts of these athletes, or one changes these athletes and
-- tells of their groups at once, as the adapter does. Otherwise an effort that is being added would be
-- told of before the change of its athlete is visible, and the change would not find it. Locks are on
-- few buckets of athletes, taken in order.
CREATE FUNCTION lock_athletes(athletes bigint[], alone boolean) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
    tables integer := hashtext('athletes of ' || current_schema());
    bucket integer;
BEGIN
    FOR bucket IN SELECT DISTINCT (a & 63)::integer AS b FROM unnest(athletes) AS a ORDER BY b LOOP
        IF alone THEN
            PERFORM pg_advisory_xact_lock(tables, bucket);
        ELSE
            PERFORM pg_advisory_xact_lock_shared(tables, bucket);
        END IF;
    END LOOP;
END $$;

-- The row names the athlete only: the groups are looked for after the commit, by whoever brings the
-- outbox into the log. Here they could be missed: a transaction at REPEATABLE READ or SERIALIZABLE
-- sees no effort that was committed after it began.
CREATE FUNCTION tell_of_athletes(changed bigint[]) RETURNS void
LANGUAGE sql SECURITY DEFINER SET search_path FROM CURRENT AS $$
    INSERT INTO outbox (source, group_key, member, made_at_ms)
    SELECT 'athletes', 0, athlete, now_ms()
    FROM (SELECT DISTINCT a AS athlete FROM unnest(changed) AS a WHERE a IS NOT NULL) AS each_once
$$;

CREATE FUNCTION efforts_changed() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
BEGIN
    IF TG_OP = 'INSERT' THEN
        PERFORM lock_athletes((SELECT array_agg(DISTINCT athlete_id) FROM new_rows), false);
        INSERT INTO outbox (source, group_key, member, made_at_ms)
        SELECT DISTINCT 'efforts', segment_id, athlete_id, now_ms() FROM new_rows;
    ELSIF TG_OP = 'UPDATE' THEN
        PERFORM lock_athletes((SELECT array_agg(DISTINCT athlete_id) FROM new_rows), false);
        INSERT INTO outbox (source, group_key, member, made_at_ms)
        SELECT 'efforts', segment_id, athlete_id, now_ms() FROM new_rows
        UNION SELECT 'efforts', segment_id, athlete_id, now_ms() FROM old_rows;
    ELSE
        INSERT INTO outbox (source, group_key, member, made_at_ms)
        SELECT DISTINCT 'efforts', segment_id, athlete_id, now_ms() FROM old_rows;
    END IF;
    RETURN NULL;
END $$;
CREATE TRIGGER effort_made AFTER INSERT ON efforts
    REFERENCING NEW TABLE AS new_rows FOR EACH STATEMENT
    WHEN (current_setting('backstitch.tells', true) IS DISTINCT FROM 'no')
    EXECUTE FUNCTION efforts_changed();
CREATE TRIGGER effort_changed AFTER UPDATE ON efforts
    REFERENCING OLD TABLE AS old_rows NEW TABLE AS new_rows FOR EACH STATEMENT
    WHEN (current_setting('backstitch.tells', true) IS DISTINCT FROM 'no')
    EXECUTE FUNCTION efforts_changed();
CREATE TRIGGER effort_removed AFTER DELETE ON efforts
    REFERENCING OLD TABLE AS old_rows FOR EACH STATEMENT
    WHEN (current_setting('backstitch.tells', true) IS DISTINCT FROM 'no')
    EXECUTE FUNCTION efforts_changed();

-- Only what views see of an athlete is told of. An athlete who is not known is seen as one who tells
-- nothing.
CREATE FUNCTION athletes_changed() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
BEGIN
    IF TG_OP = 'INSERT' THEN
        PERFORM tell_of_athletes(array_agg(id)) FROM new_rows
        WHERE gender IS NOT NULL OR birth_year IS NOT NULL OR weight_kg IS NOT NULL OR is_deleted
        HAVING count(*) > 0;
    ELSIF TG_OP = 'UPDATE' THEN
        PERFORM tell_of_athletes(array_agg(id)) FROM (
            SELECT coalesce(n.id, o.id) AS id FROM old_rows o FULL JOIN new_rows n ON n.id = o.id
            WHERE (o.gender, o.birth_year, o.weight_kg, coalesce(o.is_deleted, false))
                IS DISTINCT FROM
                (n.gender, n.birth_year, n.weight_kg, coalesce(n.is_deleted, false))) AS changed
        HAVING count(*) > 0;
    ELSE
        PERFORM tell_of_athletes(array_agg(id)) FROM old_rows
        WHERE gender IS NOT NULL OR birth_year IS NOT NULL OR weight_kg IS NOT NULL OR is_deleted
        HAVING count(*) > 0;
    END IF;
    RETURN NULL;
END $$;
CREATE TRIGGER athlete_made AFTER INSERT ON athletes
    REFERENCING NEW TABLE AS new_rows FOR EACH STATEMENT
    WHEN (current_setting('backstitch.tells', true) IS DISTINCT FROM 'no')
    EXECUTE FUNCTION athletes_changed();
CREATE TRIGGER athlete_changed AFTER UPDATE ON athletes
    REFERENCING OLD TABLE AS old_rows NEW TABLE AS new_rows FOR EACH STATEMENT
    WHEN (current_setting('backstitch.tells', true) IS DISTINCT FROM 'no')
    EXECUTE FUNCTION athletes_changed();
CREATE TRIGGER athlete_removed AFTER DELETE ON athletes
    REFERENCING OLD TABLE AS old_rows FOR EACH STATEMENT
    WHEN (current_setting('backstitch.tells', true) IS DISTINCT FROM 'no')
    EXECUTE FUNCTION athletes_changed();

-- Moves the counters of connected athletes: by how many each pair got more authorizations that are
-- not revoked. It adds only, so it is right too where one statement made rows and changed others.
CREATE FUNCTION count_connected(applications bigint[], athletes bigint[], more bigint[])
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
    WHERE c.application_id = p.application_id AND c.athlete_id = p.athlete_id AND c.live = 0;
END $$;

CREATE FUNCTION authorizations_changed() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
    tells boolean := current_setting('backstitch.tells', true) IS DISTINCT FROM 'no';
BEGIN
    IF TG_OP = 'INSERT' THEN
        PERFORM count_connected(array_agg(application_id), array_agg(athlete_id), array_agg(n))
        FROM (SELECT application_id, athlete_id, count(*) AS n FROM new_rows
            WHERE revoked_at_us IS NULL GROUP BY 1, 2) AS pairs HAVING count(*) > 0;
        INSERT INTO outbox (source, group_key, member, made_at_ms)
        SELECT DISTINCT 'authorizations', application_id, athlete_id, now_ms() FROM new_rows
        WHERE tells;
    ELSIF TG_OP = 'UPDATE' THEN
        PERFORM count_connected(array_agg(application_id), array_agg(athlete_id), array_agg(n))
        FROM (SELECT application_id, athlete_id, sum(one)::bigint AS n FROM (
                SELECT application_id, athlete_id, 1 AS one FROM new_rows WHERE revoked_at_us IS NULL
                UNION ALL
                SELECT application_id, athlete_id, -1 FROM old_rows WHERE revoked_at_us IS NULL) AS e
            GROUP BY 1, 2 HAVING sum(one) <> 0) AS pairs HAVING count(*) > 0;
        INSERT INTO outbox (source, group_key, member, made_at_ms)
        SELECT 'authorizations', application_id, athlete_id, now_ms() FROM new_rows WHERE tells
        UNION SELECT 'authorizations', application_id, athlete_id, now_ms() FROM old_rows WHERE tells;
    ELSE
        PERFORM count_connected(array_agg(application_id), array_agg(athlete_id), array_agg(-n))
        FROM (SELECT application_id, athlete_id, count(*) AS n FROM old_rows
            WHERE revoked_at_us IS NULL GROUP BY 1, 2) AS pairs HAVING count(*) > 0;
        INSERT INTO outbox (source, group_key, member, made_at_ms)
        SELECT DISTINCT 'authorizations', application_id, athlete_id, now_ms() FROM old_rows
        WHERE tells;
    END IF;
    RETURN NULL;
END $$;
CREATE TRIGGER authorization_made AFTER INSERT ON authorizations
    REFERENCING NEW TABLE AS new_rows FOR EACH STATEMENT
    EXECUTE FUNCTION authorizations_changed();
CREATE TRIGGER authorization_changed AFTER UPDATE ON authorizations
    REFERENCING OLD TABLE AS old_rows NEW TABLE AS new_rows FOR EACH STATEMENT
    EXECUTE FUNCTION authorizations_changed();
CREATE TRIGGER authorization_removed AFTER DELETE ON authorizations
    REFERENCING OLD TABLE AS old_rows FOR EACH STATEMENT
    EXECUTE FUNCTION authorizations_changed();

-- What was emptied at once can't be told of, group by group.
CREATE FUNCTION refuse_truncate() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'delete the rows of % instead: views are told of deleted rows only', TG_TABLE_NAME;
END $$;
CREATE TRIGGER efforts_emptied BEFORE TRUNCATE ON efforts EXECUTE FUNCTION refuse_truncate();
CREATE TRIGGER athletes_emptied BEFORE TRUNCATE ON athletes EXECUTE FUNCTION refuse_truncate();
CREATE TRIGGER authorizations_emptied BEFORE TRUNCATE ON authorizations
    EXECUTE FUNCTION refuse_truncate();
