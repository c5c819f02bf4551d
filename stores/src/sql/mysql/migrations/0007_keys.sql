-- Keys of the API: of each a digest. A key that is over stays as a row, so that its id is never given again and an
-- installation without a key that is valid lets nobody in.
--
-- The server takes nothing back of a migration that is broken off, so it may be run again.
CREATE TABLE IF NOT EXISTS api_keys (
    number BIGINT NOT NULL AUTO_INCREMENT PRIMARY KEY,
    id VARCHAR(64) NOT NULL UNIQUE,
    name VARCHAR(128) NOT NULL,
    scopes TEXT NOT NULL,
    digest VARCHAR(64) NOT NULL,
    made_at_ms BIGINT NOT NULL,
    made_by VARCHAR(1024) NOT NULL,
    expires_at_ms BIGINT,
    revoked_at_ms BIGINT,
    revoked_by VARCHAR(1024),
    replaced_by VARCHAR(64),
    used_at_ms BIGINT
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

-- What administrators did.
CREATE TABLE IF NOT EXISTS admin_actions (
    number BIGINT NOT NULL AUTO_INCREMENT PRIMARY KEY,
    at_ms BIGINT NOT NULL,
    actor VARCHAR(1024) NOT NULL,
    action VARCHAR(64) NOT NULL,
    target VARCHAR(1024) NOT NULL,
    detail TEXT
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;
