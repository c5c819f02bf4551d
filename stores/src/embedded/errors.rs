//! Classification of errors of SQLite.

use std::path::Path;

use crate::Error;

// Primary result codes of SQLite: the low byte of an extended code.
const BUSY: i32 = 5;
const LOCKED: i32 = 6;
const READONLY: i32 = 8;
const IO: i32 = 10;
const CORRUPT: i32 = 11;
const FULL: i32 = 13;
const CANT_OPEN: i32 = 14;
const CONSTRAINT: i32 = 19;
const NOT_A_DATABASE: i32 = 26;

/// Converts an error of a statement on the file `path` to an error of the ports. `remedy` is the
/// advice for a damaged file.
pub(super) fn classify_error(
    operation: &str,
    path: &Path,
    remedy: &str,
    error: sqlx::Error,
) -> Error {
    let context = format!("{operation} ({})", path.display());
    let code = error
        .as_database_error()
        .and_then(|error| error.code())
        .and_then(|code| code.parse::<i32>().ok())
        .map(|code| code & 0xff);
    let advice = match code {
        Some(BUSY | LOCKED) => {
            let reason = "another process has kept the file locked for too long".to_owned();
            return Error::Unavailable {
                operation: context,
                reason,
            };
        }
        Some(FULL) => "the disk is full; free some space, then retry",
        Some(READONLY) => {
            "the file is read-only; grant this user write access to it and its folder"
        }
        Some(CANT_OPEN) => {
            "the file cannot be opened; check that its folder exists and is writable for this \
             user, and that the disk is not full"
        }
        Some(IO) => "the disk cannot be read or written; check that it is not full and not failing",
        Some(CORRUPT | NOT_A_DATABASE) => remedy,
        _ => match error {
            sqlx::Error::ColumnDecode { .. } | sqlx::Error::Decode(_) => remedy,
            sqlx::Error::WorkerCrashed => "the connection has crashed; restart this process",
            _ => return Error::broken(context, error),
        },
    };
    Error::broken(context, format!("{error}; {advice}"))
}

/// Returns whether the error is a violated constraint.
pub(super) fn is_constraint_violation(error: &sqlx::Error) -> bool {
    error
        .as_database_error()
        .and_then(|error| error.code())
        .and_then(|code| code.parse::<i32>().ok())
        .is_some_and(|code| code & 0xff == CONSTRAINT)
}
