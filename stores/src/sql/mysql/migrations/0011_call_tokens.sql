-- The calls that changed an application, and that made and decided a request for capacity. A call whose COMMIT was not answered
-- is repeated, and recognizes its own work by its token.
--
-- MySQL does not roll back a migration that fails, so it may be run again.
SET @statement = IF(
    EXISTS (SELECT 1 FROM information_schema.columns WHERE table_schema = DATABASE()
        AND table_name = 'capacity_requests' AND column_name = 'request_token'),
    'DO 0',
    'ALTER TABLE capacity_requests ADD COLUMN request_token VARCHAR(64), ADD COLUMN decision_token VARCHAR(64)');
PREPARE migration FROM @statement;
EXECUTE migration;
DEALLOCATE PREPARE migration;

SET @statement = IF(
    EXISTS (SELECT 1 FROM information_schema.columns WHERE table_schema = DATABASE()
        AND table_name = 'application_audit' AND column_name = 'call_token'),
    'DO 0',
    'ALTER TABLE application_audit ADD COLUMN call_token VARCHAR(64)');
PREPARE migration FROM @statement;
EXECUTE migration;
DEALLOCATE PREPARE migration;
