-- Counts of connected athletes that are made anew from the authorizations, of applications that are counted so. A
-- recount draws a number first (`begun`) and is recorded with it (`ticket`) unless a later one is: of two
-- that overlap the one that began later stays. Nothing is recorded yet where `connected` is NULL.
CREATE TABLE recounts (
    application_id bigint PRIMARY KEY,
    begun bigint NOT NULL DEFAULT 0,
    ticket bigint NOT NULL DEFAULT 0,
    connected bigint,
    counted_at_ms bigint
);
