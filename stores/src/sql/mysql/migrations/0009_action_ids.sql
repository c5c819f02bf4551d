-- What is recorded by itself, and not with what it tells of, has an id: a try whose end was not heard of is found by it.
--
-- The server takes nothing back of a migration that is broken off, so it may be run again.
SET @statement = IF(
    EXISTS (SELECT 1 FROM information_schema.columns WHERE table_schema = DATABASE()
        AND table_name = 'admin_actions' AND column_name = 'id'),
    'DO 0',
    'ALTER TABLE admin_actions ADD COLUMN id VARCHAR(64) UNIQUE');
PREPARE migration FROM @statement;
EXECUTE migration;
DEALLOCATE PREPARE migration;
