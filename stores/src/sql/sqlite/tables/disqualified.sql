-- Disqualified athletes.
CREATE TABLE disqualified (
    athlete_id INTEGER PRIMARY KEY
) STRICT;
