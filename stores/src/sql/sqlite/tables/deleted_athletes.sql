-- Excludes deleted athletes from the counters of connected athletes.
CREATE INDEX connections_by_athlete ON connections (athlete_id);
CREATE TRIGGER athlete_connected AFTER INSERT ON connections WHEN NOT new.is_away BEGIN
    INSERT INTO connected (application_id, athletes) VALUES (new.application_id, 1)
    ON CONFLICT DO UPDATE SET athletes = athletes + 1;
END;
CREATE TRIGGER athlete_disconnected AFTER UPDATE ON connections WHEN new.live = 0 BEGIN
    DELETE FROM connections
    WHERE application_id = new.application_id AND athlete_id = new.athlete_id;
    UPDATE connected SET athletes = athletes - 1
    WHERE application_id = new.application_id AND NOT new.is_away;
END;
CREATE TRIGGER athlete_gone AFTER UPDATE ON connections
WHEN new.is_away AND NOT old.is_away BEGIN
    UPDATE connected SET athletes = athletes - 1
    WHERE application_id = new.application_id;
END;
CREATE TRIGGER athlete_back AFTER UPDATE ON connections
WHEN old.is_away AND NOT new.is_away BEGIN
    INSERT INTO connected (application_id, athletes) VALUES (new.application_id, 1)
    ON CONFLICT DO UPDATE SET athletes = athletes + 1;
END;
CREATE TRIGGER deleted_athlete_made AFTER INSERT ON athletes WHEN new.is_deleted BEGIN
    UPDATE connections SET is_away = 1 WHERE athlete_id = new.id AND NOT is_away;
END;
CREATE TRIGGER athlete_deleted AFTER UPDATE OF is_deleted ON athletes
WHEN new.is_deleted <> old.is_deleted BEGIN
    UPDATE connections SET is_away = new.is_deleted
    WHERE athlete_id = new.id AND is_away <> new.is_deleted;
END;
CREATE TRIGGER authorization_made AFTER INSERT ON authorizations
WHEN new.revoked_at_us IS NULL BEGIN
    INSERT INTO connections (application_id, athlete_id, live, is_away)
    VALUES (new.application_id, new.athlete_id, 1, coalesce(
        (SELECT is_deleted FROM athletes WHERE id = new.athlete_id), 0))
    ON CONFLICT DO UPDATE SET live = live + 1;
END;
CREATE TRIGGER authorization_restored AFTER UPDATE ON authorizations
WHEN old.revoked_at_us IS NOT NULL AND new.revoked_at_us IS NULL BEGIN
    INSERT INTO connections (application_id, athlete_id, live, is_away)
    VALUES (new.application_id, new.athlete_id, 1, coalesce(
        (SELECT is_deleted FROM athletes WHERE id = new.athlete_id), 0))
    ON CONFLICT DO UPDATE SET live = live + 1;
END;
