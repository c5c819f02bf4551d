//! Opening of an SQLite file in the data folder, and its connections.
//!
//! A file is opened under a lock, so that two processes do not both create it. Then each process
//! has one writing connection and a few readers, all opened at once and kept open. SQLite
//! coordinates processes: a writer waits for the previous one, readers never wait.
//!
//! A file that can be rebuilt may be deleted while processes use it. Processes reach it through a
//! link, and every new file has its own name. SQLite finds `-wal` and `-shm` by name. Those of an
//! old file must never be read into a new one, and a process with the old file open must not touch
//! those of the new one. The link is compared with the open file before each use.

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

use super::errors::classify_error;
use crate::durable::sync_folder;
use crate::{Error, Result};

/// The folder of the lock files.
pub(crate) const LOCKS: &str = "locks";

/// Begins a transaction with the write lock, so that data read in the transaction cannot be
/// outdated when it writes.
pub(crate) const BEGIN_WRITE: &str = "BEGIN IMMEDIATE";

/// The maximum wait for another process or task.
const BUSY_TIMEOUT: Duration = Duration::from_secs(30);

/// The maximum number of attempts to open a file that is being deleted.
const OPEN_TRIES_MAX: u32 = 5;

/// The interval between attempts to take a lock that another process holds.
const LOCK_RETRY: Duration = Duration::from_millis(5);

/// The maximum wait for readers. After that, the write-ahead log is truncated only in part.
const WAL_BUSY_TIMEOUT: Duration = Duration::from_secs(3);

const READER_CACHE_KIB: u32 = 8 * 1024;

/// The maximum memory of the caches of all connections of this process.
const CACHES_BYTES_MAX: u32 = 192 << 20;

/// Schema and settings of one database file.
#[derive(Debug)]
pub(crate) struct DatabaseSpec {
    /// Name in the data folder.
    pub(crate) name: &'static str,
    /// Version of the tables.
    pub(crate) version: i64,
    /// Statements that create the tables.
    pub(crate) tables: &'static str,
    /// Older versions that can be upgraded, ascending, each with the step to the next version.
    pub(crate) upgrades: &'static [(i64, Upgrade)],
    /// True if the file can be rebuilt, so it may be deleted while it is in use.
    pub(crate) is_replaceable: bool,
    /// Page size: large for sequential reads, small for scattered writes.
    pub(crate) page_bytes: u32,
    /// Cache of the writing connection in KiB.
    pub(crate) cache_kib: u32,
    /// Number of reading connections.
    pub(crate) readers: usize,
    /// Number of rows that SQLite may read ahead of the task that consumes them.
    pub(crate) row_buffer: usize,
    /// Advice for error messages about a damaged file.
    pub(crate) remedy: &'static str,
}

/// Settings for files with scattered writes.
pub(super) const SMALL_FILE: DatabaseSpec = DatabaseSpec {
    name: "",
    version: 1,
    tables: "",
    upgrades: &[],
    is_replaceable: false,
    page_bytes: 4096,
    cache_kib: 8 * 1024,
    readers: 2,
    row_buffer: 128,
    remedy: "",
};

/// Upgrade step to the next version of the tables.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Upgrade {
    /// Runs statements once.
    Statements(&'static str),
    /// Runs statements for each table whose name has this ending. `{table}` stands for the name
    /// without it.
    Tables {
        ending: &'static str,
        statements: &'static str,
    },
}

/// A database file, which is reopened if it was deleted and can be rebuilt.
#[derive(Debug)]
pub(crate) struct Db {
    folder: PathBuf,
    spec: &'static DatabaseSpec,
    opened: RwLock<Arc<OpenFile>>,
}

impl Db {
    pub(crate) async fn open(folder: &Path, spec: &'static DatabaseSpec) -> Result<Self> {
        let opened = OpenFile::open(folder, spec).await?;
        Ok(Self {
            folder: folder.to_owned(),
            spec,
            opened: RwLock::new(Arc::new(opened)),
        })
    }

    /// Returns the connections to the present file.
    pub(crate) async fn current(&self) -> Result<Arc<OpenFile>> {
        let opened = Arc::clone(&*self.opened.read().await);
        if opened.is_current() {
            return Ok(opened);
        }
        if !self.spec.is_replaceable {
            return Err(Error::broken(
                format!("using {}", opened.path.display()),
                "the file was removed or replaced while it was in use; restore it, then restart every \
                 process that uses this folder",
            ));
        }
        let mut opened = self.opened.write().await;
        if !opened.is_current() {
            tracing::warn!(
                file = self.spec.name,
                "the file was removed; creating a new one"
            );
            *opened = Arc::new(OpenFile::open(&self.folder, self.spec).await?);
        }
        Ok(Arc::clone(&opened))
    }
}

/// An open database file.
#[derive(Debug)]
pub(crate) struct OpenFile {
    spec: &'static DatabaseSpec,
    /// Path of the file.
    path: PathBuf,
    /// Path of the link to it, if there is one.
    link: Option<PathBuf>,
    id: FileId,
    writer: Arc<Mutex<SqliteConnection>>,
    readers: Vec<Arc<Mutex<SqliteConnection>>>,
    reader_permits: Arc<Semaphore>,
}

/// Identity of a file, independent of its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct FileId {
    device: u64,
    inode: u64,
}

impl FileId {
    fn read(path: &Path) -> std::io::Result<Self> {
        // Does not open the file: closing a second descriptor would release SQLite's locks.
        let metadata = std::fs::metadata(path)?;
        Ok(Self {
            device: metadata.dev(),
            inode: metadata.ino(),
        })
    }
}

impl OpenFile {
    async fn open(folder: &Path, spec: &'static DatabaseSpec) -> Result<Self> {
        let _lock = lock_opening(folder, spec).await?;
        let named_path = folder.join(spec.name);
        if !spec.is_replaceable {
            return Self::open_file(folder, named_path, None, spec).await;
        }
        let mut tries_left = OPEN_TRIES_MAX;
        loop {
            let path = find_current_path(folder, spec)?;
            let link = Some(named_path.clone());
            let opened = Self::open_file(folder, path.clone(), link, spec).await;
            tries_left -= 1;
            // The file may be deleted while it is being opened.
            if opened.is_ok() || path.is_file() || tries_left == 0 {
                return opened;
            }
        }
    }

    async fn open_file(
        folder: &Path,
        path: PathBuf,
        link: Option<PathBuf>,
        spec: &'static DatabaseSpec,
    ) -> Result<Self> {
        let to_error = |error| classify_error("opening", &path, spec.remedy, error);
        let broken = |error| Error::broken(format!("opening {}", path.display()), error);

        let mut writer = connect_options(&path, spec, true)
            .create_if_missing(true)
            .connect()
            .await
            .map_err(to_error)?;
        ensure_tables(&mut writer, &path, spec).await?;
        let mut readers = Vec::with_capacity(spec.readers);
        for _ in 0..spec.readers {
            let mut reader = connect_options(&path, spec, false)
                .connect()
                .await
                .map_err(to_error)?;
            // Also opens the `-wal` and `-shm` files while they certainly belong to this file.
            sqlx::query("SELECT count(*) FROM sqlite_schema")
                .execute(&mut reader)
                .await
                .map_err(to_error)?;
            readers.push(Arc::new(Mutex::new(reader)));
        }
        if let Some(link) = &link
            && !points_to(link, &path)
        {
            std::os::unix::fs::symlink(path.file_name().unwrap_or_default(), link)
                .map_err(broken)?;
        }
        sync_folder(folder);
        Ok(Self {
            spec,
            id: FileId::read(&path).map_err(broken)?,
            path: path.clone(),
            link,
            writer: Arc::new(Mutex::new(writer)),
            reader_permits: Arc::new(Semaphore::new(readers.len())),
            readers,
        })
    }

    /// Returns whether the open file is still the one in the folder.
    fn is_current(&self) -> bool {
        self.link
            .as_ref()
            .is_none_or(|link| points_to(link, &self.path))
            && FileId::read(&self.path).is_ok_and(|id| id == self.id)
    }

    /// Waits for the writing connection.
    pub(crate) async fn writer(&self) -> Result<Writer> {
        let mut connection =
            tokio::time::timeout(BUSY_TIMEOUT, Arc::clone(&self.writer).lock_owned())
                .await
                .map_err(|_| self.busy_error())?;
        self.reset_transaction(&mut connection, true).await?;
        Ok(FileConnection {
            connection,
            _permit: None,
            in_transaction: false,
        })
    }

    /// Waits for a reading connection.
    pub(crate) async fn reader(&self) -> Result<Reader> {
        let permit = tokio::time::timeout(
            BUSY_TIMEOUT,
            Arc::clone(&self.reader_permits).acquire_owned(),
        )
        .await
        .map_err(|_| self.busy_error())?
        .map_err(|error| Error::broken(format!("using {}", self.path.display()), error))?;
        // There are as many permits as connections, so one is free.
        let mut connection = self
            .readers
            .iter()
            .find_map(|reader| Arc::clone(reader).try_lock_owned().ok())
            .ok_or_else(|| self.busy_error())?;
        self.reset_transaction(&mut connection, false).await?;
        Ok(FileConnection {
            connection,
            _permit: Some(permit),
            in_transaction: false,
        })
    }

    /// Opens a reading connection for a long read, so that the shared ones stay free. It is closed
    /// when it is dropped.
    pub(crate) async fn dedicated_reader(&self) -> Result<SqliteConnection> {
        let connection = connect_options(&self.path, self.spec, false)
            .connect()
            .await
            .map_err(self.error_mapper("opening"))?;
        if self.is_current() {
            return Ok(connection);
        }
        Err(Error::Unavailable {
            operation: format!("using {}", self.path.display()),
            reason: "the file was removed or replaced while a connection was being opened"
                .to_owned(),
        })
    }

    /// Opens a connection that cannot write.
    pub(crate) async fn read_only(&self) -> Result<SqliteConnection> {
        connect_options(&self.path, self.spec, false)
            .read_only(true)
            .connect()
            .await
            .map_err(self.error_mapper("opening"))
    }

    /// Returns a function that converts statement errors to errors of the ports.
    pub(crate) fn error_mapper<'a>(
        &'a self,
        operation: &'a str,
    ) -> impl Fn(sqlx::Error) -> Error + Copy + 'a {
        move |error| {
            if self.spec.is_replaceable && !self.is_current() {
                return Error::Unavailable {
                    operation: format!("{operation} ({})", self.path.display()),
                    reason: format!("the file was removed while it was in use ({error})"),
                };
            }
            classify_error(operation, &self.path, self.spec.remedy, error)
        }
    }

    /// Error for content that does not decode.
    pub(crate) fn damaged(&self, operation: &str, damage: impl std::fmt::Display) -> Error {
        self.broken(operation, &format!("{damage}; {}", self.spec.remedy))
    }

    /// Error that requires an operator.
    pub(crate) fn broken(&self, operation: &str, reason: &str) -> Error {
        Error::broken(format!("{operation} ({})", self.path.display()), reason)
    }

    /// Reopens a connection that is stuck in a transaction. If the disk is full, SQLite may end a
    /// transaction by itself, which the client library does not notice.
    async fn reset_transaction(
        &self,
        connection: &mut SqliteConnection,
        is_writer: bool,
    ) -> Result<()> {
        if !connection.is_in_transaction() {
            return Ok(());
        }
        let to_error = self.error_mapper("using");
        // The rollback of a dropped transaction may still be running.
        connection.ping().await.map_err(to_error)?;
        if connection.is_in_transaction() {
            *connection = connect_options(&self.path, self.spec, is_writer)
                .connect()
                .await
                .map_err(to_error)?;
        }
        Ok(())
    }

    fn busy_error(&self) -> Error {
        Error::Unavailable {
            operation: format!("using {}", self.path.display()),
            reason: format!(
                "all connections of this process were busy for {} s",
                BUSY_TIMEOUT.as_secs()
            ),
        }
    }
}

/// A connection on loan. Dropping it rolls back an open transaction.
#[derive(Debug)]
pub(crate) struct FileConnection {
    connection: OwnedMutexGuard<SqliteConnection>,
    // Declared after the guard: the connection must be released before the permit.
    _permit: Option<OwnedSemaphorePermit>,
    in_transaction: bool,
}

/// A reading connection.
pub(crate) type Reader = FileConnection;
/// A writing connection.
pub(crate) type Writer = FileConnection;

impl FileConnection {
    /// Begins a transaction with the write lock.
    pub(crate) async fn begin_write(&mut self) -> Result<(), sqlx::Error> {
        self.begin_with(BEGIN_WRITE).await
    }

    /// Begins a transaction that, unlike `sqlx::Transaction`, does not borrow the connection.
    pub(super) async fn begin_with(&mut self, statement: &'static str) -> Result<(), sqlx::Error> {
        // The ping waits for statements of cancelled calls, so there is room for the statement that
        // a drop sends.
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
            // The first poll sends the statement to the connection's thread, which runs it before
            // any later one.
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

fn connect_options(path: &Path, spec: &DatabaseSpec, is_writer: bool) -> SqliteConnectOptions {
    let cache_kib = if is_writer {
        spec.cache_kib
    } else {
        READER_CACHE_KIB
    };
    SqliteConnectOptions::new()
        .filename(path)
        .page_size(spec.page_bytes)
        .journal_mode(SqliteJournalMode::Wal)
        .synchronous(SqliteSynchronous::Full)
        .busy_timeout(BUSY_TIMEOUT)
        .pragma("cache_size", format!("-{cache_kib}"))
        .pragma("soft_heap_limit", CACHES_BYTES_MAX.to_string())
        .pragma("wal_autocheckpoint", "4000")
        .pragma("journal_size_limit", "67108864")
        // Overwrites deleted rows, for the sake of erased people.
        .pragma("secure_delete", "ON")
        .pragma("query_only", if is_writer { "OFF" } else { "ON" })
        .statement_cache_capacity(64)
        .row_buffer_size(spec.row_buffer)
        .disable_statement_logging()
}

/// Creates the tables of a new file, or upgrades those of an old one.
async fn ensure_tables(
    writer: &mut SqliteConnection,
    path: &Path,
    spec: &DatabaseSpec,
) -> Result<()> {
    let to_error = |error| classify_error("opening", path, spec.remedy, error);
    let broken = |reason: String| Error::broken(format!("opening {}", path.display()), reason);
    let mut tx = writer.begin_with(BEGIN_WRITE).await.map_err(to_error)?;
    let version: i64 = sqlx::query_scalar("PRAGMA user_version")
        .fetch_one(&mut *tx)
        .await
        .map_err(to_error)?;
    let tables: i64 = sqlx::query("SELECT count(*) FROM sqlite_schema")
        .fetch_one(&mut *tx)
        .await
        .and_then(|row| row.try_get(0))
        .map_err(to_error)?;
    if version == spec.version {
        return Ok(());
    }
    if version > spec.version {
        return Err(broken(format!(
            "a newer version of this program has written it (table version {version}; this program \
             supports up to {}); use that program, or another data folder",
            spec.version
        )));
    }
    let steps = if version == 0 && tables == 0 {
        vec![Upgrade::Statements(spec.tables)]
    } else {
        upgrade_steps(version, spec).ok_or_else(|| {
            broken(format!(
                "its table version {version} cannot be upgraded to the present version {}; use \
                 another data folder",
                spec.version
            ))
        })?
    };
    for step in steps {
        run_upgrade(&mut tx, step).await.map_err(to_error)?;
    }
    let pragma = format!("PRAGMA user_version = {}", spec.version);
    sqlx::raw_sql(AssertSqlSafe(pragma))
        .execute(&mut *tx)
        .await
        .map_err(to_error)?;
    tx.commit().await.map_err(to_error)
}

/// Returns the steps from an older version to the present one; `None` if there is no upgrade.
fn upgrade_steps(version: i64, spec: &DatabaseSpec) -> Option<Vec<Upgrade>> {
    let first_step = spec
        .upgrades
        .iter()
        .position(|(from_version, _)| *from_version == version)?;
    let steps = spec.upgrades.get(first_step..)?;
    Some(steps.iter().map(|(_, step)| *step).collect())
}

async fn run_upgrade(connection: &mut SqliteConnection, step: Upgrade) -> Result<(), sqlx::Error> {
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

/// Prevents other processes from opening the same file until the lock is dropped.
async fn lock_opening(folder: &Path, spec: &DatabaseSpec) -> Result<std::fs::File> {
    let path = folder.join(LOCKS).join(format!("{}.open", spec.name));
    let broken = |error: std::io::Error| {
        let reason = format!("{error}; make the data folder writable for this user");
        Error::broken(format!("opening {}", path.display()), reason)
    };
    let file = std::fs::File::options()
        .write(true)
        .create(true)
        .truncate(false)
        .open(&path)
        .map_err(broken)?;
    let tries = BUSY_TIMEOUT.as_millis() / LOCK_RETRY.as_millis();
    for _ in 0..tries {
        match file.try_lock() {
            Ok(()) => return Ok(file),
            Err(TryLockError::WouldBlock) => tokio::time::sleep(LOCK_RETRY).await,
            Err(TryLockError::Error(error)) => return Err(broken(error)),
        }
    }
    Err(Error::Unavailable {
        operation: format!("opening {}", folder.join(spec.name).display()),
        reason: format!(
            "another process has held the lock {} for too long",
            path.display()
        ),
    })
}

fn points_to(link: &Path, path: &Path) -> bool {
    std::fs::read_link(link).is_ok_and(|target| Some(target.as_os_str()) == path.file_name())
}

/// Finds the file to which the link of a replaceable file points. If it does not exist, removes
/// all remains of earlier files and returns a new name. The caller must hold the lock.
fn find_current_path(folder: &Path, spec: &DatabaseSpec) -> Result<PathBuf> {
    let link = folder.join(spec.name);
    if let Ok(name) = std::fs::read_link(&link) {
        let path = folder.join(name);
        if path.is_file() {
            return Ok(path);
        }
    }
    let broken = |error| Error::broken(format!("replacing {}", link.display()), error);
    for entry in std::fs::read_dir(folder).map_err(broken)? {
        let entry = entry.map_err(broken)?;
        if is_leftover(spec.name, &entry.file_name()) {
            match std::fs::remove_file(entry.path()) {
                Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                    return Err(broken(error));
                }
                // Another process may be removing the remains at the same time.
                _ => {}
            }
        }
    }
    let id = uuid::Uuid::new_v4().simple().to_string();
    Ok(folder.join(format!("{}.{id}", spec.name)))
}

/// Returns whether a file is the link, a file that it pointed to, or one that SQLite created next
/// to such a file.
fn is_leftover(name: &str, file: &OsStr) -> bool {
    let Some(suffix) = file.to_str().and_then(|file| file.strip_prefix(name)) else {
        return false;
    };
    let suffix = ["-wal", "-shm", "-journal"]
        .iter()
        .find_map(|end| suffix.strip_suffix(end))
        .unwrap_or(suffix);
    suffix.is_empty()
        || suffix
            .strip_prefix('.')
            .is_some_and(|id| uuid::Uuid::try_parse(id).is_ok())
}

/// Truncates the write-ahead log of a file, as far as no reader uses it. SQLite overwrites deleted
/// rows in the file, but not in the log. A file that does not exist is skipped.
pub(super) async fn truncate_wal(folder: &Path, name: &str) -> Result<()> {
    let named = folder.join(name);
    let path = std::fs::read_link(&named).map_or(named, |target| folder.join(target));
    if !path.is_file() {
        return Ok(());
    }
    let broken = |error| {
        Error::broken(
            format!("truncating the write-ahead log of {}", path.display()),
            error,
        )
    };
    let mut connection = SqliteConnectOptions::new()
        .filename(&path)
        .busy_timeout(WAL_BUSY_TIMEOUT)
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
