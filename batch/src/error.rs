//! What can stop a run.

use datafusion::error::DataFusionError;
use jobs::Job;
use schemas::seam::Epoch;
use stores::archive::REMEDY;

use crate::restore::Applied;

/// The result of the batch layer's work.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// An error that ends a run. The message says what, where and what to do.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A store.
    #[error(transparent)]
    Store(#[from] stores::Error),
    /// A view's query.
    #[error(transparent)]
    Job(#[from] jobs::Error),
    /// Another run or backfill is under way: what, of which source, and whose.
    #[error("{0}. Wait for it to end, then try again")]
    Busy(String),
    /// A request that can't be carried out.
    #[error("{0}")]
    Request(String),
    /// A comparison that can't be made as things stand: it says what has to come first.
    #[error("{0}")]
    NotYet(String),
    /// The epoch could not be ended.
    #[error("run {epoch}: {what}")]
    Roll {
        /// The run.
        epoch: Epoch,
        /// Which partition stands in the way, and what to do.
        what: String,
    },
    /// The result failed its check.
    #[error(
        "run {epoch} failed its check and was not published: {what}. What was there before goes on serving; look at the result, then run again, with --force to publish in spite of it"
    )]
    Check {
        /// The run.
        epoch: Epoch,
        /// What does not hold.
        what: String,
    },
    /// A file of the archive or of a result is not what its manifest says.
    #[error("{path}: {what}. {REMEDY}")]
    Damaged {
        /// The file.
        path: String,
        /// What is wrong.
        what: String,
    },
    /// What ended a restoration that had put something right before.
    #[error("{error}. Before that {applied}: this stands")]
    Partly {
        /// What ended it.
        error: Box<Self>,
        /// What had been put right.
        applied: Box<Applied>,
    },
    /// Workers elsewhere could not carry a task out: what happened, and what to do.
    #[error("{0}")]
    Workers(String),
    /// The run was asked to stop.
    #[error("stopped; run it again and it goes on where it was")]
    Stopped,
    /// A fault of this program.
    #[error("{0}; this is a fault of Backstitch, please report it")]
    Fault(String),
}

impl Error {
    pub(crate) fn fault(what: &str, error: impl std::fmt::Display) -> Self {
        Self::Fault(format!("{what}: {error}"))
    }

    /// Whether the same may go through later, without anybody doing anything.
    pub(crate) fn may_pass(&self) -> bool {
        match self {
            Self::Store(error) => error.kind() == stores::ErrorKind::Retry,
            Self::Busy(_)
            | Self::NotYet(_)
            | Self::Stopped
            | Self::Roll { .. }
            | Self::Workers(_) => true,
            Self::Partly { error, .. } => error.may_pass(),
            _ => false,
        }
    }

    /// The archive's file that was found damaged and what shows it, if that is what went wrong.
    pub(crate) fn damaged_file(&self) -> Option<(String, String)> {
        if let Self::Partly { error, .. } = self {
            return error.damaged_file();
        }
        let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(self);
        while let Some(error) = cause {
            let store = match error.downcast_ref::<Self>() {
                Some(Self::Store(store)) => Some(store),
                _ => error.downcast_ref::<stores::Error>(),
            };
            if let Some(stores::Error::DamagedFile { path, why }) = store {
                return Some((path.clone(), why.clone()));
            }
            cause = error.source();
        }
        None
    }

    /// The same error, after something was put right.
    pub(crate) fn after(self, applied: Applied) -> Self {
        if applied == Applied::default() {
            return self;
        }
        let (error, later) = self.apart();
        Self::Partly {
            error: Box::new(error),
            applied: Box::new(applied.and(later)),
        }
    }

    /// What went wrong, and what had been put right before.
    pub(crate) fn apart(self) -> (Self, Applied) {
        match self {
            Self::Partly { error, applied } => (*error, *applied),
            error => (error, Applied::default()),
        }
    }

    pub(crate) fn damaged(path: &str, what: impl std::fmt::Display) -> Self {
        Self::Damaged {
            path: path.to_owned(),
            what: what.to_string(),
        }
    }
}

/// The error for a log that is not the one that results were made of.
pub(crate) fn lost_log(what: String) -> Error {
    Error::Request(format!("{what}. {}", stores::log::LOST_REMEDY))
}

/// The error of a view's query.
pub(crate) fn failed_of<K>(job: &Job<K>) -> impl Fn(DataFusionError) -> jobs::Error + Copy {
    |source| jobs::Error::Query {
        job: job.name().to_owned(),
        source,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_says_what_was_done_before() {
        let applied = |rows, restoration| Applied {
            rows,
            restoration,
            ..Applied::default()
        };
        let plain = Error::Stopped.after(Applied::default());
        assert!(matches!(plain, Error::Stopped), "{plain}");
        let error = stores::Error::DamagedFile {
            path: "a/b".to_owned(),
            why: "it is short".to_owned(),
        };
        let error = Error::from(error)
            .after(applied(2, None))
            .after(applied(1, Some(7)));
        let text = error.to_string();
        assert!(text.contains("3 rows were written anew"), "{text}");
        assert!(text.contains("restoration 7"), "{text}");
        let (path, _) = error.damaged_file().expect("a file");
        assert_eq!((path.as_str(), error.may_pass()), ("a/b", false));
        assert!(Error::Stopped.after(applied(1, None)).may_pass());
        assert!(matches!(error.apart().0, Error::Store(_)));
    }
}
