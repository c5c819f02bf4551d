-- Athletes who are deleted are connected to nothing: the counters leave them out, and whether that is so
-- stands beside each pair, since a counter may only fall by what it rose by.
--
-- The server takes nothing back of a migration that is broken off, so it may be run again.

SET @statement = IF(
    EXISTS (SELECT 1 FROM information_schema.columns WHERE table_schema = DATABASE()
        AND table_name = 'connections' AND column_name = 'is_away'),
    'DO 0',
    'ALTER TABLE connections ADD COLUMN is_away BOOLEAN NOT NULL DEFAULT FALSE,
        ADD INDEX connections_by_athlete (athlete_id)');
PREPARE migration FROM @statement;
EXECUTE migration;
DEALLOCATE PREPARE migration;

-- A new pair counts until it is told of, and is compared with its athlete then: a trigger would hold the athlete's row
-- for whatever it reads of it, however the transaction is isolated.
DROP TRIGGER IF EXISTS athlete_connected;
CREATE TRIGGER athlete_connected AFTER INSERT ON connections FOR EACH ROW
BEGIN
    IF NEW.live > 0 AND NOT NEW.is_away THEN
        UPDATE connected SET athletes = athletes + 1 WHERE application_id = NEW.application_id;
    END IF;
END;

-- A pair that has none any more stays with 0: a trigger can't delete the row that it is called for.
DROP TRIGGER IF EXISTS athlete_moved;
CREATE TRIGGER athlete_moved AFTER UPDATE ON connections FOR EACH ROW
BEGIN
    IF OLD.live > 0 AND NOT OLD.is_away AND (NEW.live <= 0 OR NEW.is_away) THEN
        UPDATE connected SET athletes = athletes - 1 WHERE application_id = NEW.application_id;
    ELSEIF (OLD.live <= 0 OR OLD.is_away) AND NEW.live > 0 AND NOT NEW.is_away THEN
        UPDATE connected SET athletes = athletes + 1 WHERE application_id = NEW.application_id;
    END IF;
END;
