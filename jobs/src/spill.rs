//! The spill folder of one engine.
//!
//! A killed process leaves its files behind. So each engine has its own folder and locks the file
//! `owner` in it. The next engine deletes folders whose file is not locked.

use std::fs::{File, TryLockError};
use std::io;
use std::path::Path;

use tempfile::TempDir;

const OWNER_FILE: &str = "owner";

/// A folder that is locked until this value is dropped, and then deleted.
#[derive(Debug)]
pub(crate) struct SpillFolder {
    folder: TempDir,
    _lock: File,
}

impl SpillFolder {
    /// Creates a folder under `root` and deletes those without an owner.
    pub(crate) fn create_in(root: &Path) -> io::Result<Self> {
        std::fs::create_dir_all(root)?;
        // One engine at a time: a new folder has no owner until its file is locked.
        let lock_file = File::create(root.join("lock"))?;
        lock_file.lock()?;
        for entry in std::fs::read_dir(root)? {
            let path = entry?.path();
            if path.is_dir() && !is_owned(&path)? {
                // If a folder can't be deleted now, the next engine tries again.
                drop(std::fs::remove_dir_all(&path));
            }
        }
        let folder = TempDir::new_in(root)?;
        let owner_file = File::create(folder.path().join(OWNER_FILE))?;
        owner_file.lock()?;
        Ok(Self {
            folder,
            _lock: owner_file,
        })
    }

    pub(crate) fn path(&self) -> &Path {
        self.folder.path()
    }
}

fn is_owned(folder: &Path) -> io::Result<bool> {
    let owner_file = match File::open(folder.join(OWNER_FILE)) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
        Err(error) => return Err(error),
    };
    match owner_file.try_lock() {
        Ok(()) => Ok(false),
        Err(TryLockError::WouldBlock) => Ok(true),
        Err(TryLockError::Error(error)) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folders_of_dead_processes_are_deleted() {
        let root = tempfile::tempdir().unwrap();
        let first = SpillFolder::create_in(root.path()).unwrap();
        std::fs::write(first.path().join("spilled"), "rows").unwrap();
        let second = SpillFolder::create_in(root.path()).unwrap();
        assert_ne!(first.path(), second.path());
        assert!(first.path().join("spilled").exists(), "it is in use");

        // The lock ends with the process; the files remain.
        let (dead, unowned) = (first.path().to_owned(), root.path().join("left"));
        std::fs::create_dir_all(unowned.join("datafusion")).unwrap();
        let SpillFolder { folder: _, _lock } = &first;
        _lock.unlock().unwrap();
        let third = SpillFolder::create_in(root.path()).unwrap();
        assert!(!unowned.exists());
        assert!(!dead.join("spilled").exists());
        assert!(second.path().exists());
        let path = third.path().to_owned();
        drop(third);
        assert!(!path.exists());
        std::mem::forget(first);
    }
}
