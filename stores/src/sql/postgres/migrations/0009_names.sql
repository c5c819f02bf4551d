-- Names of owners, tracks and segments. An app with such names may replace this table by a view.
CREATE TABLE names (
    kind text NOT NULL,
    id bigint NOT NULL,
    name text NOT NULL,
    PRIMARY KEY (kind, id)
);
