//! Records that are numbered and create-only, of which the newest one counts, and files that are named after the number that
//! their record is to have.

use bytes::Bytes;
use stores::archive::Archive;

use crate::Result;

/// The newest record of a folder: its path, and what it says; nothing if there is none.
pub(super) async fn newest(archive: &Archive, folder: &str) -> Result<Option<(String, Bytes)>> {
    loop {
        let Some(path) = archive.list(folder).await?.pop() else {
            return Ok(None);
        };
        // Whoever writes newer ones deletes this one then.
        if let Some(bytes) = archive.get(&path).await? {
            return Ok(Some((path, bytes)));
        }
    }
}

/// The number that the name of a file begins with; nothing if it lies elsewhere or is another file.
pub(super) fn number(path: &str, folder: &str) -> Option<u64> {
    let name = path.strip_prefix(folder)?.trim_start_matches('/');
    name.get(..10)?.parse().ok()
}
