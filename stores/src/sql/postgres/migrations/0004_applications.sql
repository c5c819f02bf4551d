-- What those write who look after applications. All of it stands in tables of its own, since
-- applications may be a view of an app's own table.

-- Applications whose capacity is not enforced.
CREATE TABLE unlimited (
    application_id bigint PRIMARY KEY
);

-- What was changed of an application by whoever goes through Backstitch: action 'capacity' (how many athletes may connect) or 'enforcement'
-- (0 or 1).
CREATE TABLE application_audit (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    application_id bigint NOT NULL,
    at_ms bigint NOT NULL,
    actor text NOT NULL,
    action text NOT NULL,
    value_before bigint NOT NULL,
    value_after bigint NOT NULL,
    reason text,
    request_id bigint
);
CREATE INDEX application_audit_by_application ON application_audit (application_id, id);

-- What developers ask for: state 'open', 'granted' or 'refused'. Of an application one is open at most.
CREATE TABLE capacity_requests (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    application_id bigint NOT NULL,
    athlete_capacity bigint NOT NULL,
    asked_by text NOT NULL,
    reason text,
    asked_at_ms bigint NOT NULL,
    state text NOT NULL,
    decided_by text,
    answer text,
    decided_at_ms bigint,
    granted_capacity bigint
);
CREATE INDEX capacity_requests_by_application ON capacity_requests (application_id, state, id);
CREATE INDEX capacity_requests_by_state ON capacity_requests (state, id);
CREATE UNIQUE INDEX capacity_requests_open ON capacity_requests (application_id)
    WHERE state = 'open';

-- That much of a capacity came in use: 80, 90 or 100 %. A threshold is noted once while the capacity
-- stays: `armed` is set to NULL, which no other row equals, when the capacity changes. A row is done once
-- it is in the log and, where there is a webhook, delivered or given up.
CREATE TABLE capacity_notices (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    application_id bigint NOT NULL,
    threshold bigint NOT NULL,
    athlete_capacity bigint NOT NULL,
    connected bigint NOT NULL,
    made_at_ms bigint NOT NULL,
    armed bigint DEFAULT 1,
    topic_at_ms bigint,
    webhook_at_ms bigint,
    failed_at_ms bigint,
    tries bigint NOT NULL DEFAULT 0,
    last_error text,
    next_try_ms bigint NOT NULL DEFAULT 0,
    claimed_until_ms bigint NOT NULL DEFAULT 0,
    done bigint NOT NULL DEFAULT 0
);
CREATE UNIQUE INDEX capacity_notices_once
    ON capacity_notices (application_id, athlete_capacity, threshold, armed);
CREATE INDEX capacity_notices_by_application ON capacity_notices (application_id, id);
CREATE INDEX capacity_notices_waiting ON capacity_notices (id) WHERE done = 0;

-- Numbers of an app's own view may be larger than a hundredth of the largest bigint.
CREATE FUNCTION note_usage() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
BEGIN
    INSERT INTO capacity_notices
        (application_id, threshold, athlete_capacity, connected, made_at_ms)
    SELECT NEW.application_id, t.threshold, p.athlete_capacity, NEW.athletes, now_ms()
    FROM applications p CROSS JOIN (VALUES (80), (90), (100)) AS t (threshold)
    WHERE p.id = NEW.application_id AND (p.athlete_capacity > 0 OR t.threshold = 100)
        AND NEW.athletes::numeric * 100 >= p.athlete_capacity::numeric * t.threshold
    ORDER BY t.threshold ON CONFLICT DO NOTHING;
    RETURN NULL;
END $$;
CREATE TRIGGER more_connected AFTER UPDATE ON connected FOR EACH ROW
    WHEN (NEW.athletes > OLD.athletes) EXECUTE FUNCTION note_usage();
