-- The calls that changed an application, and that made and decided a request for capacity. A call whose COMMIT was not answered
-- is repeated, and recognizes its own work by its token.
ALTER TABLE capacity_requests ADD COLUMN request_token text;
ALTER TABLE capacity_requests ADD COLUMN decision_token text;
ALTER TABLE application_audit ADD COLUMN call_token text;
