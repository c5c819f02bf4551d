-- Disqualified athletes, whose efforts are on no board. This is a separate table because `athletes` may be a view of an app's own
-- table. The app then inserts disqualified athletes here, or replaces this table by a view, too.
--
-- MySQL does not roll back a migration that fails, so it can be run again.

CREATE TABLE IF NOT EXISTS disqualified (
    athlete_id BIGINT NOT NULL PRIMARY KEY
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

DROP TRIGGER IF EXISTS athlete_disqualified;
CREATE TRIGGER athlete_disqualified AFTER INSERT ON disqualified FOR EACH ROW
BEGIN
    IF @backstitch_tells IS NULL THEN
        INSERT INTO outbox (source, group_key, member, made_at_ms)
        VALUES ('athletes', 0, NEW.athlete_id, FLOOR(UNIX_TIMESTAMP(NOW(3)) * 1000));
    END IF;
END;

DROP TRIGGER IF EXISTS disqualified_athlete_changed;
CREATE TRIGGER disqualified_athlete_changed AFTER UPDATE ON disqualified FOR EACH ROW
BEGIN
    IF @backstitch_tells IS NULL AND OLD.athlete_id <> NEW.athlete_id THEN
        INSERT INTO outbox (source, group_key, member, made_at_ms)
        VALUES ('athletes', 0, NEW.athlete_id, FLOOR(UNIX_TIMESTAMP(NOW(3)) * 1000)),
            ('athletes', 0, OLD.athlete_id, FLOOR(UNIX_TIMESTAMP(NOW(3)) * 1000));
    END IF;
END;

DROP TRIGGER IF EXISTS athlete_reinstated;
CREATE TRIGGER athlete_reinstated AFTER DELETE ON disqualified FOR EACH ROW
BEGIN
    IF @backstitch_tells IS NULL THEN
        INSERT INTO outbox (source, group_key, member, made_at_ms)
        VALUES ('athletes', 0, OLD.athlete_id, FLOOR(UNIX_TIMESTAMP(NOW(3)) * 1000));
    END IF;
END;
