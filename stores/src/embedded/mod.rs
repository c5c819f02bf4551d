//! The embedded adapters: the whole system on one machine, in one data folder, without a server.
//!
//! | file | holds |
//! |---|---|
//! | `log.db` | topics: batches of records, compressed and with a checksum |
//! | `live.db` | slots and live parts; a link to the present file |
//! | `views.db` | run records and batch rows, one table for each view |
//! | `achievements.db` | what athletes have achieved |
//! | `counts.db` | counts of members by day |
//! | `erasures.db` | records of erasures |
//! | `reconciliations.db` | records of reconciliations, alerts, approvals, corrections and schedules |
//! | `keys.db` | keys of the API, and what administrators did |
//! | `canon.db` | the rows of entities, and the outbox of their notifications |
//! | `archive/` | Parquet files and manifests |
//! | `locks/` | leases |
//!
//! The tables and statements of `keys.db` and `canon.db` are in `crate::sql`.
//!
//! Several processes may use one folder at once: SQLite's write-ahead log lets readers and one
//! writer go on side by side, and every change is one transaction that begins with the right to
//! write.

mod achievements;
mod counts;
pub(crate) mod db;
mod editions;
mod fault;
mod lease;
mod live;
mod live_outbox;
mod live_read;
mod live_scan;
mod live_sums;
mod live_write;
mod log;
mod payload;
mod records;
mod runs;
mod session;
pub(crate) mod statement;
mod view_rows;
mod view_scan;
mod views;

use std::path::{Path, PathBuf};

pub use achievements::SqliteAchievements;
pub use counts::SqliteCounts;
pub use lease::FileLeases;
pub use live::SqliteLive;
pub use log::SqliteLog;
pub use records::SqliteRecords;
pub use views::SqliteViews;

use crate::archive::Archive;
use crate::sql::{ApiKeyStore, EntityStore};
use crate::{Error, Result};

/// The files that may hold a person.
const FILES_OF_PEOPLE: [&str; 7] = [
    "log.db",
    "live.db",
    "views.db",
    "canon.db",
    "achievements.db",
    "counts.db",
    "reconciliations.db",
];

/// A data folder.
#[derive(Debug, Clone)]
pub struct DataFolder(PathBuf);

impl DataFolder {
    /// Opens a folder, which is made if it is not there. None of its files is made yet.
    ///
    /// # Errors
    /// [`Error::Broken`] if the folder can't be made or written.
    pub fn open(folder: &Path) -> Result<Self> {
        let cannot = |error| {
            let why = format!(
                "{error}; give a folder that can be made and written by this user, on a disk that \
                 is not full"
            );
            Error::broken(format!("opening the data folder {}", folder.display()), why)
        };
        std::fs::create_dir_all(folder.join(db::LOCKS)).map_err(cannot)?;
        // SQLite takes a relative path that begins with `file:` for something else.
        let folder = folder.canonicalize().map_err(cannot)?;
        if let Some(parent) = folder.parent() {
            sync_folder(parent);
        }
        Ok(Self(folder))
    }

    /// The log.
    ///
    /// # Errors
    /// [`Error::Broken`] if its file is damaged, of a newer version or can't be written;
    /// [`Error::Unavailable`] if another process keeps it busy for too long.
    pub async fn log(&self) -> Result<SqliteLog> {
        SqliteLog::open(&self.0).await
    }

    /// Live state.
    ///
    /// # Errors
    /// As [`DataFolder::log`].
    pub async fn live(&self) -> Result<SqliteLive> {
        SqliteLive::open(&self.0).await
    }

    /// Run records and batch rows.
    ///
    /// # Errors
    /// As [`DataFolder::log`].
    pub async fn views(&self) -> Result<SqliteViews> {
        SqliteViews::open(&self.0).await
    }

    /// What athletes have achieved.
    ///
    /// # Errors
    /// As [`DataFolder::log`].
    pub async fn achievements(&self) -> Result<SqliteAchievements> {
        SqliteAchievements::open(&self.0).await
    }

    /// Counts by day.
    ///
    /// # Errors
    /// As [`DataFolder::log`].
    pub async fn counts(&self) -> Result<SqliteCounts> {
        SqliteCounts::open(&self.0).await
    }

    /// Records of erasures.
    ///
    /// # Errors
    /// As [`DataFolder::log`].
    pub async fn erasures(&self) -> Result<SqliteRecords> {
        SqliteRecords::open(&self.0, &records::ERASURES).await
    }

    /// All other records.
    ///
    /// # Errors
    /// As [`DataFolder::log`].
    pub async fn records(&self) -> Result<SqliteRecords> {
        SqliteRecords::open(&self.0, &records::RECONCILIATIONS).await
    }

    /// API keys.
    ///
    /// # Errors
    /// As [`DataFolder::log`].
    pub async fn keys(&self) -> Result<ApiKeyStore> {
        ApiKeyStore::open_file(&self.0).await
    }

    /// Entities.
    ///
    /// # Errors
    /// As [`DataFolder::log`].
    pub async fn entities(&self) -> Result<EntityStore> {
        EntityStore::open_file(&self.0).await
    }

    /// The archive.
    ///
    /// # Errors
    /// [`Error::Broken`] if its folder can't be made.
    pub fn archive(&self) -> Result<Archive> {
        Archive::local(&self.0.join("archive"))
    }

    /// Empties the write-ahead logs of the files that may hold an erased person: deleted rows stay there until it is
    /// done. A file that does not exist, because its store is on a server, is skipped.
    ///
    /// # Errors
    /// [`Error::Broken`] if a file can't be read or written.
    pub async fn truncate_wals(&self) -> Result<()> {
        for name in FILES_OF_PEOPLE {
            db::truncate_wal(&self.0, name).await?;
        }
        Ok(())
    }

    /// Leases.
    #[must_use]
    pub fn leases(&self) -> FileLeases {
        FileLeases::new(self.0.join(db::LOCKS))
    }
}

/// Makes the names in a folder durable. A parent that may not be opened is no reason to stop.
fn sync_folder(folder: &Path) {
    let synced = std::fs::File::open(folder).and_then(|folder| folder.sync_all());
    if let Err(error) = synced {
        tracing::debug!(folder = %folder.display(), %error, "the folder was not synced");
    }
}
