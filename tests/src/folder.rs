//! Folders with their contents.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Copies a folder.
///
/// # Panics
/// If a file cannot be read or written.
pub fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).expect("a folder");
    for entry in fs::read_dir(from).expect("a folder").flatten() {
        let to = to.join(entry.file_name());
        if entry.path().is_dir() {
            copy(&entry.path(), &to);
        } else {
            fs::copy(entry.path(), to).expect("a copy");
        }
    }
}

/// Returns the paths of all files in a folder and its subfolders.
///
/// # Panics
/// If a folder cannot be read.
#[must_use]
pub fn files(folder: &Path) -> Vec<PathBuf> {
    let (mut files, mut folders) = (Vec::new(), vec![folder.to_owned()]);
    while let Some(next) = folders.pop() {
        for entry in fs::read_dir(&next).expect("a folder").flatten() {
            let path = entry.path();
            let kind = if path.is_dir() {
                &mut folders
            } else {
                &mut files
            };
            kind.push(path);
        }
    }
    files.sort_unstable();
    files
}

/// Waits until this process has closed all files of a folder. SQLite connections close on threads
/// of their own some time after they are dropped, and the last one deletes the files next to its
/// database by name.
///
/// # Panics
/// If a file stays open.
pub async fn wait_until_closed(folder: &Path) {
    let ends = Instant::now() + Duration::from_secs(30);
    loop {
        let open = fs::read_dir("/proc/self/fd").expect("the open files");
        let mut open = open.flatten().flat_map(|file| fs::read_link(file.path()));
        let Some(path) = open.find(|path| path.starts_with(folder)) else {
            return;
        };
        assert!(Instant::now() < ends, "{} stays open", path.display());
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}
