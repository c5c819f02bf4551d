-- Example: uses an app's own tables on MySQL or MariaDB as entities of Backstitch, without a copy. Views replace Backstitch's tables,
-- and triggers enqueue notifications of changes. Copy the file, and insert your tables. docs/canonical.md explains each part.
--
-- Run it after `backstitch migrate`, with time_zone = '+00:00', and restart Backstitch's processes. The app's tables in this example
-- are in the database `app`:
--
--   rides  (id, segment_id, rider_id, activity_id, seconds, started_at DATETIME(6) in UTC, zone,
--           is_private, deleted_at DATETIME)
--   riders (id, gender, born DATE, weight_kg DECIMAL, closed_at DATETIME)

DROP TABLE backstitch.efforts;
CREATE VIEW backstitch.efforts AS
SELECT id,
    segment_id,
    rider_id AS athlete_id,
    activity_id,
    seconds AS elapsed_time_s,
    TIMESTAMPDIFF(MICROSECOND, '1970-01-01', started_at) AS started_at_us,
    zone AS tz,
    is_private AS is_hidden,
    deleted_at IS NOT NULL AS is_deleted,
    0 AS version
FROM app.rides;

DROP TABLE backstitch.athletes;
CREATE VIEW backstitch.athletes AS
SELECT id,
    CAST(NULL AS CHAR) AS name,
    gender,
    CAST(YEAR(born) AS SIGNED) AS birth_year,
    weight_kg,
    CAST(NULL AS CHAR) AS country,
    closed_at IS NOT NULL AS is_deleted,
    0 AS version
FROM app.riders;

-- Insert disqualified riders into backstitch.disqualified, which has triggers of its own. If one of your tables lists them, replace
-- backstitch.disqualified by a view, and enqueue notifications of the rider as below when the table changes.

-- Backstitch reads groups and dumps through these indexes. The view selects these columns without a cast, because a cast would
-- prevent the use of the index.
CREATE INDEX rides_by_group ON app.rides (segment_id, rider_id, id);
CREATE INDEX rides_by_rider ON app.rides (rider_id, segment_id);

DELIMITER //

CREATE TRIGGER app.ride_made AFTER INSERT ON app.rides FOR EACH ROW
BEGIN
    DECLARE held BIGINT;
    -- Only required if athletes remain Backstitch's table. Then a concurrent change of the athlete sees this ride.
    SELECT bucket INTO held FROM backstitch.athlete_locks
    WHERE bucket = (NEW.rider_id & 63) LOCK IN SHARE MODE;
    INSERT INTO backstitch.outbox (source, group_key, member, made_at_ms)
    VALUES ('efforts', NEW.segment_id, NEW.rider_id, FLOOR(UNIX_TIMESTAMP(NOW(3)) * 1000));
END//

CREATE TRIGGER app.ride_changed AFTER UPDATE ON app.rides FOR EACH ROW
BEGIN
    DECLARE held BIGINT;
    SELECT bucket INTO held FROM backstitch.athlete_locks
    WHERE bucket = (NEW.rider_id & 63) LOCK IN SHARE MODE;
    INSERT INTO backstitch.outbox (source, group_key, member, made_at_ms)
    VALUES ('efforts', OLD.segment_id, OLD.rider_id, FLOOR(UNIX_TIMESTAMP(NOW(3)) * 1000)),
        ('efforts', NEW.segment_id, NEW.rider_id, FLOOR(UNIX_TIMESTAMP(NOW(3)) * 1000));
END//

CREATE TRIGGER app.ride_removed AFTER DELETE ON app.rides FOR EACH ROW
BEGIN
    INSERT INTO backstitch.outbox (source, group_key, member, made_at_ms)
    VALUES ('efforts', OLD.segment_id, OLD.rider_id, FLOOR(UNIX_TIMESTAMP(NOW(3)) * 1000));
END//

-- Notifies all groups of the rider, because all of them contain the rider's fields. Backstitch looks up the groups after the commit.
CREATE PROCEDURE app.tell_of_rider(rider BIGINT)
BEGIN
    INSERT INTO backstitch.outbox (source, group_key, member, made_at_ms)
    VALUES ('athletes', 0, rider, FLOOR(UNIX_TIMESTAMP(NOW(3)) * 1000));
END//

-- Notifies the present groups of the rider. Foreign keys with ON DELETE or ON UPDATE CASCADE fire no triggers on rides, and act before
-- an AFTER trigger runs. So BEFORE triggers call this.
CREATE PROCEDURE app.tell_of_rides(rider BIGINT)
BEGIN
    INSERT INTO backstitch.outbox (source, group_key, member, made_at_ms)
    SELECT DISTINCT 'efforts', segment_id, rider_id, FLOOR(UNIX_TIMESTAMP(NOW(3)) * 1000)
    FROM app.rides WHERE rider_id = rider;
END//

CREATE TRIGGER app.rider_made AFTER INSERT ON app.riders FOR EACH ROW
BEGIN
    CALL app.tell_of_rider(NEW.id);
END//

CREATE TRIGGER app.rider_is_renumbered BEFORE UPDATE ON app.riders FOR EACH ROW
BEGIN
    IF NOT (OLD.id <=> NEW.id) THEN
        CALL app.tell_of_rides(OLD.id);
    END IF;
END//

CREATE TRIGGER app.rider_changed AFTER UPDATE ON app.riders FOR EACH ROW
BEGIN
    IF NOT (OLD.id <=> NEW.id AND OLD.gender <=> NEW.gender AND OLD.born <=> NEW.born
            AND OLD.weight_kg <=> NEW.weight_kg
            AND (OLD.closed_at IS NULL) = (NEW.closed_at IS NULL)) THEN
        CALL app.tell_of_rider(NEW.id);
        IF NOT (OLD.id <=> NEW.id) THEN
            CALL app.tell_of_rider(OLD.id);
        END IF;
    END IF;
END//

CREATE TRIGGER app.rider_is_removed BEFORE DELETE ON app.riders FOR EACH ROW
BEGIN
    CALL app.tell_of_rides(OLD.id);
    CALL app.tell_of_rider(OLD.id);
END//

DELIMITER ;

-- TRUNCATE fires no triggers, and MySQL cannot prevent it by a trigger. Use DELETE to empty these tables, and revoke the DROP right on
-- them, which TRUNCATE requires, from the app's user.
