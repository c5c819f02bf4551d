-- What is recorded by itself, and not with what it tells of, has an id: a try whose end was not heard of is found by it.
ALTER TABLE admin_actions ADD COLUMN id text UNIQUE;
