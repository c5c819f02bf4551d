//! Classification of errors of Redis and its client.

use redis::{ErrorKind, RedisError, ServerError, ServerErrorKind};

use crate::retry::RetryPolicy;
use crate::{Error, Result};

/// While a cluster moves a hash slot, its keys are on two nodes.
const MOVING: &str = "the cluster is moving these keys to another node";

/// A classified reply.
#[derive(Debug)]
pub(super) enum Reply {
    /// The result of the command.
    Value(redis::Value),
    /// The server does not have the script; resend it in full.
    NoScript,
    /// The key is on this other node.
    Redirect(String),
}

/// True if the node is no longer a primary. The caller opens a new connection, which is checked.
pub(super) fn is_not_primary(value: &redis::Value) -> bool {
    matches!(value, redis::Value::ServerError(error) if matches!(error.code(), "READONLY" | "MASTERDOWN"))
}

/// Classifies a reply as a result, a redirect, or an error.
pub(super) fn classify_reply(
    retry_policy: &RetryPolicy,
    operation: &str,
    value: redis::Value,
) -> Result<Reply> {
    let redis::Value::ServerError(error) = value else {
        return Ok(Reply::Value(value));
    };
    let new_address = || {
        let details = error.details().unwrap_or_default();
        let address = details.split_ascii_whitespace().nth(1);
        address.unwrap_or_default().to_owned()
    };
    match error.kind() {
        Some(ServerErrorKind::NoScript) => Ok(Reply::NoScript),
        Some(ServerErrorKind::Moved) => Ok(Reply::Redirect(new_address())),
        // The other node has only some keys of the hash slot, and would treat the others as
        // missing. A script would return too little, and its writes would hide keys that arrive
        // later.
        Some(ServerErrorKind::Ask) => Err(retry_policy.unavailable(operation, MOVING)),
        _ => Err(from_server_error(retry_policy, operation, &error)),
    }
}

/// Converts an error that the server returned.
pub(super) fn from_server_error(
    retry_policy: &RetryPolicy,
    operation: &str,
    error: &ServerError,
) -> Error {
    let details = error.details().unwrap_or_default();
    from_code(retry_policy, operation, error.code(), details)
}

fn from_code(retry_policy: &RetryPolicy, operation: &str, code: &str, details: &str) -> Error {
    // Errors within scripts usually begin with the code of the failed command, but not always.
    let message = format!("{code} {details}");
    let mentions = |word: &str| code == word || details.contains(word);
    // A script accessed a key of its hash slot that has already moved. It has written nothing.
    if details.contains("non local key") || details.contains("undeclared key") {
        return retry_policy.unavailable(operation, MOVING);
    }
    if details.contains("max number of clients") || details.contains("cluster is down") {
        return retry_policy.unavailable(operation, message);
    }
    let advice = match code {
        "LOADING" | "BUSY" | "CLUSTERDOWN" | "TRYAGAIN" | "MASTERDOWN" | "READONLY"
        | "NOREPLICAS" | "MISCONF" => return retry_policy.unavailable(operation, message),
        _ if mentions("OOM") => {
            return Error::Full {
                operation: retry_policy.describe(operation),
                reason: format!(
                    "{message}: the server's memory is full; raise maxmemory, or complete a batch run to prune old epochs"
                ),
            };
        }
        "NOAUTH" | "WRONGPASS" => "check user and password",
        "NOPERM" => "grant the user the rights that docs/internals/live-state.md lists",
        "OVERFLOW" => "a count exceeds 64 bits; look for events with wrong amounts",
        "NOTANUMBER" => {
            "another program may have written this key; delete all keys of this partition (they are rebuilt from the log)"
        }
        _ if mentions("WRONGTYPE") => {
            "another program has written a key of this namespace; delete the key, or use another namespace"
        }
        _ => "see the server's log",
    };
    Error::broken(
        retry_policy.describe(operation),
        format!("{message}; {advice}"),
    )
}

/// Converts an error of a connection or of opening one. Whether a sent command took effect is
/// unknown.
pub(super) fn from_client_error(
    retry_policy: &RetryPolicy,
    operation: &str,
    node: &str,
    error: &RedisError,
) -> Error {
    let code = match error.kind() {
        ErrorKind::AuthenticationFailed => Some("WRONGPASS"),
        ErrorKind::Server(_) | ErrorKind::Extension => error.code(),
        ErrorKind::InvalidClientConfig => {
            return Error::broken(retry_policy.describe(operation), format!("{node}: {error}"));
        }
        _ => None,
    };
    let message = error.to_string();
    if message.contains("certificate") {
        let reason =
            format!("{node}: {message}; set ca_file to the server's certificate authority");
        return Error::broken(retry_policy.describe(operation), reason);
    }
    match code {
        Some(code) => from_code(
            retry_policy,
            operation,
            code,
            error.detail().unwrap_or_default(),
        ),
        None => retry_policy.unavailable(operation, format!("{node}: {message}")),
    }
}

/// Builds the error for a reply that does not decode.
pub(super) fn unexpected_reply(retry_policy: &RetryPolicy, operation: &str) -> Error {
    Error::broken(
        retry_policy.describe(operation),
        "the reply does not decode; check that the server is Redis 7 or newer and that no other program writes these keys",
    )
}
