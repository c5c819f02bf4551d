-- Excludes deleted athletes from the counters. Each pair says whether its athlete is deleted, so that a counter decreases only by
-- pairs that it includes.
--
-- MySQL does not roll back a migration that fails, so it can be run again.

SET @statement = IF(
    EXISTS (SELECT 1 FROM information_schema.columns WHERE table_schema = DATABASE()
        AND table_name = 'connections' AND column_name = 'is_away'),
    'DO 0',
    'ALTER TABLE connections ADD COLUMN is_away BOOLEAN NOT NULL DEFAULT FALSE,
        ADD INDEX connections_by_athlete (athlete_id)');
PREPARE migration FROM @statement;
EXECUTE migration;
DEALLOCATE PREPARE migration;

-- A new pair counts until its notification is processed, and is compared with its athlete then. A trigger that reads the athlete
-- would lock the athlete's row at any isolation level.
DROP TRIGGER IF EXISTS athlete_connected;
CREATE TRIGGER athlete_connected AFTER INSERT ON connections FOR EACH ROW
BEGIN
    IF NEW.live > 0 AND NOT NEW.is_away THEN
        UPDATE connected SET athletes = athletes + 1 WHERE application_id = NEW.application_id;
    END IF;
END;

-- A pair without authorizations remains with 0, because a trigger cannot delete the row for which it was fired.
DROP TRIGGER IF EXISTS athlete_moved;
CREATE TRIGGER athlete_moved AFTER UPDATE ON connections FOR EACH ROW
BEGIN
    IF OLD.live > 0 AND NOT OLD.is_away AND (NEW.live <= 0 OR NEW.is_away) THEN
        UPDATE connected SET athletes = athletes - 1 WHERE application_id = NEW.application_id;
    ELSEIF (OLD.live <= 0 OR OLD.is_away) AND NEW.live > 0 AND NOT NEW.is_away THEN
        UPDATE connected SET athletes = athletes + 1 WHERE application_id = NEW.application_id;
    END IF;
END;
