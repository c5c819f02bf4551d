-- The calls that made and decided a request for capacity, by which a call recognizes its own work.
ALTER TABLE capacity_requests ADD COLUMN request_token TEXT;
ALTER TABLE capacity_requests ADD COLUMN decision_token TEXT;
