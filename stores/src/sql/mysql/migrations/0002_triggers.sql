-- Triggers that maintain the counters, and enqueue notifications of changes by an app's own SQL.
--
-- Triggers run with the rights of their creator, so an app needs rights only on the tables of entities.
--
-- MySQL does not roll back a migration that fails, so it can be run again.
--
-- A session that enqueues notifications itself, like the adapter's sessions, sets @backstitch_tells to 'no'.

DROP TRIGGER IF EXISTS effort_made;
CREATE TRIGGER effort_made AFTER INSERT ON efforts FOR EACH ROW
BEGIN
    DECLARE held BIGINT;
    IF @backstitch_tells IS NULL THEN
        SELECT bucket INTO held FROM athlete_locks WHERE bucket = (NEW.athlete_id & 63) LOCK IN SHARE MODE;
        INSERT INTO outbox (source, group_key, member, made_at_ms)
        VALUES ('efforts', NEW.segment_id, NEW.athlete_id, FLOOR(UNIX_TIMESTAMP(NOW(3)) * 1000));
    END IF;
END;

DROP TRIGGER IF EXISTS effort_changed;
CREATE TRIGGER effort_changed AFTER UPDATE ON efforts FOR EACH ROW
BEGIN
    DECLARE held BIGINT;
    IF @backstitch_tells IS NULL THEN
        SELECT bucket INTO held FROM athlete_locks WHERE bucket = (NEW.athlete_id & 63) LOCK IN SHARE MODE;
        INSERT INTO outbox (source, group_key, member, made_at_ms)
        VALUES ('efforts', NEW.segment_id, NEW.athlete_id, FLOOR(UNIX_TIMESTAMP(NOW(3)) * 1000));
        IF OLD.segment_id <> NEW.segment_id OR OLD.athlete_id <> NEW.athlete_id THEN
            INSERT INTO outbox (source, group_key, member, made_at_ms)
            VALUES ('efforts', OLD.segment_id, OLD.athlete_id, FLOOR(UNIX_TIMESTAMP(NOW(3)) * 1000));
        END IF;
    END IF;
END;

DROP TRIGGER IF EXISTS effort_removed;
CREATE TRIGGER effort_removed AFTER DELETE ON efforts FOR EACH ROW
BEGIN
    IF @backstitch_tells IS NULL THEN
        INSERT INTO outbox (source, group_key, member, made_at_ms)
        VALUES ('efforts', OLD.segment_id, OLD.athlete_id, FLOOR(UNIX_TIMESTAMP(NOW(3)) * 1000));
    END IF;
END;

-- Only changes that views can read are enqueued. An unknown athlete has the default values.
--
-- A row of the source 'athletes' contains only the athlete. The relay looks up the groups after the commit; efforts that commit
-- later have notifications of their own.
DROP TRIGGER IF EXISTS athlete_made;
CREATE TRIGGER athlete_made AFTER INSERT ON athletes FOR EACH ROW
BEGIN
    IF @backstitch_tells IS NULL AND (NEW.gender IS NOT NULL OR NEW.birth_year IS NOT NULL
            OR NEW.weight_kg IS NOT NULL OR NEW.is_deleted) THEN
        INSERT INTO outbox (source, group_key, member, made_at_ms)
        VALUES ('athletes', 0, NEW.id, FLOOR(UNIX_TIMESTAMP(NOW(3)) * 1000));
    END IF;
END;

DROP TRIGGER IF EXISTS athlete_changed;
CREATE TRIGGER athlete_changed AFTER UPDATE ON athletes FOR EACH ROW
BEGIN
    IF @backstitch_tells IS NULL AND NOT (OLD.id = NEW.id AND OLD.gender <=> NEW.gender
            AND OLD.birth_year <=> NEW.birth_year AND OLD.weight_kg <=> NEW.weight_kg
            AND OLD.is_deleted = NEW.is_deleted) THEN
        INSERT INTO outbox (source, group_key, member, made_at_ms)
        VALUES ('athletes', 0, NEW.id, FLOOR(UNIX_TIMESTAMP(NOW(3)) * 1000));
        IF OLD.id <> NEW.id THEN
            INSERT INTO outbox (source, group_key, member, made_at_ms)
            VALUES ('athletes', 0, OLD.id, FLOOR(UNIX_TIMESTAMP(NOW(3)) * 1000));
        END IF;
    END IF;
END;

-- Foreign keys of an app fire no triggers when they delete efforts or change their athlete, and they act before an AFTER trigger
-- runs. So a BEFORE trigger enqueues the groups of the athlete.
DROP TRIGGER IF EXISTS athlete_is_renumbered;
CREATE TRIGGER athlete_is_renumbered BEFORE UPDATE ON athletes FOR EACH ROW
BEGIN
    IF @backstitch_tells IS NULL AND OLD.id <> NEW.id THEN
        INSERT INTO outbox (source, group_key, member, made_at_ms)
        SELECT DISTINCT 'efforts', segment_id, athlete_id, FLOOR(UNIX_TIMESTAMP(NOW(3)) * 1000)
        FROM efforts WHERE athlete_id = OLD.id;
    END IF;
END;

DROP TRIGGER IF EXISTS athlete_removed;
CREATE TRIGGER athlete_removed BEFORE DELETE ON athletes FOR EACH ROW
BEGIN
    IF @backstitch_tells IS NULL THEN
        INSERT INTO outbox (source, group_key, member, made_at_ms)
        SELECT DISTINCT 'efforts', segment_id, athlete_id, FLOOR(UNIX_TIMESTAMP(NOW(3)) * 1000)
        FROM efforts WHERE athlete_id = OLD.id;
        INSERT INTO outbox (source, group_key, member, made_at_ms)
        VALUES ('athletes', 0, OLD.id, FLOOR(UNIX_TIMESTAMP(NOW(3)) * 1000));
    END IF;
END;

-- Counters are locked in one order: first the application's, then the pair's.
DROP TRIGGER IF EXISTS authorization_made;
CREATE TRIGGER authorization_made AFTER INSERT ON authorizations FOR EACH ROW
BEGIN
    IF NEW.revoked_at_us IS NULL THEN
        INSERT INTO connected (application_id) VALUES (NEW.application_id)
        ON DUPLICATE KEY UPDATE athletes = athletes;
        INSERT INTO connections (application_id, athlete_id, live)
        VALUES (NEW.application_id, NEW.athlete_id, 1)
        ON DUPLICATE KEY UPDATE live = live + 1;
    END IF;
    IF @backstitch_tells IS NULL THEN
        INSERT INTO outbox (source, group_key, member, made_at_ms)
        VALUES ('authorizations', NEW.application_id, NEW.athlete_id, FLOOR(UNIX_TIMESTAMP(NOW(3)) * 1000));
    END IF;
END;

DROP TRIGGER IF EXISTS authorization_changed;
CREATE TRIGGER authorization_changed AFTER UPDATE ON authorizations FOR EACH ROW
BEGIN
    IF OLD.revoked_at_us IS NULL AND (NEW.revoked_at_us IS NOT NULL OR
            (OLD.application_id <> NEW.application_id OR OLD.athlete_id <> NEW.athlete_id)) THEN
        INSERT INTO connected (application_id) VALUES (OLD.application_id)
        ON DUPLICATE KEY UPDATE athletes = athletes;
        UPDATE connections SET live = live - 1
        WHERE application_id = OLD.application_id AND athlete_id = OLD.athlete_id;
    END IF;
    IF NEW.revoked_at_us IS NULL AND (OLD.revoked_at_us IS NOT NULL OR
            (OLD.application_id <> NEW.application_id OR OLD.athlete_id <> NEW.athlete_id)) THEN
        INSERT INTO connected (application_id) VALUES (NEW.application_id)
        ON DUPLICATE KEY UPDATE athletes = athletes;
        INSERT INTO connections (application_id, athlete_id, live)
        VALUES (NEW.application_id, NEW.athlete_id, 1)
        ON DUPLICATE KEY UPDATE live = live + 1;
    END IF;
    IF @backstitch_tells IS NULL THEN
        INSERT INTO outbox (source, group_key, member, made_at_ms)
        VALUES ('authorizations', NEW.application_id, NEW.athlete_id, FLOOR(UNIX_TIMESTAMP(NOW(3)) * 1000));
        IF (OLD.application_id <> NEW.application_id OR OLD.athlete_id <> NEW.athlete_id) THEN
            INSERT INTO outbox (source, group_key, member, made_at_ms)
            VALUES ('authorizations', OLD.application_id, OLD.athlete_id, FLOOR(UNIX_TIMESTAMP(NOW(3)) * 1000));
        END IF;
    END IF;
END;

DROP TRIGGER IF EXISTS authorization_removed;
CREATE TRIGGER authorization_removed AFTER DELETE ON authorizations FOR EACH ROW
BEGIN
    IF OLD.revoked_at_us IS NULL THEN
        INSERT INTO connected (application_id) VALUES (OLD.application_id)
        ON DUPLICATE KEY UPDATE athletes = athletes;
        UPDATE connections SET live = live - 1
        WHERE application_id = OLD.application_id AND athlete_id = OLD.athlete_id;
    END IF;
    IF @backstitch_tells IS NULL THEN
        INSERT INTO outbox (source, group_key, member, made_at_ms)
        VALUES ('authorizations', OLD.application_id, OLD.athlete_id, FLOOR(UNIX_TIMESTAMP(NOW(3)) * 1000));
    END IF;
END;

-- A pair without authorizations remains with 0, because a trigger cannot delete the row for which it was fired.
DROP TRIGGER IF EXISTS athlete_connected;
CREATE TRIGGER athlete_connected AFTER INSERT ON connections FOR EACH ROW
BEGIN
    IF NEW.live > 0 THEN
        UPDATE connected SET athletes = athletes + 1 WHERE application_id = NEW.application_id;
    END IF;
END;

DROP TRIGGER IF EXISTS athlete_moved;
CREATE TRIGGER athlete_moved AFTER UPDATE ON connections FOR EACH ROW
BEGIN
    IF OLD.live > 0 AND NEW.live <= 0 THEN
        UPDATE connected SET athletes = athletes - 1 WHERE application_id = NEW.application_id;
    ELSEIF OLD.live <= 0 AND NEW.live > 0 THEN
        UPDATE connected SET athletes = athletes + 1 WHERE application_id = NEW.application_id;
    END IF;
END;
