//! The records of restorations that add corrections: what was decided, by whom and why, and whether all of it is in
//! the log.
//!
//! Corrections are written down before the first of them is appended, each under an id that is made of the
//! restoration's number and its key: so one that died goes on with the same events, and what is appended twice counts
//! once. Numbers are created once: of two that begin at the same time one is refused.

use bytes::Bytes;
use schemas::seam::{Epoch, Offset};
use schemas::source::Source;
use serde::{Deserialize, Serialize};
use stores::archive::{Archive, Created};
use uuid::Uuid;

use crate::manifest_file::{from_bytes, to_bytes};
use crate::{Error, Result};

/// A restoration that adds corrections.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Restoration {
    /// Its number, from 1 on.
    pub number: u64,
    /// The view, by the name of its job.
    pub view: String,
    /// What was expected: a file's name.
    pub expected: String,
    /// The restoration whose corrections are taken back, where it is for that.
    pub undoes: Option<u64>,
    /// Who asked for it.
    pub by: String,
    /// Why.
    pub reason: String,
    /// When, in milliseconds since the Unix epoch.
    pub at_ms: i64,
    /// The run whose rows were compared.
    pub epoch: Epoch,
    /// By partition: it was decided by everything below this offset.
    pub position: Vec<Offset>,
    /// How many corrections there are.
    pub corrections: u64,
    /// The sum of their absolute amounts.
    pub total: u64,
    /// The files that hold them.
    pub files: Vec<CorrectionsFile>,
}

/// A file of corrections.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CorrectionsFile {
    /// Where it is in the archive.
    pub path: String,
    /// How many corrections it holds.
    pub rows: u64,
}

/// A restoration, and where the log ended once all its corrections were in it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Recorded {
    /// What was decided.
    #[serde(flatten)]
    pub restoration: Restoration,
    /// By partition; nothing as long as it is not finished.
    pub appended_until: Option<Vec<Offset>>,
}

/// The records of a source.
pub(crate) struct Journal<'a> {
    pub(crate) archive: &'a Archive,
    pub(crate) source: Source,
}

impl Journal<'_> {
    fn folder(&self) -> String {
        format!("restorations/{}", self.source)
    }

    fn path(&self, number: u64, what: &str) -> String {
        format!("{}/{number:010}.{what}.json", self.folder())
    }

    /// All of them, in their order.
    pub(crate) async fn all(&self) -> Result<Vec<Recorded>> {
        let folder = self.folder();
        let paths = self.archive.list(&folder).await?;
        let mut all = Vec::new();
        for (number, path) in (1..).zip(paths.iter().filter(|path| path.ends_with(".begun.json"))) {
            let restoration: Restoration = self.read(path).await?;
            if restoration.number != number {
                let what = format!("expected restoration {number} here: one is missing");
                return Err(Error::damaged(path, what));
            }
            let ended = self.path(number, "ended");
            let appended_until = match paths.contains(&ended) {
                true => Some(self.read(&ended).await?),
                false => None,
            };
            all.push(Recorded {
                restoration,
                appended_until,
            });
        }
        Ok(all)
    }

    async fn read<T: serde::de::DeserializeOwned>(&self, path: &str) -> Result<T> {
        let bytes = self.archive.get(path).await?;
        let bytes = bytes.ok_or_else(|| Error::damaged(path, "it was listed, and is gone"))?;
        from_bytes(&bytes).map_err(|what| Error::damaged(path, what))
    }

    /// The path of a file for corrections that nobody else takes.
    pub(crate) fn new_file(&self) -> String {
        format!("{}/corrections/{}.parquet", self.folder(), Uuid::new_v4())
    }

    pub(crate) async fn put(&self, path: &str, bytes: Bytes) -> Result<()> {
        Ok(self.archive.put(path, bytes).await?)
    }

    /// Records what was decided; its files are there.
    ///
    /// # Errors
    /// [`Error::Request`] if another one has taken its number.
    pub(crate) async fn begin(&self, restoration: &Restoration) -> Result<()> {
        let path = self.path(restoration.number, "begun");
        match self.archive.create(&path, to_bytes(restoration)?).await? {
            Created::New => Ok(()),
            Created::Exists => Err(Error::Request(format!(
                "another restoration is number {} now, and this one rests on what was before it. Nothing was corrected; run it again",
                restoration.number
            ))),
        }
    }

    /// Records that all corrections are in the log below these offsets.
    pub(crate) async fn end(&self, number: u64, until: &[Offset]) -> Result<()> {
        let path = self.path(number, "ended");
        self.archive.put(&path, to_bytes(&until)?).await?;
        Ok(())
    }
}
