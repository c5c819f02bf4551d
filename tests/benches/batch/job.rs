//! The measured jobs: the built-in views, and the job that earlier comparisons with other systems
//! used.

use std::path::{Path, PathBuf};

use jobs::Catalog;
use schemas::source::Source;

/// A job.
#[derive(Debug)]
pub(crate) struct Job {
    pub(crate) name: &'static str,
    /// The source of its input.
    pub(crate) source: Source,
    /// The folder of its view definitions within this crate; `None` for the built-in views.
    views: Option<&'static str>,
}

const BUILT_IN: &str = "../jobs/views";
const PEERS: Option<&str> = Some("benches/batch/peers");

/// All jobs.
pub(crate) const JOBS: [Job; 5] = [
    Job::new("plays", Source::Plays, None),
    Job::new("efforts", Source::Efforts, None),
    Job::new("authorizations", Source::Authorizations, None),
    Job::new("peer-plays", Source::Plays, PEERS),
    Job::new("peer-boards", Source::Efforts, PEERS),
];

impl Job {
    const fn new(name: &'static str, source: Source, views: Option<&'static str>) -> Self {
        Self {
            name,
            source,
            views,
        }
    }

    /// Returns the job with this name.
    pub(crate) fn find(name: &str) -> &'static Self {
        let job = JOBS.iter().find(|job| job.name == name);
        assert!(job.is_some(), "there is no job {name:?}");
        job.expect("a job")
    }

    /// Returns the folder of its view definitions.
    pub(crate) fn folder(&self) -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join(self.views.unwrap_or(BUILT_IN))
    }

    /// Returns its views.
    pub(crate) fn catalog(&self) -> Catalog {
        let catalog = match self.views {
            None => Catalog::built_in(),
            Some(_) => Catalog::read(&self.folder()),
        };
        catalog.expect("the views")
    }
}
