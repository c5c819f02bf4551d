-- What keeps the counters, and tells of changes that an app makes by its own SQL.
--
-- Triggers run with the rights of who made them, so that an app needs rights on the tables of
-- entities only.
--
-- The server takes nothing back of a migration that is broken off, so it may be run again.
--
-- A session that tells by itself, as the adapter's do, sets @backstitch_tells to 'no'.

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

-- Only what views see of an athlete is told of. An athlete who is not known is seen as one who tells
-- nothing.
--
-- A row of the source 'athletes' names the athlete only: the groups are looked for after the commit, by
-- whoever brings the outbox into the log, and whatever is committed later is told of by itself.
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

-- Foreign keys that an app adds fire no triggers when they delete efforts or change their athlete, and
-- have done so before an AFTER trigger runs: so what an athlete has is told of before.
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

-- Counters are held in one order: that of the application, then that of the pair.
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

-- A pair that has none any more stays with 0: a trigger can't delete the row that it is called for.
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
