-- The athletes who are disqualified: none of their efforts is on a board. It is a table of its own, and
-- not a column of the athletes, since these may be a view of an app's own table: such a view stays as it
-- is, and the app lists here whom it disqualifies, or makes a view of this one too.
--
-- The server takes nothing back of a migration that is broken off, so it may be run again.

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
