-- The owner of an application before and after a change by an ingested row (action 'owner'), as
-- JSON.
ALTER TABLE application_audit ADD COLUMN owner_before TEXT;
ALTER TABLE application_audit ADD COLUMN owner_after TEXT;
