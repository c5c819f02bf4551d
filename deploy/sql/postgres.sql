-- Example: uses an app's own tables on PostgreSQL as entities of Backstitch, without a copy. Views replace Backstitch's tables, and
-- triggers enqueue notifications of changes. Copy the file, and insert your tables. docs/canonical.md explains each part.
--
-- Run it after `backstitch migrate`, as the owner of both schemas, and restart Backstitch's processes. The app's tables in this
-- example are in the schema `app`:
--
--   rides  (id, segment_id, rider_id, activity_id, seconds, started_at timestamptz, zone,
--           is_private, deleted_at timestamptz)
--   riders (id, gender, born date, weight_kg numeric, closed_at timestamptz)

BEGIN;

DROP TABLE backstitch.efforts;
CREATE VIEW backstitch.efforts AS
SELECT id,
    segment_id,
    rider_id AS athlete_id,
    activity_id,
    seconds AS elapsed_time_s,
    (extract(epoch FROM started_at) * 1000000)::bigint AS started_at_us,
    zone AS tz,
    is_private AS is_hidden,
    deleted_at IS NOT NULL AS is_deleted,
    0 AS version
FROM app.rides;

DROP TABLE backstitch.athletes;
CREATE VIEW backstitch.athletes AS
SELECT id,
    NULL::text AS name,
    gender,
    extract(year FROM born)::integer AS birth_year,
    weight_kg,
    NULL::text AS country,
    closed_at IS NOT NULL AS is_deleted,
    0 AS version
FROM app.riders;

-- Insert disqualified riders into backstitch.disqualified, which has triggers of its own. If one of your tables lists them, replace
-- backstitch.disqualified by a view, and enqueue notifications of the rider as below when the table changes.

-- Backstitch reads groups and dumps through these indexes. The view selects these columns without a cast, because a cast would
-- prevent the use of the index.
CREATE INDEX IF NOT EXISTS rides_by_group ON app.rides (segment_id, rider_id, id);
CREATE INDEX IF NOT EXISTS rides_by_rider ON app.rides (rider_id, segment_id);

CREATE FUNCTION app.tell_of_ride() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$
BEGIN
    IF TG_OP <> 'INSERT' THEN
        INSERT INTO backstitch.outbox (source, group_key, member, made_at_ms)
        VALUES ('efforts', OLD.segment_id, OLD.rider_id, backstitch.now_ms());
    END IF;
    IF TG_OP <> 'DELETE' THEN
        -- Only required if athletes remain Backstitch's table. Then a concurrent change of the athlete sees this ride.
        PERFORM backstitch.lock_athletes(ARRAY[NEW.rider_id::bigint], false);
        INSERT INTO backstitch.outbox (source, group_key, member, made_at_ms)
        VALUES ('efforts', NEW.segment_id, NEW.rider_id, backstitch.now_ms());
    END IF;
    RETURN NULL;
END $$;
CREATE TRIGGER tell_backstitch AFTER INSERT OR UPDATE OR DELETE ON app.rides
    FOR EACH ROW EXECUTE FUNCTION app.tell_of_ride();

CREATE FUNCTION app.tell_of_rider() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$
BEGIN
    -- Notifies all groups of the rider, because all of them contain the rider's fields. If the id changed, notifies those of both
    -- riders.
    PERFORM backstitch.tell_of_athletes(ARRAY[NEW.id::bigint, OLD.id::bigint]);
    RETURN NULL;
END $$;
CREATE TRIGGER tell_backstitch AFTER INSERT OR DELETE ON app.riders
    FOR EACH ROW EXECUTE FUNCTION app.tell_of_rider();
CREATE TRIGGER tell_backstitch_of_change AFTER UPDATE ON app.riders FOR EACH ROW
    WHEN ((OLD.id, OLD.gender, OLD.born, OLD.weight_kg, OLD.closed_at IS NULL)
        IS DISTINCT FROM (NEW.id, NEW.gender, NEW.born, NEW.weight_kg, NEW.closed_at IS NULL))
    EXECUTE FUNCTION app.tell_of_rider();

-- TRUNCATE does not list the removed rows, so their groups could not be enqueued. Use DELETE instead.
CREATE TRIGGER refuse_truncate BEFORE TRUNCATE ON app.rides
    EXECUTE FUNCTION backstitch.refuse_truncate();
CREATE TRIGGER refuse_truncate BEFORE TRUNCATE ON app.riders
    EXECUTE FUNCTION backstitch.refuse_truncate();

COMMIT;
