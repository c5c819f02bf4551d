//! Errors of commands: their output and the exit status.

use std::process::ExitCode;

use crate::output::StdoutClosed;

/// Success.
const SUCCESS_STATUS: u8 = 0;
/// Failure.
const FAILURE_STATUS: u8 = 1;
/// Invalid command line or configuration.
const USAGE_STATUS: u8 = 2;
/// The command succeeded, and found differences that it did not repair.
const DIFFERENCES_STATUS: u8 = 3;

/// An invalid command line or configuration.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub(crate) struct UsageError(pub(crate) String);

/// Unrepaired differences, or unfinished work. Without a message, the command's output describes
/// them.
#[derive(Debug, Clone, Default, PartialEq, Eq, thiserror::Error)]
#[error("{}", .0.as_deref().unwrap_or("there are unrepaired differences"))]
pub(crate) struct UnrepairedDifferences(pub(crate) Option<String>);

/// Creates a [`UsageError`] as the error of a command.
pub(crate) fn usage_error(message: impl Into<String>) -> anyhow::Error {
    anyhow::Error::new(UsageError(message.into()))
}

/// Prints an error as one line on standard error, and returns the exit status.
pub(crate) fn exit_code(outcome: anyhow::Result<()>) -> ExitCode {
    let Err(error) = outcome else {
        return ExitCode::from(SUCCESS_STATUS);
    };
    if error.chain().any(|cause| cause.is::<StdoutClosed>()) {
        // The reader of the output has closed the pipe.
        return ExitCode::from(SUCCESS_STATUS);
    }
    let differs = error.chain().find_map(|cause| cause.downcast_ref());
    if let Some(UnrepairedDifferences(None)) = differs {
        return ExitCode::from(DIFFERENCES_STATUS);
    }
    crate::output::print_error(&join_lines(&format!("{error:#}")));
    if error.chain().any(|cause| cause.is::<UsageError>()) {
        ExitCode::from(USAGE_STATUS)
    } else if differs.is_some() {
        ExitCode::from(DIFFERENCES_STATUS)
    } else {
        ExitCode::from(FAILURE_STATUS)
    }
}

/// Joins the lines of a text to one line.
pub(crate) fn join_lines(text: &str) -> String {
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
            code(Err(usage_error("x").context("y"))),
            format!("{:?}", ExitCode::from(2))
        );
        assert_eq!(
            code(Err(UnrepairedDifferences::default().into())),
            format!("{:?}", ExitCode::from(3))
        );
        assert_eq!(
            code(Err(UnrepairedDifferences(Some("x".to_owned())).into())),
            format!("{:?}", ExitCode::from(3))
        );
        assert_eq!(
            code(Err(anyhow::Error::new(StdoutClosed))),
            format!("{:?}", ExitCode::from(0))
        );
    }

    #[test]
    fn messages_are_one_line() {
        assert_eq!(join_lines("a\n  b\r\n\tc "), "a b c");
    }
}
