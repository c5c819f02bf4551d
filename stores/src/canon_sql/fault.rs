//! What an error of a server means, and what to do about it.

use crate::Error;
use crate::patience::Patience;

/// What a server's number for an error says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Meaning {
    /// It was too busy, is going or coming up, or took something back so that others could go on.
    Later,
    /// Tables or columns are missing.
    NoSchema,
    /// The user or the password is wrong.
    NotLetIn,
    /// The user lacks a right.
    NoRight,
    /// Anything else.
    Other,
}

/// The meaning of an error.
pub(crate) fn meaning(error: &sqlx::Error) -> Meaning {
    let sqlx::Error::Database(error) = error else {
        return match error {
            sqlx::Error::Io(_)
            | sqlx::Error::PoolTimedOut
            | sqlx::Error::PoolClosed
            | sqlx::Error::WorkerCrashed
            | sqlx::Error::Protocol(_) => Meaning::Later,
            _ => Meaning::Other,
        };
    };
    if let Some(error) = error.try_downcast_ref::<sqlx::mysql::MySqlDatabaseError>() {
        return crate::mysql::meaning(error.number());
    }
    crate::postgres::meaning(error.code().as_deref().unwrap_or_default())
}

/// The error of a call.
pub(crate) fn fault(patience: &Patience, schema: &str, doing: &str, error: &sqlx::Error) -> Error {
    let what = patience.what(doing);
    let why = match meaning(error) {
        Meaning::Later => return patience.unavailable(doing, error),
        Meaning::NoSchema => format!(
            "{error}; the tables in {schema} are missing or of another version: run `backstitch migrate`"
        ),
        Meaning::NotLetIn => {
            format!("{error}; check user and password, and who may connect from here")
        }
        Meaning::NoRight => {
            format!(
                "{error}; give this user rights on {schema}, as the page on the canonical store says"
            )
        }
        Meaning::Other => error.to_string(),
    };
    Error::broken(what, why)
}
