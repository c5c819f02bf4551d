-- Names of owners, tracks and segments. An app with such names may replace this table by a view.
--
-- MySQL does not roll back a migration that fails, so it can be run again.
CREATE TABLE IF NOT EXISTS names (
    kind VARCHAR(16) NOT NULL,
    id BIGINT NOT NULL,
    name VARCHAR(512) NOT NULL,
    PRIMARY KEY (kind, id)
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;
