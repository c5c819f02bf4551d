-- Tokens of the calls that changed an application, or added or decided a capacity request.
ALTER TABLE capacity_requests ADD COLUMN request_token TEXT;
ALTER TABLE capacity_requests ADD COLUMN decision_token TEXT;
ALTER TABLE application_audit ADD COLUMN call_token TEXT;
