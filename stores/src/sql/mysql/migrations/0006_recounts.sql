-- Counts of connected athletes that are made anew from the authorizations, of applications that are counted so. A
-- recount draws a number first (`begun`) and is recorded with it (`ticket`) unless a later one is: of two
-- that overlap the one that began later stays. Nothing is recorded yet where `connected` is NULL.
--
-- The server takes nothing back of a migration that is broken off, so it may be run again.
CREATE TABLE IF NOT EXISTS recounts (
    application_id BIGINT NOT NULL PRIMARY KEY,
    begun BIGINT NOT NULL DEFAULT 0,
    ticket BIGINT NOT NULL DEFAULT 0,
    connected BIGINT,
    counted_at_ms BIGINT
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;
