-- Actions that are recorded in a transaction of their own have an id, by which a retry after a lost response finds the record.
--
-- MySQL does not roll back a migration that fails, so it can be run again.
SET @statement = IF(
    EXISTS (SELECT 1 FROM information_schema.columns WHERE table_schema = DATABASE()
        AND table_name = 'admin_actions' AND column_name = 'id'),
    'DO 0',
    'ALTER TABLE admin_actions ADD COLUMN id VARCHAR(64) UNIQUE');
PREPARE migration FROM @statement;
EXECUTE migration;
DEALLOCATE PREPARE migration;
