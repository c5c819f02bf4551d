-- Tokens of the calls that changed an application, or added or decided a capacity request. A retry after a lost response to COMMIT
-- recognizes its own changes by the token.
--
-- MySQL does not roll back a migration that fails, so it can be run again.
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
