//! Errors of definitions and queries.

use datafusion::error::DataFusionError;

/// The result of reading or running a job.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// An error of a job.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// An invalid definition.
    #[error("{file}:{line}: {reason}")]
    Definition {
        /// The file.
        file: String,
        /// The line, counted from 1.
        line: usize,
        /// The problem and the expected value.
        reason: String,
    },
    /// A folder of views, or a file in it, that can't be read.
    #[error(
        "{path}: {reason}; views_dir names a folder with one folder for each view, which holds job.toml and query.sql"
    )]
    Views {
        /// The folder or file.
        path: String,
        /// The reason.
        reason: String,
    },
    /// A query that failed while it ran.
    #[error("job {job}: {source}")]
    Query {
        /// The job.
        job: String,
        /// The error of the query engine.
        source: DataFusionError,
    },
    /// Rows that do not have the job's shape.
    #[error("job {job}: {reason}")]
    Rows {
        /// The job.
        job: String,
        /// The problem.
        reason: String,
    },
    /// The query engine could not be created.
    #[error("query engine: {0}")]
    Engine(DataFusionError),
}
