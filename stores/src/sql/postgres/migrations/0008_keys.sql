-- Keys of the API: of each a digest. A key that is over stays as a row, so that its id is never given again and an
-- installation without a key that is valid lets nobody in.
CREATE TABLE api_keys (
    number bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    id text NOT NULL UNIQUE,
    name text NOT NULL,
    scopes text NOT NULL,
    digest text NOT NULL,
    made_at_ms bigint NOT NULL,
    made_by text NOT NULL,
    expires_at_ms bigint,
    revoked_at_ms bigint,
    revoked_by text,
    replaced_by text,
    used_at_ms bigint
);

-- What administrators did.
CREATE TABLE admin_actions (
    number bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    at_ms bigint NOT NULL,
    actor text NOT NULL,
    action text NOT NULL,
    target text NOT NULL,
    detail text
);
