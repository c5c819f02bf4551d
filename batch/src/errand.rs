//! Tasks and what they give, as text that travels between processes of the same version.

use std::collections::BTreeSet;

use schemas::time::Seconds;
use serde::{Deserialize, Serialize};

use crate::board::ResultFile;
use crate::snapshot::SnapshotFile;
use crate::tally::{Edition, OfDays, Published, Written};
use crate::{Error, Result};

/// What both sides must be of. The second number changes with the form of what is sent.
pub(crate) const VERSION: &str = concat!(env!("CARGO_PKG_VERSION"), "-3");

/// A task. Notes are named by their path in the archive.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Errand {
    /// Tallies whose pieces are days, of some days.
    Days {
        /// The note of the plan.
        plan: String,
        /// The days.
        days: Vec<i64>,
    },
    /// A tally whose pieces are longer.
    Coarse {
        /// The note of the plan.
        plan: String,
        /// The note of what was computed before it.
        computed: String,
        /// The job.
        job: String,
    },
    /// Publishing some pieces of a tally.
    Publish {
        /// The note of the plan.
        plan: String,
        /// The note of what was computed.
        computed: String,
        /// As what its rows are published.
        edition: Edition,
        /// The job.
        job: String,
        /// The pieces, by their starts.
        pieces: BTreeSet<Seconds>,
    },
    /// Boards over a file of a snapshot.
    Boards {
        /// The note of the boards.
        plan: String,
        /// The file.
        file: SnapshotFile,
    },
}

/// What a task gives.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Outcome {
    /// Of [`Errand::Days`].
    Days(OfDays),
    /// Of [`Errand::Coarse`].
    Coarse(Written),
    /// Of [`Errand::Publish`].
    Published(Published),
    /// Of [`Errand::Boards`]: by job, the files of its rows.
    Boards(Vec<Vec<ResultFile>>),
}

impl Outcome {
    /// Of which task it is, for logs.
    pub(crate) const fn name(&self) -> &'static str {
        match self {
            Self::Days(_) => "days",
            Self::Coarse(_) => "coarse",
            Self::Published(_) => "publish",
            Self::Boards(_) => "boards",
        }
    }
}

/// An errand as it is sent.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Sent {
    version: String,
    errand: Errand,
}

/// What is looked at first: the rest may have another form.
#[derive(Debug, Deserialize)]
struct Stamped {
    version: String,
}

impl Sent {
    /// An errand of this version.
    pub(crate) fn now(errand: Errand) -> Self {
        Self {
            version: VERSION.to_owned(),
            errand,
        }
    }

    /// The errand, if it is of this version.
    pub(crate) fn read(text: &str) -> Result<Errand> {
        let fault = |e| Error::fault("reading a task", e);
        let stamped: Stamped = serde_json::from_str(text).map_err(fault)?;
        if stamped.version != VERSION {
            return Err(Error::Request(format!(
                "the run is of version {} of Backstitch, and this worker of {VERSION}: use the same one everywhere",
                stamped.version
            )));
        }
        let sent: Self = serde_json::from_str(text).map_err(fault)?;
        Ok(sent.errand)
    }
}

/// What a worker answers.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Answer {
    /// It is done.
    Done(Outcome),
    /// It could not be done.
    Failed(Failure),
}

/// Why a task could not be done.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Failure {
    /// The message of the error.
    pub(crate) what: String,
    /// Whether the same may go through later.
    pub(crate) may_pass: bool,
    /// The file that was found damaged and what shows it, if that is what went wrong.
    damaged: Option<(String, String)>,
}

impl From<&Error> for Failure {
    fn from(error: &Error) -> Self {
        Self {
            what: error.to_string(),
            may_pass: error.may_pass(),
            damaged: error.damaged_file(),
        }
    }
}

impl From<Failure> for Error {
    fn from(failure: Failure) -> Self {
        match failure.damaged {
            Some((path, why)) => stores::Error::DamagedFile { path, why }.into(),
            None if failure.may_pass => Self::Workers(failure.what),
            None => Self::Request(failure.what),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_version_is_refused_whatever_it_sends() {
        let text = r#"{"version": "7.0.0-3", "errand": {"Hours": [1, 2]}}"#;
        let refused = Sent::read(text).expect_err("another version").to_string();
        assert!(
            refused.contains("7.0.0-3") && refused.contains(VERSION),
            "{refused}"
        );
        let days = Errand::Days {
            plan: "p".to_owned(),
            days: vec![-1, 20_000],
        };
        let text = serde_json::to_string(&Sent::now(days)).expect("text");
        let Ok(Errand::Days { plan, days }) = Sent::read(&text) else {
            panic!("{text}");
        };
        assert_eq!((plan.as_str(), days), ("p", vec![-1, 20_000]));
    }

    #[test]
    fn what_went_wrong_stays_what_it_was() {
        let there = |error: Error| {
            let text = serde_json::to_string(&Failure::from(&error)).expect("text");
            let failure: Failure = serde_json::from_str(&text).expect("a failure");
            Error::from(failure)
        };
        let damaged = || stores::Error::DamagedFile {
            path: "a/b".to_owned(),
            why: "it is short".to_owned(),
        };
        let error = there(damaged().into());
        assert_eq!(error.to_string(), damaged().to_string());
        assert_eq!(error.damaged_file().expect("a file").0, "a/b");
        let away = || stores::Error::Unavailable {
            what: "reading a".to_owned(),
            why: "no answer".to_owned(),
        };
        let error = there(away().into());
        assert!(error.may_pass(), "{error}");
        assert_eq!(error.to_string(), away().to_string());
        let error = there(Error::Fault("x".to_owned()));
        assert!(
            !error.may_pass() && error.to_string().contains("report"),
            "{error}"
        );
    }
}
