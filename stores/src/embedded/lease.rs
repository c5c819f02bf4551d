//! Leases by locks of the operating system, which end with the process that holds them.

use std::fs::{File, TryLockError};
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use async_trait::async_trait;

use crate::lease::{Held, Leases, check_name};
use crate::{Error, Result};

/// Leases in a folder: a locked file for each, which says for whom.
#[derive(Debug)]
pub struct FileLeases {
    folder: PathBuf,
}

/// The locked file.
#[derive(Debug)]
struct FileHeld(File);

impl Held for FileHeld {}

impl Drop for FileHeld {
    fn drop(&mut self) {
        // Closing it is not enough while a process that is just being started has a copy.
        if let Err(error) = self.0.unlock() {
            tracing::debug!(%error, "a lease ends only when its file is closed");
        }
    }
}

impl FileLeases {
    /// Leases in `folder`, which must be there.
    #[must_use]
    pub const fn new(folder: PathBuf) -> Self {
        Self { folder }
    }
}

#[async_trait]
impl Leases for FileLeases {
    async fn acquire(&self, name: &str, holder: &str) -> Result<Result<Box<dyn Held>, String>> {
        check_name(name)?;
        let path = self.folder.join(format!("{name}.lock"));
        let holder = holder.to_owned();
        let at = path.clone();
        let taken = tokio::task::spawn_blocking(move || take(&path, &holder)).await;
        let broken = |error: &dyn std::fmt::Display| {
            Error::broken(format!("taking the lease {name} ({})", at.display()), error)
        };
        match taken {
            Ok(Ok(Ok(file))) => Ok(Ok(Box::new(FileHeld(file)))),
            Ok(Ok(Err(holder))) => Ok(Err(holder)),
            Ok(Err(error)) => Err(broken(&error)),
            Err(error) => Err(broken(&error)),
        }
    }
}

fn take(path: &Path, holder: &str) -> std::io::Result<Result<File, String>> {
    // The text of a present holder must stay, so nothing is truncated before the lock is held.
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
                holder.push_str("somebody who has taken it just now");
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
