-- Moves comparisons, their numbers and the notes into records.
ALTER TABLE notes RENAME TO records;
INSERT INTO records (scope, name, version, value)
    SELECT printf('reconciliations %s %010d', source, number / 1000), printf('%010d', number), 1,
        json_object('id', id, 'at_ms', at_ms, 'record', json(record))
    FROM reconciliations;
INSERT INTO records (scope, name, version, value)
    SELECT 'numbers', numbers.source, 1, json_object(
        'oldest', coalesce((SELECT min(number) FROM reconciliations WHERE source = numbers.source), newest + 1),
        'newest', newest)
    FROM numbers;
DROP TABLE reconciliations;
DROP TABLE numbers;
