-- Actions that are recorded in a transaction of their own have an id, by which a retry after a lost response finds the record.
ALTER TABLE admin_actions ADD COLUMN id text UNIQUE;
