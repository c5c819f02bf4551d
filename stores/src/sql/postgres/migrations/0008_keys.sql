-- API keys, with their digests. Rows of inactive keys remain, so that ids are never reused, and an installation whose keys are all
-- inactive admits no requests.
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

-- The audit log of administrators.
CREATE TABLE admin_actions (
    number bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    at_ms bigint NOT NULL,
    actor text NOT NULL,
    action text NOT NULL,
    target text NOT NULL,
    detail text
);
