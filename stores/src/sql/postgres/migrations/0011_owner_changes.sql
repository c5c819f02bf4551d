-- The owner of an application before and after a change by a line (action 'owner'), as JSON.
ALTER TABLE application_audit ADD COLUMN owner_before text;
ALTER TABLE application_audit ADD COLUMN owner_after text;
