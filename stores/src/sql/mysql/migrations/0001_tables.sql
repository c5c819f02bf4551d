-- The tables of entities. Times are microseconds since 1970, so that no year is too far out. Texts are
-- compared by their bytes.
--
-- A migration that was released never changes: its checksum is kept. The server takes nothing back of
-- one that is broken off, so it may be run again.

CREATE TABLE IF NOT EXISTS efforts (
    id BIGINT NOT NULL PRIMARY KEY,
    segment_id BIGINT NOT NULL,
    athlete_id BIGINT NOT NULL,
    activity_id BIGINT NOT NULL,
    elapsed_time_s BIGINT NOT NULL,
    started_at_us BIGINT NOT NULL,
    tz VARCHAR(255) NOT NULL DEFAULT 'UTC',
    is_hidden BOOLEAN NOT NULL DEFAULT FALSE,
    is_deleted BOOLEAN NOT NULL DEFAULT FALSE,
    version BIGINT NOT NULL DEFAULT 0,
    KEY efforts_by_group (segment_id, athlete_id, id),
    KEY efforts_by_athlete (athlete_id, segment_id)
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

CREATE TABLE IF NOT EXISTS athletes (
    id BIGINT NOT NULL PRIMARY KEY,
    name VARCHAR(1024),
    gender VARCHAR(16),
    birth_year BIGINT,
    weight_kg DOUBLE,
    country VARCHAR(255),
    is_deleted BOOLEAN NOT NULL DEFAULT FALSE,
    version BIGINT NOT NULL DEFAULT 0
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

CREATE TABLE IF NOT EXISTS clubs (
    club_id BIGINT NOT NULL,
    athlete_id BIGINT NOT NULL,
    is_deleted BOOLEAN NOT NULL DEFAULT FALSE,
    version BIGINT NOT NULL DEFAULT 0,
    PRIMARY KEY (club_id, athlete_id)
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

CREATE TABLE IF NOT EXISTS follows (
    follower_id BIGINT NOT NULL,
    followed_id BIGINT NOT NULL,
    is_deleted BOOLEAN NOT NULL DEFAULT FALSE,
    version BIGINT NOT NULL DEFAULT 0,
    PRIMARY KEY (follower_id, followed_id)
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

-- The owner is JSON as text: it comes back as it was given.
CREATE TABLE IF NOT EXISTS applications (
    id BIGINT NOT NULL PRIMARY KEY,
    name VARCHAR(1024) NOT NULL,
    owner TEXT NOT NULL,
    athlete_capacity BIGINT NOT NULL,
    version BIGINT NOT NULL DEFAULT 0
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

CREATE TABLE IF NOT EXISTS authorizations (
    id BIGINT NOT NULL PRIMARY KEY,
    application_id BIGINT NOT NULL,
    athlete_id BIGINT NOT NULL,
    created_at_us BIGINT NOT NULL,
    revoked_at_us BIGINT,
    version BIGINT NOT NULL DEFAULT 0,
    KEY authorizations_by_group (application_id, athlete_id, id)
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

-- How many authorizations of a pair are not revoked, where there is one. Triggers keep it.
CREATE TABLE IF NOT EXISTS connections (
    application_id BIGINT NOT NULL,
    athlete_id BIGINT NOT NULL,
    live BIGINT NOT NULL,
    PRIMARY KEY (application_id, athlete_id)
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

-- How many different athletes have an authorization that is not revoked. Triggers keep it, and
-- whoever changes authorizations of an application holds its row until the commit.
CREATE TABLE IF NOT EXISTS connected (
    application_id BIGINT NOT NULL PRIMARY KEY,
    athletes BIGINT NOT NULL DEFAULT 0 CHECK (athletes >= 0)
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

-- What is yet to be told to the log: a group of efforts or authorizations, or (source 'athletes', key
-- 0) an athlete, all of whose groups of efforts are meant. Rows are deleted once they are in it. Who made a row is a number
-- by chance, by which a transaction finds its own.
CREATE TABLE IF NOT EXISTS outbox (
    id BIGINT NOT NULL AUTO_INCREMENT PRIMARY KEY,
    source VARCHAR(32) NOT NULL,
    group_key BIGINT NOT NULL,
    member BIGINT NOT NULL,
    made_at_ms BIGINT NOT NULL,
    made_by BIGINT NOT NULL DEFAULT 0,
    KEY outbox_by_source (source, id)
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

-- Until the commit, either many change efforts of some athletes, or one changes these athletes and tells
-- of their groups at once, as the adapter does. Otherwise an effort that is being added would be told
-- of before the change of its athlete is visible, and the change would not find it. Each row stands for
-- the athletes with these last bits.
CREATE TABLE IF NOT EXISTS athlete_locks (
    bucket BIGINT NOT NULL PRIMARY KEY
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;
INSERT IGNORE INTO athlete_locks (bucket) VALUES
    (0), (1), (2), (3), (4), (5), (6), (7), (8), (9), (10), (11), (12), (13), (14), (15),
    (16), (17), (18), (19), (20), (21), (22), (23), (24), (25), (26), (27), (28), (29), (30), (31),
    (32), (33), (34), (35), (36), (37), (38), (39), (40), (41), (42), (43), (44), (45), (46), (47),
    (48), (49), (50), (51), (52), (53), (54), (55), (56), (57), (58), (59), (60), (61), (62), (63);
