//! What SQLite's errors mean to a caller.

use std::path::Path;

use crate::Error;

// Primary result codes of SQLite; the low byte of an extended one.
const BUSY: i32 = 5;
const LOCKED: i32 = 6;
const READONLY: i32 = 8;
const IO: i32 = 10;
const CORRUPT: i32 = 11;
const FULL: i32 = 13;
const CANT_OPEN: i32 = 14;
const CONSTRAINT: i32 = 19;
const NOT_A_DATABASE: i32 = 26;

/// The error of a statement on the file `path`, in the terms of the ports. `remedy` says what helps
/// when the file is damaged.
pub(super) fn fault(doing: &str, path: &Path, remedy: &str, error: sqlx::Error) -> Error {
    let what = format!("{doing} ({})", path.display());
    let code = error
        .as_database_error()
        .and_then(|error| error.code())
        .and_then(|code| code.parse::<i32>().ok())
        .map(|code| code & 0xff);
    let advice = match code {
        Some(BUSY | LOCKED) => {
            let why = "another process kept it locked for too long".to_owned();
            return Error::Unavailable { what, why };
        }
        Some(FULL) => "free some space, then try again",
        Some(READONLY) => {
            "the file can't be written; give this user the right to write it and \
                           its folder"
        }
        Some(CANT_OPEN) => {
            "the file can't be opened; check that its folder is there, can be \
                            written by this user, and that the disk is not full"
        }
        Some(IO) => {
            "the disk could not be read or written; check that it is not full and not \
                     failing"
        }
        Some(CORRUPT | NOT_A_DATABASE) => remedy,
        _ => match error {
            sqlx::Error::ColumnDecode { .. } | sqlx::Error::Decode(_) => remedy,
            sqlx::Error::WorkerCrashed => "its connection died; start this process again",
            _ => return Error::broken(what, error),
        },
    };
    Error::broken(what, format!("{error}; {advice}"))
}

/// Whether the error is a broken constraint: a value that must not be stored.
pub(super) fn is_constraint(error: &sqlx::Error) -> bool {
    error
        .as_database_error()
        .and_then(|error| error.code())
        .and_then(|code| code.parse::<i32>().ok())
        .is_some_and(|code| code & 0xff == CONSTRAINT)
}
