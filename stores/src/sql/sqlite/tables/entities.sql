-- Efforts and authorizations are stored by id. Ids increase with time, so new rows are written to
-- adjacent pages. An index orders them by group.
--
-- The segments of an athlete are looked up only when the athlete changes. Sorting them row by row
-- would double the cost of a write, so new ones are added to a heap (`new_athlete_segments`) and
-- sorted in bulk.
--
-- Triggers maintain the counters of connected athletes, so that every change of an authorization
-- updates them.
CREATE TABLE efforts (
    id INTEGER PRIMARY KEY,
    segment_id INTEGER NOT NULL,
    athlete_id INTEGER NOT NULL,
    activity_id INTEGER NOT NULL,
    elapsed_time_s INTEGER NOT NULL,
    started_at_us INTEGER NOT NULL,
    tz TEXT NOT NULL,
    is_hidden INTEGER NOT NULL,
    is_deleted INTEGER NOT NULL,
    version INTEGER NOT NULL
) STRICT;
CREATE INDEX efforts_by_group ON efforts (segment_id, athlete_id);
CREATE TABLE athlete_segments (
    athlete_id INTEGER NOT NULL,
    segment_id INTEGER NOT NULL,
    PRIMARY KEY (athlete_id, segment_id)
) STRICT, WITHOUT ROWID;
CREATE TABLE new_athlete_segments (
    id INTEGER PRIMARY KEY,
    athlete_id INTEGER NOT NULL,
    segment_id INTEGER NOT NULL
) STRICT;
CREATE TABLE athletes (
    id INTEGER PRIMARY KEY,
    name TEXT,
    gender TEXT,
    birth_year INTEGER,
    weight_kg REAL,
    country TEXT,
    is_deleted INTEGER NOT NULL,
    version INTEGER NOT NULL
) STRICT;
CREATE TABLE clubs (
    club_id INTEGER NOT NULL,
    athlete_id INTEGER NOT NULL,
    is_deleted INTEGER NOT NULL,
    version INTEGER NOT NULL,
    PRIMARY KEY (club_id, athlete_id)
) STRICT, WITHOUT ROWID;
CREATE TABLE follows (
    follower_id INTEGER NOT NULL,
    followed_id INTEGER NOT NULL,
    is_deleted INTEGER NOT NULL,
    version INTEGER NOT NULL,
    PRIMARY KEY (follower_id, followed_id)
) STRICT, WITHOUT ROWID;
CREATE TABLE applications (
    id INTEGER PRIMARY KEY,
    name TEXT NOT NULL,
    owner TEXT NOT NULL,
    athlete_capacity INTEGER NOT NULL,
    version INTEGER NOT NULL
) STRICT;
CREATE TABLE authorizations (
    id INTEGER PRIMARY KEY,
    application_id INTEGER NOT NULL,
    athlete_id INTEGER NOT NULL,
    created_at_us INTEGER NOT NULL,
    revoked_at_us INTEGER,
    version INTEGER NOT NULL
) STRICT;
CREATE INDEX authorizations_by_group ON authorizations (application_id, athlete_id);
CREATE TABLE connections (
    application_id INTEGER NOT NULL,
    athlete_id INTEGER NOT NULL,
    live INTEGER NOT NULL CHECK (live >= 0),
    is_away INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (application_id, athlete_id)
) STRICT, WITHOUT ROWID;
CREATE TABLE connected (
    application_id INTEGER PRIMARY KEY,
    athletes INTEGER NOT NULL CHECK (athletes >= 0)
) STRICT;
CREATE TRIGGER authorization_revoked AFTER UPDATE ON authorizations
WHEN old.revoked_at_us IS NULL AND new.revoked_at_us IS NOT NULL BEGIN
    UPDATE connections SET live = live - 1
    WHERE application_id = old.application_id AND athlete_id = old.athlete_id;
END;
CREATE TRIGGER authorization_removed AFTER DELETE ON authorizations
WHEN old.revoked_at_us IS NULL BEGIN
    UPDATE connections SET live = live - 1
    WHERE application_id = old.application_id AND athlete_id = old.athlete_id;
END;
CREATE TABLE outbox (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    source TEXT NOT NULL,
    group_key INTEGER NOT NULL,
    member INTEGER NOT NULL,
    made_at_ms INTEGER NOT NULL
) STRICT;
