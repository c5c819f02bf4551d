//! Writes files to a local folder so that they survive a crash of the machine: the bytes are synced
//! before the file gets its name, and the folders afterwards.

use std::fs::{DirEntry, File, create_dir_all, hard_link, read_dir, remove_file, rename};
use std::io::{ErrorKind, Result, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use uuid::Uuid;

/// A staged file of this age has lost its writer.
const ABANDONED_AGE: Duration = Duration::from_secs(24 * 60 * 60);

/// The result of a create-only put.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Created {
    /// The object was created.
    New,
    /// The object exists, and stays unchanged.
    Exists,
}

/// Writes `file`, which is inside `root`. An existing file is replaced only with `replace`.
pub(crate) fn put(root: &Path, file: &Path, bytes: &[u8], replace: bool) -> Result<Created> {
    let folder = file.parent().unwrap_or(root);
    create_dir_all(folder)?;
    let staged = staged_path(file);
    let outcome = write_synced(&staged, bytes).and_then(|()| publish(&staged, file, replace));
    if !matches!(outcome, Ok(Created::New)) || !replace {
        // The staged file may be missing: then there is nothing to remove.
        match remove_file(&staged) {
            Err(error) if error.kind() != ErrorKind::NotFound => {
                tracing::debug!(file = %staged.display(), %error, "cannot delete a staged file");
            }
            _ => {}
        }
    }
    let created = outcome?;
    for folder in file.ancestors().skip(1) {
        File::open(folder)?.sync_all()?;
        if folder == root {
            break;
        }
    }
    Ok(created)
}

/// Makes the names in a folder durable. A parent folder that cannot be opened is no error.
pub(crate) fn sync_folder(folder: &Path) {
    let result = File::open(folder).and_then(|folder| folder.sync_all());
    if let Err(error) = result {
        tracing::debug!(folder = %folder.display(), %error, "cannot sync a folder");
    }
}

/// Deletes staged files below `folder` whose writers died long ago.
pub(crate) fn remove_abandoned(folder: &Path) -> Result<()> {
    for entry in read_dir(folder)? {
        match remove_if_abandoned(&entry?) {
            // Its writer has just renamed it.
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            result => result?,
        }
    }
    Ok(())
}

fn remove_if_abandoned(entry: &DirEntry) -> Result<()> {
    let path = entry.path();
    if entry.file_type()?.is_dir() {
        return remove_abandoned(&path);
    }
    if is_staged(&path) {
        let age = entry.metadata()?.modified()?.elapsed();
        if age.is_ok_and(|age| age > ABANDONED_AGE) {
            remove_file(path)?;
        }
    }
    Ok(())
}

/// A name that listings skip: it ends with `#` and digits.
fn staged_path(file: &Path) -> PathBuf {
    let mut path = file.as_os_str().to_owned();
    path.push(format!("#{}", Uuid::new_v4().as_u128()));
    path.into()
}

fn is_staged(path: &Path) -> bool {
    let name = path.file_name().and_then(|name| name.to_str());
    name.and_then(|name| name.split_once('#'))
        .is_some_and(|(_, suffix)| suffix.bytes().all(|byte| byte.is_ascii_digit()))
}

fn write_synced(path: &Path, bytes: &[u8]) -> Result<()> {
    let mut file = File::create_new(path)?;
    file.write_all(bytes)?;
    file.sync_all()
}

fn publish(staged: &Path, file: &Path, replace: bool) -> Result<Created> {
    if replace {
        return rename(staged, file).map(|()| Created::New);
    }
    match hard_link(staged, file) {
        Ok(()) => Ok(Created::New),
        Err(error) if error.kind() == ErrorKind::AlreadyExists => Ok(Created::Exists),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(folder: &Path) -> Vec<String> {
        let entries = read_dir(folder).expect("a folder");
        let name = |entry: Result<DirEntry>| entry.expect("an entry").file_name();
        let mut names: Vec<String> = entries
            .map(|entry| name(entry).to_string_lossy().into_owned())
            .collect();
        names.sort();
        names
    }

    #[test]
    fn leaves_only_the_file() {
        let root = tempfile::tempdir().expect("a folder");
        let file = root.path().join("a/b.json");
        let put = |bytes: &[u8], replace| put(root.path(), &file, bytes, replace).expect("a put");
        assert_eq!(put(b"1", false), Created::New);
        assert_eq!(put(b"2", false), Created::Exists);
        assert_eq!(std::fs::read(&file).expect("the file"), b"1");
        assert_eq!(put(b"3", true), Created::New);
        assert_eq!(std::fs::read(&file).expect("the file"), b"3");
        assert_eq!(names(&root.path().join("a")), ["b.json"]);
    }

    #[test]
    fn only_staged_files_of_dead_writers_are_deleted() {
        let root = tempfile::tempdir().expect("a folder");
        let folder = root.path().join("a");
        create_dir_all(&folder).expect("a folder");
        let long_ago = std::time::SystemTime::UNIX_EPOCH;
        for (name, old) in [("x#12", true), ("x#13", false), ("x", true), ("x#1a", true)] {
            let file = File::create_new(folder.join(name)).expect("a file");
            if old {
                file.set_modified(long_ago).expect("a time");
            }
        }
        remove_abandoned(root.path()).expect("a sweep");
        assert_eq!(names(&folder), ["x", "x#13", "x#1a"]);
    }
}
