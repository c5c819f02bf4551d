-- Recounts of connected athletes. A recount first draws a number (`begun`), and is recorded with it
-- (`ticket`) unless a later one is recorded.
CREATE TABLE recounts (
    application_id INTEGER PRIMARY KEY,
    begun INTEGER NOT NULL DEFAULT 0,
    ticket INTEGER NOT NULL DEFAULT 0,
    connected INTEGER,
    counted_at_ms INTEGER
) STRICT;
