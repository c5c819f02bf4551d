//! Leases by locks of the operating system, which end with the process that holds them.

use std::fs::{File, TryLockError};
use std::io::{ErrorKind, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use async_trait::async_trait;

use crate::lease::{LeaseGuard, Leases, check_name};
use crate::{Error, Result};

/// Leases in a folder: one locked file per lease, which contains the name of its holder.
#[derive(Debug)]
pub struct FileLeases {
    folder: PathBuf,
}

/// Pause after which a reader of a dead holder has unlocked the file.
const READER_PAUSE: Duration = Duration::from_millis(20);

/// The locked file.
#[derive(Debug)]
struct FileLease(File);

impl LeaseGuard for FileLease {}

impl Drop for FileLease {
    fn drop(&mut self) {
        // Closing the file is not enough while a starting child process has a copy of the
        // descriptor. An empty file names no holder.
        let emptied = self.0.set_len(0);
        if let Err(error) = self.0.unlock().and(emptied) {
            tracing::debug!(%error, "cannot unlock a lease; it ends when its file is closed");
        }
    }
}

impl FileLeases {
    /// Creates leases in `folder`, which must exist.
    #[must_use]
    pub const fn new(folder: PathBuf) -> Self {
        Self { folder }
    }

    /// Runs blocking work on the file of a lease.
    async fn with_file<T: Send + 'static>(
        &self,
        name: &str,
        work: impl FnOnce(&Path) -> std::io::Result<T> + Send + 'static,
    ) -> Result<T> {
        check_name(name)?;
        let path = self.folder.join(format!("{name}.lock"));
        let operation = format!("using the lease {name} ({})", path.display());
        match tokio::task::spawn_blocking(move || work(&path)).await {
            Ok(outcome) => outcome.map_err(|error| Error::broken(operation, error)),
            Err(error) => Err(Error::broken(operation, error)),
        }
    }
}

#[async_trait]
impl Leases for FileLeases {
    async fn acquire(
        &self,
        name: &str,
        holder: &str,
    ) -> Result<Result<Box<dyn LeaseGuard>, String>> {
        let lock = || {
            let holder = holder.to_owned();
            self.with_file(name, move |path| try_lock_file(path, &holder))
        };
        let mut locked = lock().await?;
        if locked.is_err() {
            // `read_holder` locks the file of a dead holder for a moment.
            tokio::time::sleep(READER_PAUSE).await;
            locked = lock().await?;
        }
        Ok(locked.map(|file| Box::new(FileLease(file)) as Box<dyn LeaseGuard>))
    }

    async fn holder(&self, name: &str) -> Result<Option<String>> {
        self.with_file(name, read_holder).await
    }
}

/// Returns the holder that the file of a lease names, if it is locked. A lease that was released
/// has an empty file, so this locks only the file of a dead holder, for a moment.
fn read_holder(path: &Path) -> std::io::Result<Option<String>> {
    let mut file = match File::open(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        opened => opened?,
    };
    let mut holder = String::new();
    file.read_to_string(&mut holder)?;
    if holder.is_empty() {
        return Ok(None);
    }
    match file.try_lock_shared() {
        Ok(()) => file.unlock().map(|()| None),
        Err(TryLockError::WouldBlock) => Ok(Some(holder)),
        Err(TryLockError::Error(error)) => Err(error),
    }
}

fn try_lock_file(path: &Path, holder: &str) -> std::io::Result<Result<File, String>> {
    // The name of the present holder must be preserved, so the file is truncated only under the
    // lock.
    let mut file = File::options()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .open(path)?;
    match file.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => {
            let mut holder = String::new();
            file.read_to_string(&mut holder)?;
            if holder.is_empty() {
                holder.push_str("a process that has just acquired it");
            }
            return Ok(Err(holder));
        }
        Err(TryLockError::Error(error)) => return Err(error),
    }
    file.set_len(0)?;
    file.seek(SeekFrom::Start(0))?;
    file.write_all(holder.as_bytes())?;
    Ok(Ok(file))
}
