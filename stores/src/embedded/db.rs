//! One SQLite file in the data folder: opening it, and its connections.
//!
//! A file is opened under a lock, so that two processes don't both make it; then every process has
//! one connection that writes and a few that read, all opened at once and kept. SQLite itself
//! arranges processes: a writer waits for the one before it, readers wait for nobody.
//!
//! A file that can be made again from elsewhere may be deleted while processes use it. So it is
//! reached through a link, and every new file has a name of its own: SQLite finds the files beside
//! it (`-wal`, `-shm`) by name, and what an old file left there must never be read into a new one,
//! nor a process that still has the old one open touch the files of the new one. Before each use
//! the link is compared with what is open.

use std::ffi::OsStr;
use std::fs::TryLockError;
use std::ops::{Deref, DerefMut};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use sqlx::sqlite::{SqliteConnectOptions, SqliteJournalMode, SqliteSynchronous};
use sqlx::{AssertSqlSafe, ConnectOptions, Connection, Row, SqliteConnection};
use tokio::sync::{Mutex, OwnedMutexGuard, OwnedSemaphorePermit, RwLock, Semaphore};

use super::fault::fault;
use crate::{Error, Result};

/// The folder of lock files.
pub(crate) const LOCKS: &str = "locks";

/// Begins a transaction that may write. Taking the right to write at once means that what was read
/// in the transaction cannot be out of date when it writes.
pub(crate) const BEGIN_WRITE: &str = "BEGIN IMMEDIATE";

/// How long to wait for another process or another task.
const WAIT: Duration = Duration::from_secs(30);

/// How often a file that vanishes is opened before that is an error.
const OPEN_TRIES: u32 = 5;

/// How often to try a lock that another process holds.
const LOCK_RETRY: Duration = Duration::from_millis(5);

/// How long to wait for readers before a write-ahead log is emptied only in part.
const TIDY_WAIT: Duration = Duration::from_secs(3);

const READER_CACHE_KIB: u32 = 8 * 1024;

/// Memory that SQLite may take for the caches of all connections of this process together.
const CACHES_BYTES_MAX: u32 = 192 << 20;

/// What distinguishes the files.
#[derive(Debug)]
pub(crate) struct Kind {
    /// The file's name in the data folder.
    pub(crate) name: &'static str,
    /// The version of its tables.
    pub(crate) version: i64,
    /// What makes the tables.
    pub(crate) tables: &'static str,
    /// Older versions whose files are kept, ascending, each with what brings it to the next version.
    pub(crate) upgrades: &'static [(i64, Upgrade)],
    /// Whether the file can be made again from elsewhere, so that it may be deleted in use.
    pub(crate) replaceable: bool,
    /// Bytes of a page: large ones for what is read in stretches, small ones for what is written here
    /// and there.
    pub(crate) page_bytes: u32,
    /// What the writing connection may keep in memory, in KiB.
    pub(crate) cache_kib: u32,
    /// How many connections read.
    pub(crate) readers: usize,
    /// How many rows SQLite may be ahead of the task that reads them.
    pub(crate) rows_ahead: usize,
    /// What helps when the file is damaged.
    pub(crate) remedy: &'static str,
}

/// A file whose rows are written here and there.
pub(super) const SMALL_FILE: Kind = Kind {
    name: "",
    version: 1,
    tables: "",
    upgrades: &[],
    replaceable: false,
    page_bytes: 4096,
    cache_kib: 8 * 1024,
    readers: 2,
    rows_ahead: 128,
    remedy: "",
};

/// What brings the tables of a file to the next version.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Upgrade {
    /// Statements.
    Statements(&'static str),
    /// Statements for each table whose name ends so; the rest of it is put in the place of `{table}`.
    Tables {
        ending: &'static str,
        statements: &'static str,
    },
}

/// A file, opened again where it may be.
#[derive(Debug)]
pub(crate) struct Db {
    folder: PathBuf,
    kind: &'static Kind,
    opened: RwLock<Arc<Opened>>,
}

impl Db {
    pub(crate) async fn open(folder: &Path, kind: &'static Kind) -> Result<Self> {
        let opened = Opened::open(folder, kind).await?;
        Ok(Self {
            folder: folder.to_owned(),
            kind,
            opened: RwLock::new(Arc::new(opened)),
        })
    }

    /// The connections to the file that is there now.
    pub(crate) async fn current(&self) -> Result<Arc<Opened>> {
        let opened = Arc::clone(&*self.opened.read().await);
        if opened.stands() {
            return Ok(opened);
        }
        if !self.kind.replaceable {
            return Err(Error::broken(
                format!("using {}", opened.path.display()),
                "the file was removed or replaced while it was in use; put it back, then start \
                 every process of this folder again",
            ));
        }
        let mut slot = self.opened.write().await;
        if !slot.stands() {
            tracing::warn!(
                file = self.kind.name,
                "the file was removed; it is made anew"
            );
            *slot = Arc::new(Opened::open(&self.folder, self.kind).await?);
        }
        Ok(Arc::clone(&slot))
    }
}

/// An open file.
#[derive(Debug)]
pub(crate) struct Opened {
    kind: &'static Kind,
    /// The file itself.
    path: PathBuf,
    /// The link to it, if it is reached through one.
    link: Option<PathBuf>,
    id: FileId,
    writer: Arc<Mutex<SqliteConnection>>,
    readers: Vec<Arc<Mutex<SqliteConnection>>>,
    free_readers: Arc<Semaphore>,
}

/// What tells one file from another, whatever its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct FileId {
    device: u64,
    inode: u64,
}

impl FileId {
    fn of(path: &Path) -> std::io::Result<Self> {
        // Not by opening it: closing a second descriptor would let go of SQLite's locks.
        let metadata = std::fs::metadata(path)?;
        Ok(Self {
            device: metadata.dev(),
            inode: metadata.ino(),
        })
    }
}

impl Opened {
    async fn open(folder: &Path, kind: &'static Kind) -> Result<Self> {
        let _lock = lock(folder, kind).await?;
        let named = folder.join(kind.name);
        if !kind.replaceable {
            return Self::open_file(folder, named, None, kind).await;
        }
        let mut tries_left = OPEN_TRIES;
        loop {
            let path = target(folder, kind)?;
            let link = Some(named.clone());
            let opened = Self::open_file(folder, path.clone(), link, kind).await;
            tries_left -= 1;
            // Whoever deletes the file may do so while it is opened.
            if opened.is_ok() || path.is_file() || tries_left == 0 {
                return opened;
            }
        }
    }

    async fn open_file(
        folder: &Path,
        path: PathBuf,
        link: Option<PathBuf>,
        kind: &'static Kind,
    ) -> Result<Self> {
        let fault = |error| fault("opening", &path, kind.remedy, error);
        let broken = |error| Error::broken(format!("opening {}", path.display()), error);

        let mut writer = options(&path, kind, true)
            .create_if_missing(true)
            .connect()
            .await
            .map_err(fault)?;
        ensure_tables(&mut writer, &path, kind).await?;
        let mut readers = Vec::with_capacity(kind.readers);
        for _ in 0..kind.readers {
            let mut reader = options(&path, kind, false).connect().await.map_err(fault)?;
            // Opens the files beside this one too, while they are certainly its own.
            sqlx::query("SELECT count(*) FROM sqlite_schema")
                .execute(&mut reader)
                .await
                .map_err(fault)?;
            readers.push(Arc::new(Mutex::new(reader)));
        }
        if let Some(link) = &link
            && !leads_to(link, &path)
        {
            std::os::unix::fs::symlink(path.file_name().unwrap_or_default(), link)
                .map_err(broken)?;
        }
        super::sync_folder(folder);
        Ok(Self {
            kind,
            id: FileId::of(&path).map_err(broken)?,
            path: path.clone(),
            link,
            writer: Arc::new(Mutex::new(writer)),
            free_readers: Arc::new(Semaphore::new(readers.len())),
            readers,
        })
    }

    /// Whether the file that is open is still the one in the folder.
    fn stands(&self) -> bool {
        self.link
            .as_ref()
            .is_none_or(|link| leads_to(link, &self.path))
            && FileId::of(&self.path).is_ok_and(|id| id == self.id)
    }

    /// The connection that writes.
    pub(crate) async fn writer(&self) -> Result<Writer> {
        let mut connection = tokio::time::timeout(WAIT, Arc::clone(&self.writer).lock_owned())
            .await
            .map_err(|_| self.busy())?;
        self.tidy(&mut connection, true).await?;
        Ok(FileConnection {
            connection,
            _permit: None,
            in_transaction: false,
        })
    }

    /// A connection that reads.
    pub(crate) async fn reader(&self) -> Result<Reader> {
        let permit = tokio::time::timeout(WAIT, Arc::clone(&self.free_readers).acquire_owned())
            .await
            .map_err(|_| self.busy())?
            .map_err(|error| Error::broken(format!("using {}", self.path.display()), error))?;
        // There are as many permits as connections, so one is free.
        let mut connection = self
            .readers
            .iter()
            .find_map(|reader| Arc::clone(reader).try_lock_owned().ok())
            .ok_or_else(|| self.busy())?;
        self.tidy(&mut connection, false).await?;
        Ok(FileConnection {
            connection,
            _permit: Some(permit),
            in_transaction: false,
        })
    }

    /// A connection that reads and is the caller's own, for what takes long: the others stay free.
    /// It is closed when it is dropped.
    pub(crate) async fn own_reader(&self) -> Result<SqliteConnection> {
        let connection = options(&self.path, self.kind, false)
            .connect()
            .await
            .map_err(self.fault("opening"))?;
        if self.stands() {
            return Ok(connection);
        }
        Err(Error::Unavailable {
            what: format!("using {}", self.path.display()),
            why: "the file was removed or replaced while it was opened once more".to_owned(),
        })
    }

    /// A connection of the caller's own that can't write, whatever it is told.
    pub(crate) async fn read_only(&self) -> Result<SqliteConnection> {
        options(&self.path, self.kind, false)
            .read_only(true)
            .connect()
            .await
            .map_err(self.fault("opening"))
    }

    /// What turns an error of a statement into one of the ports.
    pub(crate) fn fault<'a>(&'a self, doing: &'a str) -> impl Fn(sqlx::Error) -> Error + Copy + 'a {
        move |error| {
            if self.kind.replaceable && !self.stands() {
                return Error::Unavailable {
                    what: format!("{doing} ({})", self.path.display()),
                    why: format!("the file was removed while it was in use ({error})"),
                };
            }
            fault(doing, &self.path, self.kind.remedy, error)
        }
    }

    /// The error for content that is not what it should be.
    pub(crate) fn damaged(&self, doing: &str, what: impl std::fmt::Display) -> Error {
        self.broken(doing, &format!("{what}; {}", self.kind.remedy))
    }

    /// An error that a person must look at.
    pub(crate) fn broken(&self, doing: &str, why: &str) -> Error {
        Error::broken(format!("{doing} ({})", self.path.display()), why)
    }

    /// Replaces a connection that is stuck in a transaction: when the disk is full SQLite may end
    /// one by itself, which its client does not notice.
    async fn tidy(&self, connection: &mut SqliteConnection, writes: bool) -> Result<()> {
        if !connection.is_in_transaction() {
            return Ok(());
        }
        let fault = self.fault("using");
        // The roll-back of a transaction that was dropped may still be under way.
        connection.ping().await.map_err(fault)?;
        if connection.is_in_transaction() {
            *connection = options(&self.path, self.kind, writes)
                .connect()
                .await
                .map_err(fault)?;
        }
        Ok(())
    }

    fn busy(&self) -> Error {
        Error::Unavailable {
            what: format!("using {}", self.path.display()),
            why: "this process kept all its connections busy for too long".to_owned(),
        }
    }
}

/// A connection of a caller, until it is dropped. An open transaction is rolled back then.
#[derive(Debug)]
pub(crate) struct FileConnection {
    connection: OwnedMutexGuard<SqliteConnection>,
    // Below the guard: the connection is given back before the permit is.
    _permit: Option<OwnedSemaphorePermit>,
    in_transaction: bool,
}

/// A connection that reads.
pub(crate) type Reader = FileConnection;
/// A connection that writes.
pub(crate) type Writer = FileConnection;

impl FileConnection {
    /// Begins a transaction that writes.
    pub(crate) async fn begin_write(&mut self) -> Result<(), sqlx::Error> {
        self.begin_by(BEGIN_WRITE).await
    }

    /// Begins a transaction. Unlike one of `sqlx`, it does not borrow the connection.
    pub(super) async fn begin_by(&mut self, statement: &'static str) -> Result<(), sqlx::Error> {
        // What cancelled calls have sent is done then, so there is room for the statement that a drop sends.
        self.connection.ping().await?;
        self.in_transaction = true;
        let begin = sqlx::raw_sql(statement).execute(&mut *self.connection);
        begin.await.map(drop)
    }

    /// Commits the transaction.
    pub(crate) async fn commit(&mut self) -> Result<(), sqlx::Error> {
        let commit = sqlx::raw_sql("COMMIT").execute(&mut *self.connection);
        commit.await?;
        self.in_transaction = false;
        Ok(())
    }
}

impl Drop for FileConnection {
    fn drop(&mut self) {
        if self.in_transaction {
            // The first poll sends the statement to the connection's thread, which runs it before any later one.
            let rollback = sqlx::raw_sql("ROLLBACK").execute(&mut *self.connection);
            let _sent = rollback.now_or_never();
        }
    }
}

impl Deref for FileConnection {
    type Target = SqliteConnection;

    fn deref(&self) -> &SqliteConnection {
        &self.connection
    }
}

impl DerefMut for FileConnection {
    fn deref_mut(&mut self) -> &mut SqliteConnection {
        &mut self.connection
    }
}

fn options(path: &Path, kind: &Kind, writes: bool) -> SqliteConnectOptions {
    let cache_kib = if writes {
        kind.cache_kib
    } else {
        READER_CACHE_KIB
    };
    SqliteConnectOptions::new()
        .filename(path)
        .page_size(kind.page_bytes)
        .journal_mode(SqliteJournalMode::Wal)
        .synchronous(SqliteSynchronous::Full)
        .busy_timeout(WAIT)
        .pragma("cache_size", format!("-{cache_kib}"))
        .pragma("soft_heap_limit", CACHES_BYTES_MAX.to_string())
        .pragma("wal_autocheckpoint", "4000")
        .pragma("journal_size_limit", "67108864")
        // What is deleted is gone from the file, for the sake of those who are erased.
        .pragma("secure_delete", "ON")
        .pragma("query_only", if writes { "OFF" } else { "ON" })
        .statement_cache_capacity(64)
        .row_buffer_size(kind.rows_ahead)
        .disable_statement_logging()
}

/// Makes the tables of a new file, and looks whether those of an old one are understood.
async fn ensure_tables(writer: &mut SqliteConnection, path: &Path, kind: &Kind) -> Result<()> {
    let fault = |error| fault("opening", path, kind.remedy, error);
    let broken = |why: String| Error::broken(format!("opening {}", path.display()), why);
    let mut tx = writer.begin_with(BEGIN_WRITE).await.map_err(fault)?;
    let version: i64 = sqlx::query_scalar("PRAGMA user_version")
        .fetch_one(&mut *tx)
        .await
        .map_err(fault)?;
    let tables: i64 = sqlx::query("SELECT count(*) FROM sqlite_schema")
        .fetch_one(&mut *tx)
        .await
        .and_then(|row| row.try_get(0))
        .map_err(fault)?;
    if version == kind.version {
        return Ok(());
    }
    if version > kind.version {
        return Err(broken(format!(
            "it was written by a newer version of this program (tables of version {version}, here \
             {} are known); use that program, or another data folder",
            kind.version
        )));
    }
    let steps = if version == 0 && tables == 0 {
        vec![Upgrade::Statements(kind.tables)]
    } else {
        steps(version, kind).ok_or_else(|| {
            broken(format!(
                "its tables are of version {version}, and not what this program writes ({}); use \
                 another data folder",
                kind.version
            ))
        })?
    };
    for step in steps {
        take(&mut tx, step).await.map_err(fault)?;
    }
    let pragma = format!("PRAGMA user_version = {}", kind.version);
    sqlx::raw_sql(AssertSqlSafe(pragma))
        .execute(&mut *tx)
        .await
        .map_err(fault)?;
    tx.commit().await.map_err(fault)
}

/// What brings the tables of an older version to this one; nothing if that can't be done.
fn steps(version: i64, kind: &Kind) -> Option<Vec<Upgrade>> {
    let from = kind.upgrades.iter().position(|(of, _)| *of == version)?;
    let steps = kind.upgrades.get(from..)?;
    Some(steps.iter().map(|(_, step)| *step).collect())
}

async fn take(connection: &mut SqliteConnection, step: Upgrade) -> Result<(), sqlx::Error> {
    let (ending, statements) = match step {
        Upgrade::Statements(statements) => {
            sqlx::raw_sql(statements).execute(connection).await?;
            return Ok(());
        }
        Upgrade::Tables { ending, statements } => (ending, statements),
    };
    let names: Vec<String> =
        sqlx::query_scalar("SELECT name FROM sqlite_schema WHERE type = 'table' ORDER BY name")
            .fetch_all(&mut *connection)
            .await?;
    for table in names.iter().filter_map(|name| name.strip_suffix(ending)) {
        let statements = statements.replace("{table}", table);
        sqlx::raw_sql(AssertSqlSafe(statements))
            .execute(&mut *connection)
            .await?;
    }
    Ok(())
}

/// Keeps other processes from opening the same file until it is dropped.
async fn lock(folder: &Path, kind: &Kind) -> Result<std::fs::File> {
    let path = folder.join(LOCKS).join(format!("{}.open", kind.name));
    let broken = |error: std::io::Error| {
        let why = format!("{error}; the data folder must be one that this user can write");
        Error::broken(format!("opening {}", path.display()), why)
    };
    let file = std::fs::File::options()
        .write(true)
        .create(true)
        .truncate(false)
        .open(&path)
        .map_err(broken)?;
    let tries = WAIT.as_millis() / LOCK_RETRY.as_millis();
    for _ in 0..tries {
        match file.try_lock() {
            Ok(()) => return Ok(file),
            Err(TryLockError::WouldBlock) => tokio::time::sleep(LOCK_RETRY).await,
            Err(TryLockError::Error(error)) => return Err(broken(error)),
        }
    }
    Err(Error::Unavailable {
        what: format!("opening {}", folder.join(kind.name).display()),
        why: format!("another process holds {} for too long", path.display()),
    })
}

fn leads_to(link: &Path, path: &Path) -> bool {
    std::fs::read_link(link).is_ok_and(|target| Some(target.as_os_str()) == path.file_name())
}

/// The file that the link of a replaceable file leads to; where it leads nowhere, a new name, with
/// everything that earlier files left behind removed. Call it under the lock.
fn target(folder: &Path, kind: &Kind) -> Result<PathBuf> {
    let link = folder.join(kind.name);
    if let Ok(name) = std::fs::read_link(&link) {
        let path = folder.join(name);
        if path.is_file() {
            return Ok(path);
        }
    }
    let broken = |error| Error::broken(format!("replacing {}", link.display()), error);
    for entry in std::fs::read_dir(folder).map_err(broken)? {
        let entry = entry.map_err(broken)?;
        if is_left_over(kind.name, &entry.file_name()) {
            match std::fs::remove_file(entry.path()) {
                Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                    return Err(broken(error));
                }
                // Whoever removed the file may be removing what belongs to it at this moment.
                _ => {}
            }
        }
    }
    let id = uuid::Uuid::new_v4().simple().to_string();
    Ok(folder.join(format!("{}.{id}", kind.name)))
}

/// Whether a file is the link, one that a link led to, or one that SQLite put beside it.
fn is_left_over(kind: &str, file: &OsStr) -> bool {
    let Some(rest) = file.to_str().and_then(|file| file.strip_prefix(kind)) else {
        return false;
    };
    let rest = ["-wal", "-shm", "-journal"]
        .iter()
        .find_map(|end| rest.strip_suffix(end))
        .unwrap_or(rest);
    rest.is_empty()
        || rest
            .strip_prefix('.')
            .is_some_and(|id| uuid::Uuid::try_parse(id).is_ok())
}

/// Empties the write-ahead log of a file, as far as no reader uses it. SQLite overwrites deleted rows in the file itself,
/// but not in the log. A file that does not exist is skipped.
pub(super) async fn truncate_wal(folder: &Path, name: &str) -> Result<()> {
    let named = folder.join(name);
    let path = std::fs::read_link(&named).map_or(named, |target| folder.join(target));
    if !path.is_file() {
        return Ok(());
    }
    let broken = |error| {
        Error::broken(
            format!("emptying the write-ahead log of {}", path.display()),
            error,
        )
    };
    let mut connection = SqliteConnectOptions::new()
        .filename(&path)
        .busy_timeout(TIDY_WAIT)
        .disable_statement_logging()
        .connect()
        .await
        .map_err(broken)?;
    sqlx::raw_sql("PRAGMA wal_checkpoint(TRUNCATE)")
        .execute(&mut connection)
        .await
        .map_err(broken)?;
    connection.close().await.map_err(broken)
}
