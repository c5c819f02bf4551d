//! The records of restorations: what was changed, from what to what, by whom and why, and whether all of it was done.
//!
//! Corrections are written down before the first of them is appended, each under an id that is made of the
//! restoration's number and its key: so one that died goes on with the same events, and what is appended twice counts
//! once. Rows that were not written anew yet differ still: whoever compares next says of such a restoration that it was cut
//! off, and finds them. Numbers are created once: of two that begin at the same time one is refused.

use std::collections::BTreeSet;

use bytes::Bytes;
use futures::{StreamExt, TryStreamExt, stream};
use schemas::seam::{Epoch, Offset};
use schemas::source::Source;
use serde::{Deserialize, Serialize};
use stores::archive::{Archive, Created};
use uuid::Uuid;

use super::report::ReconcileReport;
use super::request::ReconcileRequest;
use crate::batch::Batch;
use crate::manifest_file::{read_listed, to_bytes};
use crate::{Error, Result};

/// Records that are read at once.
const READS: usize = 16;

/// What a restoration changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RestorationKind {
    /// It appends corrections to the log.
    Corrections,
    /// It writes rows anew that were not what the events give.
    Rows,
    /// It has members of boards counted again, and writes keys anew.
    Notifications,
}

/// A restoration.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Restoration {
    /// Its number, from 1 on.
    pub number: u64,
    /// What no other one has, also where records were lost and their numbers are taken again: ids of corrections hold
    /// it.
    pub id: String,
    /// What it changes.
    pub kind: RestorationKind,
    /// The view, by the name of its job.
    pub view: String,
    /// What was expected: `archive`, or a file's name.
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
    /// How many corrections or rows there are.
    pub changes: u64,
    /// The sum of the absolute amounts by which they change counts.
    pub total: u64,
    /// The files that hold them.
    pub files: Vec<ChangesFile>,
}

/// A file of changes: corrections as events, or keys of rows, each with the count before and after.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChangesFile {
    /// Where it is in the archive.
    pub path: String,
    /// How many changes it holds.
    pub rows: u64,
}

/// A restoration, and where the log ended once all of it was done.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Recorded {
    /// What was decided.
    #[serde(flatten)]
    pub restoration: Restoration,
    /// By partition; nothing as long as it is not finished.
    pub done_until: Option<Vec<Offset>>,
    /// When somebody found that it had ended in the middle, in milliseconds since the Unix epoch. Nobody goes on with it:
    /// what it had not written yet is found by the next comparison.
    pub cut_off_at_ms: Option<i64>,
}

impl Recorded {
    /// Whether corrections of it may not be in the log yet.
    pub(crate) const fn is_to_be_gone_on_with(&self) -> bool {
        self.done_until.is_none() && matches!(self.restoration.kind, RestorationKind::Corrections)
    }

    /// Whether it is under way, or was ended in the middle and nobody has said so.
    const fn is_open(&self) -> bool {
        self.done_until.is_none() && self.cut_off_at_ms.is_none() && !self.is_to_be_gone_on_with()
    }
}

/// What a restoration has that no other one has.
pub(crate) fn new_id() -> String {
    Uuid::new_v4().simple().to_string()
}

/// Where files of changes are.
pub(crate) fn changes_folder(source: Source) -> String {
    format!("restorations/{source}/changes")
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
        let paths = self.archive.list(&self.folder()).await?;
        let paths: BTreeSet<String> = paths.into_iter().collect();
        let begun = paths.iter().filter(|path| path.ends_with(".begun.json"));
        let reads = (1..).zip(begun).map(|(number, path)| {
            let paths = &paths;
            async move { self.one((number, path), paths).await }
        });
        stream::iter(reads).buffered(READS).try_collect().await
    }

    async fn one(&self, (number, path): (u64, &str), paths: &BTreeSet<String>) -> Result<Recorded> {
        let restoration: Restoration = read_listed(self.archive, path).await?;
        if restoration.number != number {
            let what = format!("expected restoration {number} here: one is missing");
            return Err(Error::damaged(path, what));
        }
        let (ended, cut_off) = (self.path(number, "ended"), self.path(number, "cut-off"));
        let done_until = match paths.contains(&ended) {
            true => Some(read_listed(self.archive, &ended).await?),
            false => None,
        };
        let cut_off_at_ms = match paths.contains(&cut_off) && done_until.is_none() {
            true => Some(read_listed(self.archive, &cut_off).await?),
            false => None,
        };
        Ok(Recorded {
            restoration,
            done_until,
            cut_off_at_ms,
        })
    }

    /// Says of those that nobody goes on with, and that have no end, that they were cut off. Whoever holds the lease may
    /// say so: nobody else is at work.
    pub(crate) async fn settle(&self, recorded: &mut [Recorded], now_ms: i64) -> Result<()> {
        for one in recorded.iter_mut().filter(|one| one.is_open()) {
            let path = self.path(one.restoration.number, "cut-off");
            self.archive.put(&path, to_bytes(&now_ms)?).await?;
            one.cut_off_at_ms = Some(now_ms);
        }
        Ok(())
    }

    /// The path of a file for changes that nobody else takes.
    pub(crate) fn new_file(&self) -> String {
        format!("{}/{}.parquet", changes_folder(self.source), Uuid::new_v4())
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
                "another process recorded restoration {} at the same time, and this one does not include its effects. Nothing was corrected; run it again",
                restoration.number
            ))),
        }
    }

    /// Records that all of it is done, and corrections are in the log below these offsets.
    pub(crate) async fn end(&self, number: u64, until: &[Offset]) -> Result<()> {
        let path = self.path(number, "ended");
        self.archive.put(&path, to_bytes(&until)?).await?;
        Ok(())
    }
}

impl Batch {
    /// What is recorded of a restoration before its changes are known.
    pub(super) fn record(
        &self,
        request: &ReconcileRequest,
        report: &ReconcileReport,
        number: u64,
    ) -> Restoration {
        Restoration {
            number,
            id: new_id(),
            kind: match request.expected.is_claimed() {
                false => RestorationKind::Rows,
                true => RestorationKind::Corrections,
            },
            view: report.view.clone(),
            expected: report.expected.clone(),
            undoes: None,
            by: request.by.clone(),
            reason: request.reason.clone(),
            at_ms: self.ports.clock.now_ms(),
            epoch: report.epoch,
            position: report.position.clone(),
            changes: 0,
            total: 0,
            files: Vec::new(),
        }
    }
}
