//! What a server's errors mean, and what to do about them.

use redis::{ErrorKind, RedisError, ServerError, ServerErrorKind};

use crate::patience::Patience;
use crate::{Error, Result};

/// While a cluster moves a hash slot, its keys are on two nodes.
const MOVING: &str = "the cluster is moving these keys to another node";

/// What a reply asks for.
#[derive(Debug)]
pub(super) enum Reply {
    /// The answer.
    Value(redis::Value),
    /// The server has not the script yet.
    NoScript,
    /// The key is on another node.
    Moved(String),
}

/// Whether the node has become a replica, or has lost its master: a new connection looks at it anew.
pub(super) fn is_demoted(value: &redis::Value) -> bool {
    matches!(value, redis::Value::ServerError(error) if matches!(error.code(), "READONLY" | "MASTERDOWN"))
}

/// Tells answers, requests to go elsewhere, and errors apart.
pub(super) fn reply(patience: &Patience, doing: &str, value: redis::Value) -> Result<Reply> {
    let redis::Value::ServerError(error) = value else {
        return Ok(Reply::Value(value));
    };
    let elsewhere = || {
        let details = error.details().unwrap_or_default();
        let address = details.split_ascii_whitespace().nth(1);
        address.unwrap_or_default().to_owned()
    };
    match error.kind() {
        Some(ServerErrorKind::NoScript) => Ok(Reply::NoScript),
        Some(ServerErrorKind::Moved) => Ok(Reply::Moved(elsewhere())),
        // The other node has some of the hash slot's keys, and would take those for missing that have not
        // come yet: a script's answer would be less than the truth, and its writes would hide them.
        Some(ServerErrorKind::Ask) => Err(patience.unavailable(doing, MOVING)),
        _ => Err(of_server(patience, doing, &error)),
    }
}

/// An error that the server answered.
pub(super) fn of_server(patience: &Patience, doing: &str, error: &ServerError) -> Error {
    let details = error.details().unwrap_or_default();
    of_code(patience, doing, (error.code(), details))
}

fn of_code(patience: &Patience, doing: &str, (code, details): (&str, &str)) -> Error {
    // Scripts of Redis 7 put the code of what failed within them first; not all do.
    let said = format!("{code} {details}");
    let within = |word: &str| code == word || details.contains(word);
    // A script that meets a key of its hash slot that has gone already; before it has written anything.
    if details.contains("non local key") || details.contains("undeclared key") {
        return patience.unavailable(doing, MOVING);
    }
    if details.contains("max number of clients") || details.contains("cluster is down") {
        return patience.unavailable(doing, said);
    }
    let advice = match code {
        "LOADING" | "BUSY" | "CLUSTERDOWN" | "TRYAGAIN" | "MASTERDOWN" | "READONLY"
        | "NOREPLICAS" | "MISCONF" => return patience.unavailable(doing, said),
        _ if within("OOM") => {
            return Error::Full {
                what: patience.what(doing),
                why: format!(
                    "{said}: the server's memory is full; give it more (maxmemory), or finish a batch run so that old epochs are let go"
                ),
            };
        }
        "NOAUTH" | "WRONGPASS" => "set the user and the password",
        "NOPERM" => "give the user the rights that the documentation of the Redis adapter lists",
        "OVERFLOW" => {
            "a count is larger than 64 bits can hold; look for wrong amounts among the events"
        }
        "NOTANUMBER" => {
            "another program has written this key; delete all keys of the slot, and it is made again from the log"
        }
        _ if within("WRONGTYPE") => {
            "another program has written a key of this namespace; delete it, or take another namespace"
        }
        _ => "look at the server's log",
    };
    Error::broken(patience.what(doing), format!("{said}; {advice}"))
}

/// An error of a connection, or of making one. If something was sent, whether it had an effect is not
/// known.
pub(super) fn of_client(patience: &Patience, doing: &str, node: &str, error: &RedisError) -> Error {
    let code = match error.kind() {
        ErrorKind::AuthenticationFailed => Some("WRONGPASS"),
        ErrorKind::Server(_) | ErrorKind::Extension => error.code(),
        ErrorKind::InvalidClientConfig => {
            return Error::broken(patience.what(doing), format!("{node}: {error}"));
        }
        _ => None,
    };
    let said = error.to_string();
    if said.contains("certificate") {
        let why = format!("{node}: {said}; name the server's authority in ca_file");
        return Error::broken(patience.what(doing), why);
    }
    match code {
        Some(code) => of_code(patience, doing, (code, error.detail().unwrap_or_default())),
        None => patience.unavailable(doing, format!("{node}: {said}")),
    }
}

/// An answer that no version of the scripts gives.
pub(super) fn strange(patience: &Patience, doing: &str) -> Error {
    Error::broken(
        patience.what(doing),
        "the answer is none that this version knows; is it Redis 7 or newer, and are the keys ours?",
    )
}
