//! Leases by locks of the operating system, which end with the process that holds them.

use std::fs::{File, TryLockError};
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use async_trait::async_trait;

use crate::lease::{LeaseGuard, Leases, check_name};
use crate::{Error, Result};

/// Leases in a folder: one locked file per lease, which contains the name of its holder.
#[derive(Debug)]
pub struct FileLeases {
    folder: PathBuf,
}

/// The locked file.
#[derive(Debug)]
struct FileLease(File);

impl LeaseGuard for FileLease {}

impl Drop for FileLease {
    fn drop(&mut self) {
        // Closing the file is not enough while a starting child process has a copy of the
        // descriptor.
        if let Err(error) = self.0.unlock() {
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
}

#[async_trait]
impl Leases for FileLeases {
    async fn acquire(
        &self,
        name: &str,
        holder: &str,
    ) -> Result<Result<Box<dyn LeaseGuard>, String>> {
        check_name(name)?;
        let path = self.folder.join(format!("{name}.lock"));
        let holder = holder.to_owned();
        let shown_path = path.clone();
        let locked = tokio::task::spawn_blocking(move || try_lock_file(&path, &holder)).await;
        let broken = |error: &dyn std::fmt::Display| {
            Error::broken(
                format!("acquiring the lease {name} ({})", shown_path.display()),
                error,
            )
        };
        match locked {
            Ok(Ok(Ok(file))) => Ok(Ok(Box::new(FileLease(file)))),
            Ok(Ok(Err(holder))) => Ok(Err(holder)),
            Ok(Err(error)) => Err(broken(&error)),
            Err(error) => Err(broken(&error)),
        }
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
