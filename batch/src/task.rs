//! Tasks of a run, with their shared input and their outputs. They are values within this process,
//! and JSON between processes of the same version.

use std::collections::BTreeSet;
use std::sync::Arc;

use schemas::time::UnixSeconds;
use serde::{Deserialize, Serialize};
use stores::archive::Archive;

use crate::board::JobFiles;
use crate::error::stage_mismatch;
use crate::snapshot::SnapshotFile;
use crate::tally::{OfDays, Published, Written};
use crate::{Error, Result, board, tally};

/// The version that a run and its remote workers must share. Raise the second number when the JSON
/// form changes.
pub(crate) const VERSION: &str = concat!(env!("CARGO_PKG_VERSION"), "-5");

/// A unit of work of a run that any executor can do.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) enum Task {
    /// Computes the aggregates with daily time partitions, for these days.
    Days(Vec<i64>),
    /// Computes one aggregate with longer time partitions, by the name of its job.
    Coarse(String),
    /// Publishes time partitions of an aggregate.
    Publish {
        /// The name of the job.
        job: String,
        /// The start times of the time partitions.
        time_partitions: BTreeSet<UnixSeconds>,
    },
    /// Computes all boards over one file of the snapshot.
    Boards {
        /// The index of the file in the snapshot.
        index: usize,
        /// The file.
        file: SnapshotFile,
    },
}

/// The output of a task.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Output {
    /// Output of [`Task::Days`].
    Days(OfDays),
    /// Output of [`Task::Coarse`].
    Coarse(Written),
    /// Output of [`Task::Publish`].
    Published(Published),
    /// Output of [`Task::Boards`].
    Boards(JobFiles),
}

impl Output {
    /// Returns the kind of the task, for logs.
    pub(crate) const fn task_kind(&self) -> &'static str {
        match self {
            Self::Days(_) => "days",
            Self::Coarse(_) => "coarse",
            Self::Published(_) => "publish",
            Self::Boards(_) => "boards",
        }
    }
}

/// The input that all tasks of a stage share.
#[derive(Debug)]
pub(crate) enum StageInput {
    /// Input of a stage that computes or publishes aggregates.
    Aggregates(Box<tally::Shared>),
    /// Input of a stage that computes boards.
    Boards(Arc<board::BoardComputation>),
}

impl StageInput {
    /// Runs a task of the stage.
    pub(crate) async fn run(&self, task: &Task) -> Result<Output> {
        match (self, task) {
            (Self::Aggregates(shared), Task::Days(days)) => {
                Ok(Output::Days(shared.compute.day_task(days).await?))
            }
            (Self::Aggregates(shared), Task::Coarse(job)) => {
                let written = shared.compute.coarse(job, &shared.computed).await?;
                Ok(Output::Coarse(written))
            }
            (
                Self::Aggregates(shared),
                Task::Publish {
                    job,
                    time_partitions,
                },
            ) => Ok(Output::Published(
                shared.publish(job, time_partitions).await?,
            )),
            (Self::Boards(compute), Task::Boards { file, .. }) => {
                Ok(Output::Boards(compute.compute(file).await?))
            }
            _ => Err(stage_mismatch()),
        }
    }

    /// Returns the archive, and the prefix of the paths of result files.
    pub(crate) fn archive(&self) -> (&Archive, &str) {
        match self {
            Self::Aggregates(shared) => (&shared.compute.archive, &shared.compute.files),
            Self::Boards(compute) => (&compute.archive, &compute.files),
        }
    }

    /// Returns the serializable form for remote workers.
    pub(crate) fn to_file(&self) -> StageInputFile {
        match self {
            Self::Aggregates(shared) => {
                StageInputFile::Aggregates(Box::new(tally::Note::of(shared)))
            }
            Self::Boards(compute) => StageInputFile::Boards(board::BoardInputFile::new(compute)),
        }
    }
}

/// The input of a stage as stored in the archive for remote workers.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum StageInputFile {
    /// Form of [`StageInput::Aggregates`].
    Aggregates(Box<tally::Note>),
    /// Form of [`StageInput::Boards`].
    Boards(board::BoardInputFile),
}

/// A task as sent to a remote worker.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Request {
    version: String,
    /// The path of the [`StageInputFile`] in the archive.
    pub(crate) input_path: String,
    pub(crate) task: Task,
}

/// The version of a request. It is parsed first, because another version may have other fields.
#[derive(Debug, Deserialize)]
struct RequestVersion {
    version: String,
}

impl Request {
    /// Creates a request of this version.
    pub(crate) fn new(input_path: &str, task: &Task) -> Self {
        Self {
            version: VERSION.to_owned(),
            input_path: input_path.to_owned(),
            task: task.clone(),
        }
    }

    /// Parses a request; fails if it is of another version.
    pub(crate) fn parse(text: &str) -> Result<Self> {
        let fault = |e| Error::fault("reading a task", e);
        let header: RequestVersion = serde_json::from_str(text).map_err(fault)?;
        if header.version != VERSION {
            return Err(Error::Request(format!(
                "the run uses version {} of Backstitch, but this worker is version {VERSION}: install the same version on all machines",
                header.version
            )));
        }
        serde_json::from_str(text).map_err(fault)
    }
}

/// The response of a remote worker.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Response {
    /// The task succeeded.
    Done(Output),
    /// The task failed.
    Failed(Failure),
}

/// The error of a task.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Failure {
    /// The message of the error.
    #[serde(rename = "what")]
    pub(crate) message: String,
    /// True if a retry may succeed.
    pub(crate) is_transient: bool,
    /// The path and the description of a damaged file, if that is the cause.
    damaged: Option<(String, String)>,
}

impl From<&Error> for Failure {
    fn from(error: &Error) -> Self {
        Self {
            message: error.to_string(),
            is_transient: error.is_transient(),
            damaged: error.damaged_file(),
        }
    }
}

impl From<Failure> for Error {
    fn from(failure: Failure) -> Self {
        match failure.damaged {
            Some((path, reason)) => stores::Error::DamagedFile { path, reason }.into(),
            None if failure.is_transient => Self::Workers(failure.message),
            None => Self::Request(failure.message),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rejects_a_request_of_another_version_with_unknown_fields() {
        let text = r#"{"version": "7.0.0-3", "errand": {"Hours": [1, 2]}}"#;
        let error = Request::parse(text).expect_err("another version");
        let error = error.to_string();
        assert!(
            error.contains("7.0.0-3") && error.contains(VERSION),
            "{error}"
        );
        let request = Request::new("n", &Task::Days(vec![-1, 20_000]));
        let text = serde_json::to_string(&request).expect("text");
        let request = Request::parse(&text).expect("a request");
        let Task::Days(days) = request.task else {
            panic!("{text}");
        };
        assert_eq!((request.input_path.as_str(), days), ("n", vec![-1, 20_000]));
    }

    #[test]
    fn serialized_failure_keeps_message_and_kind() {
        let round_trip = |error: Error| {
            let text = serde_json::to_string(&Failure::from(&error)).expect("text");
            let failure: Failure = serde_json::from_str(&text).expect("a failure");
            Error::from(failure)
        };
        let damaged = || stores::Error::DamagedFile {
            path: "a/b".to_owned(),
            reason: "it is short".to_owned(),
        };
        let error = round_trip(damaged().into());
        assert_eq!(error.to_string(), damaged().to_string());
        assert_eq!(error.damaged_file().expect("a file").0, "a/b");
        let unavailable = || stores::Error::Unavailable {
            operation: "reading a".to_owned(),
            reason: "no answer".to_owned(),
        };
        let error = round_trip(unavailable().into());
        assert!(error.is_transient(), "{error}");
        assert_eq!(error.to_string(), unavailable().to_string());
        let error = round_trip(Error::Fault("x".to_owned()));
        assert!(
            !error.is_transient() && error.to_string().contains("report"),
            "{error}"
        );
    }
}
