//! Embedded adapters: the whole system on one machine, in one data folder, without servers.
//!
//! | file | contents |
//! |---|---|
//! | `log.db` | topics: batches of records, compressed and with a checksum |
//! | `live.db` | live state; a link to the present file |
//! | `views.db` | run records and batch rows, one table per view |
//! | `achievements.db` | achievements of athletes |
//! | `counts.db` | counts of members by day |
//! | `erasures.db` | records of erasures |
//! | `reconciliations.db` | records of reconciliations, alerts, approvals, corrections and schedules |
//! | `keys.db` | API keys, and the audit log of administrators |
//! | `canon.db` | entities, and the outbox of their notifications |
//! | `archive/` | Parquet files and manifests |
//! | `locks/` | leases |
//!
//! The tables and statements of `keys.db` and `canon.db` are in `crate::sql`.
//!
//! Several processes may use one folder at once. SQLite's write-ahead log lets readers and one
//! writer proceed concurrently, and every change is one transaction that begins with the write
//! lock.

mod achievements;
mod counts;
pub(crate) mod db;
mod editions;
mod errors;
mod lease;
mod live;
mod live_counts;
mod live_outbox;
mod live_read;
mod live_scan;
mod live_state;
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
use crate::durable::sync_folder;
use crate::sql::{ApiKeyStore, EntityStore};
use crate::{Error, Result};

/// Files that may contain data about a person.
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
    /// Opens a folder and creates it if it does not exist. Its files are created later.
    ///
    /// # Errors
    /// [`Error::Broken`] if the folder cannot be created or written.
    pub fn open(folder: &Path) -> Result<Self> {
        let open_error = |error| {
            let reason = format!(
                "{error}; choose a folder that this user can create and write, on a disk that is \
                 not full"
            );
            Error::broken(
                format!("opening the data folder {}", folder.display()),
                reason,
            )
        };
        std::fs::create_dir_all(folder.join(db::LOCKS)).map_err(open_error)?;
        // SQLite takes a relative path that begins with `file:` for something else.
        let folder = folder.canonicalize().map_err(open_error)?;
        if let Some(parent) = folder.parent() {
            sync_folder(parent);
        }
        Ok(Self(folder))
    }

    /// Opens the log.
    ///
    /// # Errors
    /// [`Error::Broken`] if its file is damaged, has a newer version, or cannot be written.
    /// [`Error::Unavailable`] if another process keeps it locked for too long.
    pub async fn log(&self) -> Result<SqliteLog> {
        SqliteLog::open(&self.0).await
    }

    /// Opens live state.
    ///
    /// # Errors
    /// As [`DataFolder::log`].
    pub async fn live(&self) -> Result<SqliteLive> {
        SqliteLive::open(&self.0).await
    }

    /// Opens run records and batch rows.
    ///
    /// # Errors
    /// As [`DataFolder::log`].
    pub async fn views(&self) -> Result<SqliteViews> {
        SqliteViews::open(&self.0).await
    }

    /// Opens achievements.
    ///
    /// # Errors
    /// As [`DataFolder::log`].
    pub async fn achievements(&self) -> Result<SqliteAchievements> {
        SqliteAchievements::open(&self.0).await
    }

    /// Opens counts by day.
    ///
    /// # Errors
    /// As [`DataFolder::log`].
    pub async fn counts(&self) -> Result<SqliteCounts> {
        SqliteCounts::open(&self.0).await
    }

    /// Opens the records of erasures.
    ///
    /// # Errors
    /// As [`DataFolder::log`].
    pub async fn erasures(&self) -> Result<SqliteRecords> {
        SqliteRecords::open(&self.0, &records::ERASURES).await
    }

    /// Opens all other records.
    ///
    /// # Errors
    /// As [`DataFolder::log`].
    pub async fn records(&self) -> Result<SqliteRecords> {
        SqliteRecords::open(&self.0, &records::RECONCILIATIONS).await
    }

    /// Opens API keys.
    ///
    /// # Errors
    /// As [`DataFolder::log`].
    pub async fn keys(&self) -> Result<ApiKeyStore> {
        ApiKeyStore::open_file(&self.0).await
    }

    /// Opens the entity store.
    ///
    /// # Errors
    /// As [`DataFolder::log`].
    pub async fn entities(&self) -> Result<EntityStore> {
        EntityStore::open_file(&self.0).await
    }

    /// Opens the archive.
    ///
    /// # Errors
    /// [`Error::Broken`] if its folder cannot be created.
    pub fn archive(&self) -> Result<Archive> {
        Archive::local(&self.0.join("archive"))
    }

    /// Truncates the write-ahead logs of the files that may contain an erased person, because
    /// deleted rows remain there. A file that does not exist, because its store is on a server, is
    /// skipped.
    ///
    /// # Errors
    /// [`Error::Broken`] if a file cannot be read or written.
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
