-- Recounts of connected athletes, for applications that are counted by queries. A recount first draws a number (`begun`), and is
-- recorded with it (`ticket`) unless a later one is recorded. So of two overlapping recounts, the one that started later stays.
-- `connected` is NULL until a recount is recorded.
CREATE TABLE recounts (
    application_id bigint PRIMARY KEY,
    begun bigint NOT NULL DEFAULT 0,
    ticket bigint NOT NULL DEFAULT 0,
    connected bigint,
    counted_at_ms bigint
);
