-- What owners, tracks and segments are called. An app that has such names may put a view in its place.
CREATE TABLE names (
    kind text NOT NULL,
    id bigint NOT NULL,
    name text NOT NULL,
    PRIMARY KEY (kind, id)
);
