//! Errors of commands: their output and the exit status.

use std::process::ExitCode;

use crate::output::Closed;

/// Success.
const DONE: u8 = 0;
/// Failure.
const FAILED: u8 = 1;
/// Invalid command line or configuration.
const USAGE: u8 = 2;
/// The command succeeded, and found differences that it did not repair.
const DIFFERS: u8 = 3;

/// An invalid command line or configuration.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub(crate) struct Usage(pub(crate) String);

/// Unrepaired differences, or unfinished work. Without a message, the command's output describes them.
#[derive(Debug, Clone, Default, PartialEq, Eq, thiserror::Error)]
#[error("{}", .0.as_deref().unwrap_or("there are unrepaired differences"))]
pub(crate) struct Differs(pub(crate) Option<String>);

/// A [`Usage`] as the error of a command.
pub(crate) fn usage(message: impl Into<String>) -> anyhow::Error {
    anyhow::Error::new(Usage(message.into()))
}

/// Prints an error as one line on standard error, and returns the exit status.
pub(crate) fn exit_code(outcome: anyhow::Result<()>) -> ExitCode {
    let Err(error) = outcome else {
        return ExitCode::from(DONE);
    };
    if error.chain().any(|cause| cause.is::<Closed>()) {
        // The reader of the output has closed the pipe.
        return ExitCode::from(DONE);
    }
    let differs = error.chain().find_map(|cause| cause.downcast_ref());
    if let Some(Differs(None)) = differs {
        return ExitCode::from(DIFFERS);
    }
    crate::output::error(&one_line(&format!("{error:#}")));
    if error.chain().any(|cause| cause.is::<Usage>()) {
        ExitCode::from(USAGE)
    } else if differs.is_some() {
        ExitCode::from(DIFFERS)
    } else {
        ExitCode::from(FAILED)
    }
}

/// Joins the lines of a text.
pub(crate) fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn usage_and_failure_have_different_statuses() {
        let code = |outcome| format!("{:?}", exit_code(outcome));
        assert_eq!(code(Ok(())), format!("{:?}", ExitCode::from(0)));
        assert_eq!(
            code(Err(anyhow::anyhow!("x"))),
            format!("{:?}", ExitCode::from(1))
        );
        assert_eq!(
            code(Err(usage("x").context("y"))),
            format!("{:?}", ExitCode::from(2))
        );
        assert_eq!(
            code(Err(Differs::default().into())),
            format!("{:?}", ExitCode::from(3))
        );
        assert_eq!(
            code(Err(Differs(Some("x".to_owned())).into())),
            format!("{:?}", ExitCode::from(3))
        );
        assert_eq!(
            code(Err(anyhow::Error::new(Closed))),
            format!("{:?}", ExitCode::from(0))
        );
    }

    #[test]
    fn messages_are_one_line() {
        assert_eq!(one_line("a\n  b\r\n\tc "), "a b c");
    }
}
