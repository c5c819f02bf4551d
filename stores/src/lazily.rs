//! Stores on servers that are opened when they are needed first: whoever does not need one works
//! without it, and who starts before it is there goes on once it is.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;

use async_trait::async_trait;
use bytes::Bytes;
use futures::future::BoxFuture;
use schemas::achievement::{Kind, Told};
use schemas::seam::{Cut, Epoch, Offset, Run};
use schemas::source::Source;
use tokio::sync::OnceCell;

use crate::Result;
use crate::achievements::{AchievementsErase, AchievementsRead, AchievementsWrite, Mark, Of};
use crate::counts::{CountsRead, CountsWrite, Day, DayRow, NewDays};
use crate::lease::{Held, Leases};
use crate::live::SlotId;
use crate::records::{Record, Records, RecordsRead, Scan};
use crate::view_scan::{Division, ScanPlace, ScanShare, ScannedHeads, ScannedRows, ViewsScan};
use crate::views::{
    FoundRows, Head, NewEdition, NewRows, NodeName, PartQuery, RowKeys, RunStory, RunsSeen,
    TableResults, ViewShape, ViewsRead, ViewsWrite,
};

type Open<T> = Box<dyn Fn() -> BoxFuture<'static, Result<T>> + Send + Sync>;

/// A store that is opened when it is needed first. A try that fails is made again by the next call.
pub(crate) struct Lazy<T> {
    opened: OnceCell<T>,
    open: Open<T>,
}

impl<T> Lazy<T> {
    pub(crate) fn new(
        open: impl Fn() -> BoxFuture<'static, Result<T>> + Send + Sync + 'static,
    ) -> Self {
        Self {
            opened: OnceCell::new(),
            open: Box::new(open),
        }
    }

    /// The store.
    pub(crate) async fn get(&self) -> Result<&T> {
        self.opened.get_or_try_init(&self.open).await
    }
}

impl<T> fmt::Debug for Lazy<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lazy")
            .field("is_open", &self.opened.initialized())
            .finish_non_exhaustive()
    }
}

/// Hands every call of a port on.
macro_rules! hand_on {
    ($port:ident { $(async fn $call:ident($($name:ident: $kind:ty),*) -> $answer:ty;)* }) => {
        #[async_trait]
        impl<T: $port> $port for Lazy<T> {
            $(
                async fn $call(&self, $($name: $kind),*) -> $answer {
                    self.get().await?.$call($($name),*).await
                }
            )*
        }
    };
}

hand_on! { ViewsRead {
    async fn runs(source: Source) -> Result<RunsSeen>;
    async fn rows(view: &str, queries: &[PartQuery]) -> Result<Option<FoundRows>>;
    async fn heads(view: &str, keys: &[Vec<u8>]) -> Result<Option<Vec<Option<Head>>>>;
    async fn nodes(view: &str, key: &[u8], names: &[NodeName]) -> Result<Vec<Option<Bytes>>>;
    async fn stories(source: Source, before: Option<Epoch>, limit: usize) -> Result<Vec<RunStory>>;
    async fn story(source: Source, epoch: Epoch) -> Result<Option<RunStory>>;
} }

hand_on! { ViewsScan {
    async fn division() -> Result<Division>;
    async fn scan_rows(view: &str, share: ScanShare, after: Option<&ScanPlace>, limit: usize) -> Result<Option<ScannedRows>>;
    async fn scan_heads(view: &str, share: ScanShare, after: Option<&[u8]>, limit: usize) -> Result<Option<ScannedHeads>>;
} }

hand_on! { ViewsWrite {
    async fn ensure_view(source: Source, shape: &ViewShape) -> Result<()>;
    async fn propose(source: Source, epoch: Epoch, cuts: &[Cut], token: &str, now_ms: i64) -> Result<Run>;
    async fn seal(source: Source, epoch: Epoch, token: &str) -> Result<Run>;
    async fn begin_publishing(source: Source, epoch: Epoch, results: &BTreeMap<String, String>, now_ms: i64) -> Result<i64>;
    async fn results(source: Source) -> Result<BTreeMap<String, TableResults>>;
    async fn rows_before(view: &str, stamp_us: i64, after: Option<(Vec<u8>, Vec<u8>)>, limit: usize) -> Result<RowKeys>;
    async fn publish(source: Source, view: &str, epoch: Epoch, stamp_us: i64, rows: &NewRows) -> Result<()>;
    async fn delete_rows(source: Source, view: &str, at: (Epoch, i64), rows: &RowKeys) -> Result<()>;
    async fn publish_editions(source: Source, view: &str, epoch: Epoch, stamp_us: i64, editions: &[NewEdition]) -> Result<()>;
    async fn node_names(view: &str, key: &[u8]) -> Result<Vec<NodeName>>;
    async fn collect_garbage(source: Source, view: &str, at: (Epoch, i64), limit: usize) -> Result<usize>;
    async fn keys(view: &str, after: Option<Vec<u8>>, limit: usize) -> Result<Vec<Vec<u8>>>;
    async fn complete(source: Source, at: (Epoch, i64), results: &BTreeMap<String, String>, run_ends: bool, now_ms: i64) -> Result<()>;
    async fn abandon(source: Source, epoch: Epoch, now_ms: i64) -> Result<()>;
    async fn report(source: Source, epoch: Epoch, report: &serde_json::Value) -> Result<()>;
    async fn forget_views(source: Source, at: (Epoch, i64), keep: &[String]) -> Result<()>;
} }

hand_on! { AchievementsErase {
    async fn naming(athlete_id: i64) -> Result<u64>;
    async fn erase(athlete_id: i64) -> Result<()>;
} }

hand_on! { AchievementsRead {
    async fn achievements(of: Of, kind: Option<Kind>, before: Option<&Mark>, limit: usize) -> Result<Vec<Told>>;
    async fn told_through(slot: SlotId) -> Result<Option<Offset>>;
} }

hand_on! { AchievementsWrite {
    async fn write(achievements: &[Told]) -> Result<()>;
    async fn note_told(slot: SlotId, through: Offset) -> Result<()>;
} }

hand_on! { CountsRead {
    async fn days(job: &str, key: &[u8], days: Range<Day>, limit: usize) -> Result<Vec<DayRow>>;
    async fn last_days(job: &str, keys: &[(&[u8], Day)]) -> Result<Vec<Option<DayRow>>>;
} }

hand_on! { CountsWrite {
    async fn write_days(job: &str, stamp_us: i64, rows: &NewDays) -> Result<()>;
} }

hand_on! { RecordsRead {
    async fn get(scope: &str, name: &str) -> Result<Option<Record>>;
    async fn scan(scope: &str, scan: Scan<'_>) -> Result<Vec<Record>>;
} }

hand_on! { Records {
    async fn compare_and_set(scope: &str, name: &str, seen_version: Option<u64>, value: Option<&serde_json::Value>) -> Result<bool>;
} }

hand_on! { Leases {
    async fn acquire(name: &str, holder: &str) -> Result<Result<Box<dyn Held>, String>>;
} }
