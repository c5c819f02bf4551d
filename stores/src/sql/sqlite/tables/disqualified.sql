-- The athletes who are disqualified.
CREATE TABLE disqualified (
    athlete_id INTEGER PRIMARY KEY
) STRICT;
