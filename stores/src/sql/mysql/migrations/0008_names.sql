-- What owners, tracks and segments are called. An app that has such names may put a view in its place.
--
-- The server takes nothing back of a migration that is broken off, so it may be run again.
CREATE TABLE IF NOT EXISTS names (
    kind VARCHAR(16) NOT NULL,
    id BIGINT NOT NULL,
    name VARCHAR(512) NOT NULL,
    PRIMARY KEY (kind, id)
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;
