//! The tasks of a run, what they share and what they give: as values within this process, as text between processes of
//! the same version.

use std::collections::BTreeSet;
use std::sync::Arc;

use schemas::time::Seconds;
use serde::{Deserialize, Serialize};
use stores::archive::Archive;

use crate::board::Files;
use crate::snapshot::SnapshotFile;
use crate::tally::{OfDays, Published, Written};
use crate::{Error, Result, board, tally};

/// The version that both sides must have. The second number changes with the form of what is sent.
pub(crate) const VERSION: &str = concat!(env!("CARGO_PKG_VERSION"), "-4");

/// A task.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) enum Task {
    /// Computes the aggregates whose pieces are days, for these days.
    Days(Vec<i64>),
    /// Computes one aggregate whose pieces are longer, by the name of its job.
    Coarse(String),
    /// Publishes pieces of an aggregate.
    Publish {
        /// The job.
        job: String,
        /// The pieces, by their starts.
        pieces: BTreeSet<Seconds>,
    },
    /// Computes all boards over a file of the snapshot.
    Boards {
        /// The position of the file in the snapshot.
        index: usize,
        /// The file.
        file: SnapshotFile,
    },
}

/// The result of a task.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Output {
    /// Of [`Task::Days`].
    Days(OfDays),
    /// Of [`Task::Coarse`].
    Coarse(Written),
    /// Of [`Task::Publish`].
    Published(Published),
    /// Of [`Task::Boards`].
    Boards(Files),
}

impl Output {
    /// The kind of the task, for logs.
    pub(crate) const fn name(&self) -> &'static str {
        match self {
            Self::Days(_) => "days",
            Self::Coarse(_) => "coarse",
            Self::Published(_) => "publish",
            Self::Boards(_) => "boards",
        }
    }
}

/// What the tasks of a stage share.
#[derive(Debug)]
pub(crate) enum Shared {
    /// The stage computes or publishes aggregates.
    Tallies(Box<tally::Shared>),
    /// The stage computes boards.
    Boards(Arc<board::Compute>),
}

impl Shared {
    /// Runs a task of the stage.
    pub(crate) async fn run(&self, task: &Task) -> Result<Output> {
        match (self, task) {
            (Self::Tallies(shared), Task::Days(days)) => {
                Ok(Output::Days(shared.compute.day_task(days).await?))
            }
            (Self::Tallies(shared), Task::Coarse(job)) => {
                let written = shared.compute.coarse(job, &shared.computed).await?;
                Ok(Output::Coarse(written))
            }
            (Self::Tallies(shared), Task::Publish { job, pieces }) => {
                Ok(Output::Published(shared.publish(job, pieces).await?))
            }
            (Self::Boards(compute), Task::Boards { file, .. }) => {
                Ok(Output::Boards(compute.file(file).await?))
            }
            _ => Err(mismatch()),
        }
    }

    /// The archive, and the prefix of the paths of result files in it.
    pub(crate) fn archive(&self) -> (&Archive, &str) {
        match self {
            Self::Tallies(shared) => (&shared.compute.archive, &shared.compute.files),
            Self::Boards(compute) => (&compute.archive, &compute.files),
        }
    }

    /// The same for workers elsewhere.
    pub(crate) fn note(&self) -> Note {
        match self {
            Self::Tallies(shared) => Note::Tallies(Box::new(tally::Note::of(shared))),
            Self::Boards(compute) => Note::Boards(board::Note::of(compute)),
        }
    }
}

/// What the tasks of a stage share, as it is written to the archive for workers elsewhere.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Note {
    /// Of [`Shared::Tallies`].
    Tallies(Box<tally::Note>),
    /// Of [`Shared::Boards`].
    Boards(board::Note),
}

/// The error for a task or an output of another stage.
pub(crate) fn mismatch() -> Error {
    Error::Fault("a task of another stage".to_owned())
}

/// A task as it is sent to a worker.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Request {
    version: String,
    /// The path of the [`Note`] in the archive.
    pub(crate) note: String,
    pub(crate) task: Task,
}

/// The part of a request that is read first: the rest may have another form.
#[derive(Debug, Deserialize)]
struct Stamped {
    version: String,
}

impl Request {
    /// A request of this version.
    pub(crate) fn new(note: &str, task: &Task) -> Self {
        Self {
            version: VERSION.to_owned(),
            note: note.to_owned(),
            task: task.clone(),
        }
    }

    /// Parses a request, if it is of this version.
    pub(crate) fn parse(text: &str) -> Result<Self> {
        let fault = |e| Error::fault("reading a task", e);
        let stamped: Stamped = serde_json::from_str(text).map_err(fault)?;
        if stamped.version != VERSION {
            return Err(Error::Request(format!(
                "the run is of version {} of Backstitch, and this worker of {VERSION}: use the same one everywhere",
                stamped.version
            )));
        }
        serde_json::from_str(text).map_err(fault)
    }
}

/// The answer of a worker.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Response {
    /// The task is done.
    Done(Output),
    /// The task failed.
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
        let refused = Request::parse(text).expect_err("another version");
        let refused = refused.to_string();
        assert!(
            refused.contains("7.0.0-3") && refused.contains(VERSION),
            "{refused}"
        );
        let request = Request::new("n", &Task::Days(vec![-1, 20_000]));
        let text = serde_json::to_string(&request).expect("text");
        let request = Request::parse(&text).expect("a request");
        let Task::Days(days) = request.task else {
            panic!("{text}");
        };
        assert_eq!((request.note.as_str(), days), ("n", vec![-1, 20_000]));
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
