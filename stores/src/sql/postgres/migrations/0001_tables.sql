-- The tables of entities. Times are microseconds since 1970, so that no year is too far out.
--
-- A migration that was released never changes: its checksum is kept.

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

-- The owner is JSON as text: it comes back as it was given.
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

-- How many authorizations of a pair are not revoked, where there is one. Triggers keep it.
CREATE TABLE connections (
    application_id bigint NOT NULL,
    athlete_id bigint NOT NULL,
    live bigint NOT NULL,
    PRIMARY KEY (application_id, athlete_id)
);

-- How many different athletes have an authorization that is not revoked. Triggers keep it, and
-- whoever changes authorizations of an application holds its row until the commit.
CREATE TABLE connected (
    application_id bigint PRIMARY KEY,
    athletes bigint NOT NULL DEFAULT 0 CHECK (athletes >= 0)
);

-- What is yet to be told to the log: a group of efforts or authorizations, or (source 'athletes', key
-- 0) an athlete, all of whose groups of efforts are meant. Rows are deleted once they are in it.
CREATE TABLE outbox (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    source text NOT NULL,
    group_key bigint NOT NULL,
    member bigint NOT NULL,
    made_at_ms bigint NOT NULL
);
CREATE INDEX outbox_by_source ON outbox (source, id);
