-- The tables of entities. Times are microseconds since 1970, which represents all years.
--
-- Never change a released migration: its checksum is stored.

CREATE TABLE efforts (
    id bigint PRIMARY KEY,
    segment_id bigint NOT NULL,
    athlete_id bigint NOT NULL,
    activity_id bigint NOT NULL,
    elapsed_time_s bigint NOT NULL,
    started_at_us bigint NOT NULL,
    tz text NOT NULL DEFAULT 'UTC',
    is_hidden boolean NOT NULL DEFAULT false,
    is_deleted boolean NOT NULL DEFAULT false,
    version bigint NOT NULL DEFAULT 0
);
CREATE INDEX efforts_by_group ON efforts (segment_id, athlete_id, id);
CREATE INDEX efforts_by_athlete ON efforts (athlete_id, segment_id);

CREATE TABLE athletes (
    id bigint PRIMARY KEY,
    name text,
    gender text,
    birth_year bigint,
    weight_kg double precision,
    country text,
    is_deleted boolean NOT NULL DEFAULT false,
    version bigint NOT NULL DEFAULT 0
);

CREATE TABLE clubs (
    club_id bigint NOT NULL,
    athlete_id bigint NOT NULL,
    is_deleted boolean NOT NULL DEFAULT false,
    version bigint NOT NULL DEFAULT 0,
    PRIMARY KEY (club_id, athlete_id)
);

CREATE TABLE follows (
    follower_id bigint NOT NULL,
    followed_id bigint NOT NULL,
    is_deleted boolean NOT NULL DEFAULT false,
    version bigint NOT NULL DEFAULT 0,
    PRIMARY KEY (follower_id, followed_id)
);

-- The owner is JSON, stored as text so that it is returned unchanged.
CREATE TABLE applications (
    id bigint PRIMARY KEY,
    name text NOT NULL,
    owner text NOT NULL,
    athlete_capacity bigint NOT NULL,
    version bigint NOT NULL DEFAULT 0
);

CREATE TABLE authorizations (
    id bigint PRIMARY KEY,
    application_id bigint NOT NULL,
    athlete_id bigint NOT NULL,
    created_at_us bigint NOT NULL,
    revoked_at_us bigint,
    version bigint NOT NULL DEFAULT 0
);
CREATE INDEX authorizations_by_group ON authorizations (application_id, athlete_id, id);

-- The number of unrevoked authorizations of each pair that has any. Triggers maintain it.
CREATE TABLE connections (
    application_id bigint NOT NULL,
    athlete_id bigint NOT NULL,
    live bigint NOT NULL,
    PRIMARY KEY (application_id, athlete_id)
);

-- The number of athletes with unrevoked authorizations. Triggers maintain it. A transaction that changes authorizations of an
-- application locks this row until the commit.
CREATE TABLE connected (
    application_id bigint PRIMARY KEY,
    athletes bigint NOT NULL DEFAULT 0 CHECK (athletes >= 0)
);

-- Notifications that are not in the log yet: a group of efforts or authorizations, or (source 'athletes', key 0) an athlete, which
-- stands for all groups of the athlete's efforts. Rows are deleted when they are in the log.
CREATE TABLE outbox (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    source text NOT NULL,
    group_key bigint NOT NULL,
    member bigint NOT NULL,
    made_at_ms bigint NOT NULL
);
CREATE INDEX outbox_by_source ON outbox (source, id);
