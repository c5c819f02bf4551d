-- The calls that changed an application, and that made and decided a request for capacity.
ALTER TABLE capacity_requests ADD COLUMN request_token TEXT;
ALTER TABLE capacity_requests ADD COLUMN decision_token TEXT;
ALTER TABLE application_audit ADD COLUMN call_token TEXT;
