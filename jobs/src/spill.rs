//! The folder that one engine spills to.
//!
//! A process that is killed leaves its files behind. So each engine has a folder of its own, whose
//! file `owner` it keeps locked; whoever comes next removes the folders that nobody owns.

use std::fs::{File, TryLockError};
use std::io;
use std::path::Path;

use tempfile::TempDir;

const OWNER: &str = "owner";

/// A folder, owned until this is dropped, and then removed.
#[derive(Debug)]
pub(crate) struct SpillFolder {
    folder: TempDir,
    _owned: File,
}

impl SpillFolder {
    /// A new folder under `root`, once those that nobody owns are removed.
    pub(crate) fn under(root: &Path) -> io::Result<Self> {
        std::fs::create_dir_all(root)?;
        // One at a time: a folder that was just made has no owner yet.
        let door = File::create(root.join("lock"))?;
        door.lock()?;
        for entry in std::fs::read_dir(root)? {
            let path = entry?.path();
            if path.is_dir() && !is_owned(&path)? {
                // What can't be removed now stays for whoever comes next.
                drop(std::fs::remove_dir_all(&path));
            }
        }
        let folder = TempDir::new_in(root)?;
        let owned = File::create(folder.path().join(OWNER))?;
        owned.lock()?;
        Ok(Self {
            folder,
            _owned: owned,
        })
    }

    pub(crate) fn path(&self) -> &Path {
        self.folder.path()
    }
}

fn is_owned(folder: &Path) -> io::Result<bool> {
    let owner = match File::open(folder.join(OWNER)) {
        Ok(owner) => owner,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
        Err(error) => return Err(error),
    };
    match owner.try_lock() {
        Ok(()) => Ok(false),
        Err(TryLockError::WouldBlock) => Ok(true),
        Err(TryLockError::Error(error)) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_dead_process_left_is_removed() {
        let root = tempfile::tempdir().unwrap();
        let first = SpillFolder::under(root.path()).unwrap();
        std::fs::write(first.path().join("spilled"), "rows").unwrap();
        let second = SpillFolder::under(root.path()).unwrap();
        assert_ne!(first.path(), second.path());
        assert!(first.path().join("spilled").exists(), "it is in use");

        // The lock goes with the process, the files stay.
        let (died, left) = (first.path().to_owned(), root.path().join("left"));
        std::fs::create_dir_all(left.join("datafusion")).unwrap();
        let SpillFolder { folder: _, _owned } = &first;
        _owned.unlock().unwrap();
        let third = SpillFolder::under(root.path()).unwrap();
        assert!(!left.exists());
        assert!(!died.join("spilled").exists());
        assert!(second.path().exists());
        let path = third.path().to_owned();
        drop(third);
        assert!(!path.exists());
        std::mem::forget(first);
    }
}
