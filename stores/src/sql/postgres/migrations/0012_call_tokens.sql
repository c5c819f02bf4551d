-- Tokens of the calls that changed an application, or added or decided a capacity request. A retry after a lost response to COMMIT
-- recognizes its own changes by the token.
ALTER TABLE capacity_requests ADD COLUMN request_token text;
ALTER TABLE capacity_requests ADD COLUMN decision_token text;
ALTER TABLE application_audit ADD COLUMN call_token text;
