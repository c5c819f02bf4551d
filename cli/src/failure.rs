//! How a command fails: what is printed, and with which status the process ends.

use std::process::ExitCode;

use crate::output::Closed;

/// Done.
const DONE: u8 = 0;
/// Something went wrong on the way.
const FAILED: u8 = 1;
/// The command line or the configuration can't be used.
const USAGE: u8 = 2;
/// It did what it was asked for, and something is not as it should be and was not put right.
const DIFFERS: u8 = 3;

/// The command line or the configuration can't be used: the message says where and what to do.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub(crate) struct Usage(pub(crate) String);

/// What was looked at is not as it should be, or something is left to do: the message says what, unless the result has
/// said all of it.
#[derive(Debug, Clone, Default, PartialEq, Eq, thiserror::Error)]
#[error("{}", .0.as_deref().unwrap_or("something is not as it should be"))]
pub(crate) struct Differs(pub(crate) Option<String>);

/// A [`Usage`] as the error of a command.
pub(crate) fn usage(message: impl Into<String>) -> anyhow::Error {
    anyhow::Error::new(Usage(message.into()))
}

/// Prints the error, if there is one, as one line on standard error; answers the exit status.
pub(crate) fn exit_code(outcome: anyhow::Result<()>) -> ExitCode {
    let Err(error) = outcome else {
        return ExitCode::from(DONE);
    };
    if error.chain().any(|cause| cause.is::<Closed>()) {
        // Whoever read our output has seen enough.
        return ExitCode::from(DONE);
    }
    let differs = error.chain().find_map(|cause| cause.downcast_ref());
    if let Some(Differs(None)) = differs {
        return ExitCode::from(DIFFERS);
    }
    crate::output::complain(&one_line(&format!("{error:#}")));
    if error.chain().any(|cause| cause.is::<Usage>()) {
        ExitCode::from(USAGE)
    } else if differs.is_some() {
        ExitCode::from(DIFFERS)
    } else {
        ExitCode::from(FAILED)
    }
}

/// The text on one line.
pub(crate) fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statuses_tell_usage_from_failure() {
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
