-- Usage of applications: enforcement, audit, capacity requests and notices.
CREATE TABLE unlimited (
    application_id INTEGER PRIMARY KEY
) STRICT;
CREATE TABLE application_audit (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    application_id INTEGER NOT NULL,
    at_ms INTEGER NOT NULL,
    actor TEXT NOT NULL,
    action TEXT NOT NULL,
    value_before INTEGER NOT NULL,
    value_after INTEGER NOT NULL,
    reason TEXT,
    request_id INTEGER
) STRICT;
CREATE INDEX application_audit_by_application ON application_audit (application_id, id);
CREATE TABLE capacity_requests (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    application_id INTEGER NOT NULL,
    athlete_capacity INTEGER NOT NULL,
    asked_by TEXT NOT NULL,
    reason TEXT,
    asked_at_ms INTEGER NOT NULL,
    state TEXT NOT NULL,
    decided_by TEXT,
    answer TEXT,
    decided_at_ms INTEGER,
    granted_capacity INTEGER
) STRICT;
CREATE INDEX capacity_requests_by_application
    ON capacity_requests (application_id, state, id);
CREATE INDEX capacity_requests_by_state ON capacity_requests (state, id);
CREATE UNIQUE INDEX capacity_requests_open ON capacity_requests (application_id)
    WHERE state = 'open';
CREATE TABLE capacity_notices (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    application_id INTEGER NOT NULL,
    threshold INTEGER NOT NULL,
    athlete_capacity INTEGER NOT NULL,
    connected INTEGER NOT NULL,
    made_at_ms INTEGER NOT NULL,
    armed INTEGER DEFAULT 1,
    topic_at_ms INTEGER,
    webhook_at_ms INTEGER,
    failed_at_ms INTEGER,
    tries INTEGER NOT NULL DEFAULT 0,
    last_error TEXT,
    next_try_ms INTEGER NOT NULL DEFAULT 0,
    claimed_until_ms INTEGER NOT NULL DEFAULT 0,
    done INTEGER NOT NULL DEFAULT 0
) STRICT;
CREATE UNIQUE INDEX capacity_notices_once
    ON capacity_notices (application_id, athlete_capacity, threshold, armed);
CREATE INDEX capacity_notices_by_application ON capacity_notices (application_id, id);
CREATE INDEX capacity_notices_waiting ON capacity_notices (id) WHERE done = 0;
CREATE VIEW usage_to_note AS
    SELECT c.application_id, t.threshold, p.athlete_capacity, c.athletes AS connected,
        CAST(unixepoch('subsec') * 1000 AS INTEGER) AS made_at_ms
    FROM connected c JOIN applications p ON p.id = c.application_id
    CROSS JOIN (SELECT 80 AS threshold UNION ALL SELECT 90 UNION ALL SELECT 100) t
    WHERE (p.athlete_capacity > 0 OR t.threshold = 100)
        AND c.athletes * 100 >= p.athlete_capacity * t.threshold
        AND NOT EXISTS (SELECT 1 FROM capacity_notices n
            WHERE n.application_id = c.application_id AND n.threshold = t.threshold
                AND n.athlete_capacity = p.athlete_capacity AND n.armed = 1)
    ORDER BY t.threshold;
CREATE TRIGGER first_connected AFTER INSERT ON connected BEGIN
    INSERT INTO capacity_notices
        (application_id, threshold, athlete_capacity, connected, made_at_ms)
    SELECT * FROM usage_to_note WHERE application_id = new.application_id;
END;
CREATE TRIGGER more_connected AFTER UPDATE ON connected
WHEN new.athletes > old.athletes BEGIN
    INSERT INTO capacity_notices
        (application_id, threshold, athlete_capacity, connected, made_at_ms)
    SELECT * FROM usage_to_note WHERE application_id = new.application_id;
END;
