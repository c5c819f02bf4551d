//! Folders with all that is in them.

use std::fs;
use std::path::{Path, PathBuf};

/// Copies a folder.
///
/// # Panics
/// If something can't be read or written.
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

/// The files of a folder and of those below it, by their paths.
///
/// # Panics
/// If a folder can't be read.
#[must_use]
pub fn files(folder: &Path) -> Vec<PathBuf> {
    let (mut found, mut folders) = (Vec::new(), vec![folder.to_owned()]);
    while let Some(next) = folders.pop() {
        for entry in fs::read_dir(&next).expect("a folder").flatten() {
            let path = entry.path();
            let kind = if path.is_dir() {
                &mut folders
            } else {
                &mut found
            };
            kind.push(path);
        }
    }
    found.sort_unstable();
    found
}
