//! What can be wrong with a definition or a query.

use datafusion::error::DataFusionError;

/// The result of reading or running a job.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// An error of a job. The message says what, where and what to do.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A definition that does not hold, with its file and line.
    #[error("{file}:{line}: {what}")]
    Definition {
        /// The file.
        file: String,
        /// The line, counted from 1.
        line: usize,
        /// What is wrong and what is expected.
        what: String,
    },
    /// A folder of views, or something in it, that can't be read.
    #[error(
        "{path}: {why}; views_dir names a folder that holds a folder with job.toml and query.sql for each view"
    )]
    Views {
        /// What can't be read.
        path: String,
        /// Why.
        why: String,
    },
    /// A query that failed while it ran.
    #[error("job {job}: {source}")]
    Query {
        /// The job.
        job: String,
        /// What the query engine said.
        source: DataFusionError,
    },
    /// Rows that are not of the job's shape.
    #[error("job {job}: {what}")]
    Rows {
        /// The job.
        job: String,
        /// What is wrong.
        what: String,
    },
    /// The query engine could not be set up.
    #[error("query engine: {0}")]
    Engine(DataFusionError),
}
