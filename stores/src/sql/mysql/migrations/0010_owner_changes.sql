-- The owner of an application before and after a change by a line (action 'owner'), as JSON.
--
-- MySQL does not roll back a migration that fails, so it may be run again.
SET @statement = IF(
    EXISTS (SELECT 1 FROM information_schema.columns WHERE table_schema = DATABASE()
        AND table_name = 'application_audit' AND column_name = 'owner_before'),
    'DO 0',
    'ALTER TABLE application_audit ADD COLUMN owner_before TEXT, ADD COLUMN owner_after TEXT');
PREPARE migration FROM @statement;
EXECUTE migration;
DEALLOCATE PREPARE migration;
