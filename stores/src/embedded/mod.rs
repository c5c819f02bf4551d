//! The embedded adapters: the whole system on one machine, in one data folder, without a server.
//!
//! | file | holds |
//! |---|---|
//! | `log.db` | topics: batches of records, compressed and with a checksum |
//! | `live.db` | slots and live parts; a link to the present file |
//! | `views.db` | run records and batch rows, one table for each view |
//! | `canon.db` | the rows of entities, and the outbox of their notifications |
//! | `archive/` | Parquet files and manifests |
//! | `locks/` | leases |
//!
//! Several processes may use one folder at once: SQLite's write-ahead log lets readers and one
//! writer go on side by side, and every change is one transaction that begins with the right to
//! write.

mod canon;
mod canon_apply;
mod canon_connect;
mod canon_decide;
mod canon_dump;
mod canon_groups;
mod canon_outbox;
mod canon_rows;
mod canon_statement;
mod canon_versions;
mod db;
mod editions;
mod fault;
mod lease;
mod live;
mod live_read;
mod live_write;
mod log;
mod payload;
mod runs;
mod statement;
mod view_rows;
mod views;

use std::path::Path;
use std::sync::Arc;

pub use canon::SqliteCanon;
pub use lease::FileLeases;
pub use live::SqliteLive;
pub use log::SqliteLog;
pub use views::SqliteViews;

use crate::archive::Archive;
use crate::{Error, Result};

/// The stores of one data folder.
#[derive(Debug, Clone)]
pub struct Embedded {
    /// The log.
    pub log: Arc<SqliteLog>,
    /// Live state.
    pub live: Arc<SqliteLive>,
    /// Run records and batch rows.
    pub views: Arc<SqliteViews>,
    /// Entities.
    pub canon: Arc<SqliteCanon>,
    /// The archive.
    pub archive: Archive,
    /// Leases.
    pub leases: Arc<FileLeases>,
}

impl Embedded {
    /// Opens the stores in `folder`, which is made if it is not there. Several processes may do so
    /// at the same moment.
    ///
    /// # Errors
    /// [`Error::Broken`] if the folder can't be made or written, or if a file in it is damaged or
    /// of a newer version; [`Error::Unavailable`] if another process keeps it busy for too long.
    pub async fn open(folder: &Path) -> Result<Self> {
        let cannot = |error| {
            let why = format!(
                "{error}; give a folder that can be made and written by this user, on a disk that \
                 is not full"
            );
            Error::broken(format!("opening the data folder {}", folder.display()), why)
        };
        std::fs::create_dir_all(folder.join(db::LOCKS)).map_err(cannot)?;
        // SQLite takes a relative path that begins with `file:` for something else.
        let folder = &folder.canonicalize().map_err(cannot)?;
        if let Some(parent) = folder.parent() {
            sync_folder(parent);
        }
        Ok(Self {
            log: Arc::new(SqliteLog::open(folder).await?),
            live: Arc::new(SqliteLive::open(folder).await?),
            views: Arc::new(SqliteViews::open(folder).await?),
            canon: Arc::new(SqliteCanon::open(folder).await?),
            archive: Archive::local(&folder.join("archive"))?,
            leases: Arc::new(FileLeases::new(folder.join(db::LOCKS))),
        })
    }
}

/// Makes the names in a folder durable. A parent that may not be opened is no reason to stop.
fn sync_folder(folder: &Path) {
    let synced = std::fs::File::open(folder).and_then(|folder| folder.sync_all());
    if let Err(error) = synced {
        tracing::debug!(folder = %folder.display(), %error, "the folder was not synced");
    }
}
