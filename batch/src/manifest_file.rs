//! Manifest files: a line of JSON, and a line with its checksum. The checksum is needed because a
//! flipped bit in a number may yield another valid number.

use bytes::Bytes;
use serde::Serialize;
use serde::de::DeserializeOwned;
use stores::archive::{Archive, Created};
use xxhash_rust::xxh3::xxh3_64;

use crate::{Error, Result};

/// Creates a manifest file at a new path.
pub(crate) async fn create(archive: &Archive, path: &str, manifest: &impl Serialize) -> Result<()> {
    match archive.create(path, to_bytes(manifest)?).await? {
        Created::New => Ok(()),
        Created::Exists => Err(Error::Fault(format!(
            "cannot create {path}: it exists already"
        ))),
    }
}

/// Reads a manifest file; `None` if it does not exist.
pub(crate) async fn read<T: DeserializeOwned>(archive: &Archive, path: &str) -> Result<Option<T>> {
    let Some(bytes) = archive.get(path).await? else {
        return Ok(None);
    };
    let manifest = from_bytes(&bytes).map_err(|damage| Error::damaged(path, damage))?;
    Ok(Some(manifest))
}

/// Reads a manifest file that was listed before.
pub(crate) async fn read_listed<T: DeserializeOwned>(archive: &Archive, path: &str) -> Result<T> {
    let manifest = read(archive, path).await?;
    manifest.ok_or_else(|| Error::damaged(path, "it was listed, but no longer exists"))
}

/// Encodes a manifest with its checksum.
pub(crate) fn to_bytes(manifest: &impl Serialize) -> Result<Bytes> {
    let mut bytes =
        serde_json::to_vec(manifest).map_err(|e| Error::fault("writing a manifest", e))?;
    let checksum = format_checksum_line(&bytes);
    bytes.extend_from_slice(checksum.as_bytes());
    Ok(Bytes::from(bytes))
}

/// Decodes a manifest, or describes the damage.
pub(crate) fn from_bytes<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, String> {
    let end = bytes.iter().position(|byte| *byte == b'\n');
    let (body, checksum) = bytes.split_at(end.unwrap_or(bytes.len()));
    if checksum != format_checksum_line(body).as_bytes() {
        return Err("its checksum does not match".to_owned());
    }
    serde_json::from_slice(body).map_err(|error| format!("it is not a valid manifest: {error}"))
}

fn format_checksum_line(body: &[u8]) -> String {
    format!("\n{{\"xxh3\":\"{:016x}\"}}\n", xxh3_64(body))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn detects_every_flipped_bit() {
        let bytes = to_bytes(&vec![12, 345]).expect("bytes");
        assert_eq!(from_bytes(&bytes), Ok(vec![12, 345]));
        for bit in 0..bytes.len() * 8 {
            let mut damaged = bytes.to_vec();
            damaged[bit / 8] ^= 1 << (bit % 8);
            from_bytes::<Vec<i32>>(&damaged).expect_err("damage");
        }
        from_bytes::<Vec<i32>>(&bytes[..bytes.len() - 1]).expect_err("cut off");
        from_bytes::<Vec<i32>>(b"").expect_err("empty");
    }
}
