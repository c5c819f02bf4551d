-- Moves erasures and the key of their hashes into records.
CREATE TABLE records (
    scope TEXT NOT NULL,
    name TEXT NOT NULL,
    version INTEGER NOT NULL,
    value TEXT NOT NULL,
    PRIMARY KEY (scope, name)
) STRICT, WITHOUT ROWID;
INSERT INTO records (scope, name, version, value)
    SELECT 'erasures', printf('%010d', number), 1, json_object(
        'kind', kind, 'person', lower(hex(person)), 'begun_at_ms', begun_at_ms, 'by', asked_by, 'reason', reason,
        'finished_at_ms', finished_at_ms, 'receipt', json(receipt))
    FROM erasures;
INSERT INTO records (scope, name, version, value)
    SELECT 'erasure key', 'key', 1, json_quote(lower(hex(key))) FROM secret;
DROP TABLE erasures;
DROP TABLE secret;
