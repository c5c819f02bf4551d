-- What those write who look after applications. All of it stands in tables of its own, since
-- applications may be a view of an app's own table.
--
-- The server takes nothing back of a migration that is broken off, so it may be run again.

-- Applications whose capacity is not enforced.
CREATE TABLE IF NOT EXISTS unlimited (
    application_id BIGINT NOT NULL PRIMARY KEY
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

-- What was changed of an application by whoever goes through Backstitch: action 'capacity' (how many athletes may connect) or 'enforcement'
-- (0 or 1).
CREATE TABLE IF NOT EXISTS application_audit (
    id BIGINT NOT NULL AUTO_INCREMENT PRIMARY KEY,
    application_id BIGINT NOT NULL,
    at_ms BIGINT NOT NULL,
    actor VARCHAR(1024) NOT NULL,
    action VARCHAR(32) NOT NULL,
    value_before BIGINT NOT NULL,
    value_after BIGINT NOT NULL,
    reason VARCHAR(1024),
    request_id BIGINT,
    KEY application_audit_by_application (application_id, id)
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

-- What developers ask for: state 'open', 'granted' or 'refused'. Of an application one is open at most:
-- whoever makes one holds the application's row of connected.
CREATE TABLE IF NOT EXISTS capacity_requests (
    id BIGINT NOT NULL AUTO_INCREMENT PRIMARY KEY,
    application_id BIGINT NOT NULL,
    athlete_capacity BIGINT NOT NULL,
    asked_by VARCHAR(1024) NOT NULL,
    reason VARCHAR(1024),
    asked_at_ms BIGINT NOT NULL,
    state VARCHAR(32) NOT NULL,
    decided_by VARCHAR(1024),
    answer VARCHAR(1024),
    decided_at_ms BIGINT,
    granted_capacity BIGINT,
    KEY capacity_requests_by_application (application_id, state, id),
    KEY capacity_requests_by_state (state, id)
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

-- That much of a capacity came in use: 80, 90 or 100 %. A threshold is noted once while the capacity
-- stays: `armed` is set to NULL, which no other row equals, when the capacity changes. A row is done once
-- it is in the log and, where there is a webhook, delivered or given up.
CREATE TABLE IF NOT EXISTS capacity_notices (
    id BIGINT NOT NULL AUTO_INCREMENT PRIMARY KEY,
    application_id BIGINT NOT NULL,
    threshold BIGINT NOT NULL,
    athlete_capacity BIGINT NOT NULL,
    connected BIGINT NOT NULL,
    made_at_ms BIGINT NOT NULL,
    armed BIGINT DEFAULT 1,
    topic_at_ms BIGINT,
    webhook_at_ms BIGINT,
    failed_at_ms BIGINT,
    tries BIGINT NOT NULL DEFAULT 0,
    last_error VARCHAR(1024),
    next_try_ms BIGINT NOT NULL DEFAULT 0,
    claimed_until_ms BIGINT NOT NULL DEFAULT 0,
    done BIGINT NOT NULL DEFAULT 0,
    UNIQUE KEY capacity_notices_once (application_id, athlete_capacity, threshold, armed),
    KEY capacity_notices_by_application (application_id, id),
    KEY capacity_notices_waiting (done, id)
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

-- Numbers of an app's own view may be larger than a hundredth of the largest BIGINT.
DROP TRIGGER IF EXISTS more_connected;
CREATE TRIGGER more_connected AFTER UPDATE ON connected FOR EACH ROW
BEGIN
    IF NEW.athletes > OLD.athletes THEN
        INSERT INTO capacity_notices
            (application_id, threshold, athlete_capacity, connected, made_at_ms)
        SELECT NEW.application_id, t.threshold, p.athlete_capacity, NEW.athletes,
            FLOOR(UNIX_TIMESTAMP(NOW(3)) * 1000)
        FROM applications p
        CROSS JOIN (SELECT 80 AS threshold UNION ALL SELECT 90 UNION ALL SELECT 100) AS t
        WHERE p.id = NEW.application_id AND (p.athlete_capacity > 0 OR t.threshold = 100)
            AND CAST(NEW.athletes AS DECIMAL(30)) * 100
                >= CAST(p.athlete_capacity AS DECIMAL(30)) * t.threshold
            AND NOT EXISTS (SELECT 1 FROM capacity_notices n
                WHERE n.application_id = NEW.application_id AND n.threshold = t.threshold
                    AND n.athlete_capacity = p.athlete_capacity AND n.armed = 1)
        ORDER BY t.threshold;
    END IF;
END;
