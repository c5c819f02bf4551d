//! Errors of the batch layer.

use datafusion::error::DataFusionError;
use jobs::Job;
use schemas::seam::Epoch;
use stores::archive::REMEDY;

use crate::restore::Applied;

/// The result type of the batch layer.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// An error that ends a run. The message says what failed, where, why, and what to do.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A store failed.
    #[error(transparent)]
    Store(#[from] stores::Error),
    /// A view's query failed.
    #[error(transparent)]
    Job(#[from] jobs::Error),
    /// Another run or backfill holds the lease. Names the work, its source and its process.
    #[error("{0}. Wait for it to end, then try again")]
    Busy(String),
    /// A request that cannot be executed.
    #[error("{0}")]
    Request(String),
    /// A comparison that is not possible yet; the message says what must happen first.
    #[error("{0}")]
    NotReady(String),
    /// The epoch could not be ended in a partition.
    #[error("run {epoch}: {reason}")]
    EndEpoch {
        /// The run.
        epoch: Epoch,
        /// The partition, the reason, and what to do.
        reason: String,
    },
    /// The result failed its check.
    #[error(
        "run {epoch} failed its check and was not published: {reason}. The previous rows remain in use. Inspect the findings, then run again; --force publishes despite a failed check"
    )]
    Check {
        /// The run.
        epoch: Epoch,
        /// The findings of the check.
        reason: String,
    },
    /// A file of the archive or of a result does not match its manifest.
    #[error("{path}: {reason}. {REMEDY}")]
    Damaged {
        /// The file.
        path: String,
        /// The damage.
        reason: String,
    },
    /// A reconciliation failed after it had repaired something.
    #[error("{error}. Before that {applied}; these changes remain")]
    PartlyApplied {
        /// The error.
        error: Box<Self>,
        /// The repairs.
        applied: Box<Applied>,
    },
    /// Remote workers could not run a task; the message says what to do.
    #[error("{0}")]
    Workers(String),
    /// The run was asked to stop.
    #[error("stopped; the next run continues where this one stopped")]
    Stopped,
    /// A bug of Backstitch.
    #[error("{0}; this is a bug in Backstitch, please report it")]
    Fault(String),
}

impl Error {
    pub(crate) fn fault(operation: &str, error: impl std::fmt::Display) -> Self {
        Self::Fault(format!("{operation}: {error}"))
    }

    /// Returns whether a later attempt may succeed without intervention.
    pub(crate) fn is_transient(&self) -> bool {
        match self {
            Self::Store(error) => error.kind() == stores::ErrorKind::Retry,
            Self::Busy(_)
            | Self::NotReady(_)
            | Self::Stopped
            | Self::EndEpoch { .. }
            | Self::Workers(_) => true,
            Self::PartlyApplied { error, .. } => error.is_transient(),
            _ => false,
        }
    }

    /// Returns the path and the description of the damaged archive file, if that is the cause.
    pub(crate) fn damaged_file(&self) -> Option<(String, String)> {
        if let Self::PartlyApplied { error, .. } = self {
            return error.damaged_file();
        }
        let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(self);
        while let Some(error) = cause {
            let store = match error.downcast_ref::<Self>() {
                Some(Self::Store(store)) => Some(store),
                _ => error.downcast_ref::<stores::Error>(),
            };
            if let Some(stores::Error::DamagedFile { path, reason }) = store {
                return Some((path.clone(), reason.clone()));
            }
            cause = error.source();
        }
        None
    }

    /// Adds the repairs that preceded the error.
    pub(crate) fn with_applied(self, applied: Applied) -> Self {
        if applied == Applied::default() {
            return self;
        }
        let (error, later) = self.split_applied();
        Self::PartlyApplied {
            error: Box::new(error),
            applied: Box::new(applied.and(later)),
        }
    }

    /// Splits into the error and the repairs that preceded it.
    pub(crate) fn split_applied(self) -> (Self, Applied) {
        match self {
            Self::PartlyApplied { error, applied } => (*error, *applied),
            error => (error, Applied::default()),
        }
    }

    pub(crate) fn damaged(path: &str, reason: impl std::fmt::Display) -> Self {
        Self::Damaged {
            path: path.to_owned(),
            reason: reason.to_string(),
        }
    }
}

/// Returns the error for a log that differs from the one that results were computed from.
pub(crate) fn lost_log_error(finding: String) -> Error {
    Error::Request(format!("{finding}. {}", stores::log::LOST_REMEDY))
}

/// Returns the error for a job whose definition differs from that of the run.
pub(crate) fn definition_mismatch(job: &str) -> Error {
    Error::Request(format!(
        "this worker has another definition of job {job} than the run: use the same version of Backstitch and the same views_dir on all machines"
    ))
}

/// Returns the error for a task or an output of another stage.
pub(crate) fn stage_mismatch() -> Error {
    Error::Fault("a task or its output belongs to another stage of the run".to_owned())
}

/// Returns a function that wraps errors of a view's query.
pub(crate) fn query_error<K>(job: &Job<K>) -> impl Fn(DataFusionError) -> jobs::Error + Copy {
    |source| jobs::Error::Query {
        job: job.name().to_owned(),
        source,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn error_lists_preceding_repairs() {
        let applied = |rows, restoration| Applied {
            rows,
            restoration,
            ..Applied::default()
        };
        let plain = Error::Stopped.with_applied(Applied::default());
        assert!(matches!(plain, Error::Stopped), "{plain}");
        let error = stores::Error::DamagedFile {
            path: "a/b".to_owned(),
            reason: "it is short".to_owned(),
        };
        let error = Error::from(error)
            .with_applied(applied(2, None))
            .with_applied(applied(1, Some(7)));
        let text = error.to_string();
        assert!(text.contains("3 rows were rewritten"), "{text}");
        assert!(text.contains("restoration 7"), "{text}");
        let (path, _) = error.damaged_file().expect("a file");
        assert_eq!((path.as_str(), error.is_transient()), ("a/b", false));
        assert!(Error::Stopped.with_applied(applied(1, None)).is_transient());
        assert!(matches!(error.split_applied().0, Error::Store(_)));
    }
}
