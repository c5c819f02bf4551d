-- Recounts of connected athletes, for applications that are counted by queries. A recount first draws a number (`begun`), and is
-- recorded with it (`ticket`) unless a later one is recorded. So of two overlapping recounts, the one that started later stays.
-- `connected` is NULL until a recount is recorded.
--
-- MySQL does not roll back a migration that fails, so it can be run again.
CREATE TABLE IF NOT EXISTS recounts (
    application_id BIGINT NOT NULL PRIMARY KEY,
    begun BIGINT NOT NULL DEFAULT 0,
    ticket BIGINT NOT NULL DEFAULT 0,
    connected BIGINT,
    counted_at_ms BIGINT
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;
