//! Corrections: events that make the sum of all events what is expected.
//!
//! Both layers take them for events, so what they put right stays right when everything is computed anew.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use arrow::array::AsArray;
use arrow::array::{ArrayRef, Int64Array, RecordBatch, StringArray};
use arrow::datatypes::Int64Type;
use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use futures::TryStreamExt;
use jobs::{BUCKET, Fold, Job};
use schemas::key::KeyShape;
use schemas::plays::{AMOUNT_MAX, Decoder, Line};
use schemas::seam::Offset;
use serde_json::{Map, Value, json};
use stores::archive::Archive;
use stores::intake::Intake;
use stores::parquet_file;
use tokio_util::sync::CancellationToken;
use xxhash_rust::xxh3::xxh3_128;

use super::journal::{ChangesFile, Journal, Recorded, Restoration, RestorationKind};
use super::report::Weighed;
use super::scope::{Named, Scope, named, shown_key};
use super::stray;
use crate::batch::Batch;
use crate::lease::check_stop;
use crate::{Error, Progress, Result};

/// Corrections of one file.
const FILE_ROWS: usize = 200_000;
/// Corrections that are appended in one step.
pub(crate) const STEP_ROWS: usize = 2_000;
/// The column of events and keys.
pub(crate) const CHANGE: &str = "change";
/// Fields of a play that a correction must have.
const NEEDED: [&str; 3] = ["owner_id", "track_id", "at"];
/// Fields that may be said of all corrections: id and amount are their own.
const SETTABLE: [&str; 8] = [
    "owner_id",
    "track_id",
    "at",
    "kind",
    "listener_id",
    "country",
    "referrer",
    "app_id",
];

/// Corrections while they are decided.
pub(crate) struct Corrections<'a> {
    id: String,
    scope: Arc<Scope>,
    /// Fields that the keys do not say.
    set: &'a BTreeMap<String, String>,
    /// The view's own queries.
    fold: Fold,
    changes: Changes<'a>,
    /// The newest of them, by the keys that they are for: what is to be added there.
    unchecked: HashMap<Vec<u8>, i64>,
}

/// A change: a correction as an event or the key of a row, as JSON, with the count before and after.
type Change = (String, i64, i64);

/// Changes while they are decided, on their way into the files of a record.
pub(crate) struct Changes<'a> {
    journal: &'a Journal<'a>,
    waiting: Vec<Change>,
    files: Vec<ChangesFile>,
    count: u64,
    total: u64,
}

impl<'a> Changes<'a> {
    pub(crate) const fn new(journal: &'a Journal<'a>) -> Self {
        Self {
            journal,
            waiting: Vec::new(),
            files: Vec::new(),
            count: 0,
            total: 0,
        }
    }

    /// Notes that the row of a key is to be written anew, or deleted where none can be.
    pub(crate) fn add_row(
        &mut self,
        (job, grain): (&Job, &KeyShape),
        key: &[u8],
        weighed: &Weighed,
    ) -> Result<()> {
        let key = match weighed.cause.filter(|cause| cause.is_of_stray()) {
            Some(cause) => stray::recorded((job, cause), key)?,
            None => shown_key(&named(grain, key)?),
        };
        let key = Value::Object(key).to_string();
        let after = weighed.events_batch.unwrap_or(0);
        self.add((key, weighed.stored.unwrap_or(0), after));
        Ok(())
    }

    fn add(&mut self, change: Change) {
        self.count += 1;
        self.total = self.total.saturating_add(change.1.abs_diff(change.2));
        self.waiting.push(change);
    }

    /// Writes what was noted, if it fills a file or `all` is to be written.
    pub(crate) async fn write(&mut self, all: bool) -> Result<()> {
        while self.waiting.len() >= FILE_ROWS || (all && !self.waiting.is_empty()) {
            let rest = self.waiting.split_off(FILE_ROWS.min(self.waiting.len()));
            let waiting = std::mem::replace(&mut self.waiting, rest);
            self.files.push(write(self.journal, &waiting).await?);
        }
        Ok(())
    }

    /// Records them, with what is known of the restoration; nothing if there are none.
    pub(crate) async fn record(mut self, of: Restoration) -> Result<Option<Restoration>> {
        self.write(true).await?;
        if self.count == 0 {
            return Ok(None);
        }
        let restoration = Restoration {
            changes: self.count,
            total: self.total,
            files: self.files,
            ..of
        };
        self.journal.begin(&restoration).await?;
        Ok(Some(restoration))
    }
}

impl<'a> Corrections<'a> {
    /// Corrections of a restoration.
    ///
    /// # Errors
    /// [`Error::Request`] names the fields that neither the keys nor `set` say.
    pub(crate) fn new(
        journal: &'a Journal<'a>,
        (of, set): (&Restoration, &'a BTreeMap<String, String>),
        scope: &Arc<Scope>,
        fold: Fold,
    ) -> Result<Self> {
        let grain = &scope.grain;
        let in_key = |name: &str| {
            let name = if name == "at" { BUCKET } else { name };
            grain.0.iter().any(|column| column.name == name)
        };
        let missing: Vec<&str> = NEEDED
            .into_iter()
            .filter(|name| !in_key(name) && !set.contains_key(*name))
            .collect();
        if !missing.is_empty() {
            return Err(Error::Request(format!(
                "a correction is an event, but the compared columns do not determine its {}: compare a view and a file with these columns (for example plays_owner_day_track), or set the values with {}",
                missing.join(" and "),
                missing
                    .iter()
                    .map(|name| format!("--set {name}=…"))
                    .collect::<Vec<_>>()
                    .join(" ")
            )));
        }
        if let Some(name) = set.keys().find(|name| !SETTABLE.contains(&name.as_str())) {
            return Err(Error::Request(format!(
                "--set {name}: unknown field of a correction; the fields are {}",
                SETTABLE.join(", ")
            )));
        }
        if let Some(name) = set.keys().find(|name| in_key(name)) {
            return Err(Error::Request(format!(
                "--set {name}: the compared keys already determine this field"
            )));
        }
        Ok(Self {
            id: of.id.clone(),
            scope: Arc::clone(scope),
            set,
            fold,
            changes: Changes::new(journal),
            unchecked: HashMap::new(),
        })
    }

    /// Notes what is to be added to a key.
    pub(crate) fn add(&mut self, key: &[u8], weighed: &Weighed) -> Result<()> {
        let amount = i128::from(weighed.expected) - i128::from(weighed.events);
        let amount = i64::try_from(amount).unwrap_or(i64::MAX);
        if amount == 0 {
            return Ok(());
        }
        let key_named = named(&self.scope.grain, key)?;
        if amount.unsigned_abs() > AMOUNT_MAX.unsigned_abs() {
            return Err(Error::Request(format!(
                "{}: expected {}, counted {}: the difference exceeds the maximum of a correction, {AMOUNT_MAX}. Nothing was corrected",
                Value::Object(shown_key(&key_named)),
                weighed.expected,
                weighed.events
            )));
        }
        let event = self.event(&key_named, &id_of(&self.id, xxh3_128(key)), amount);
        let change = (event.to_string(), weighed.events, weighed.expected);
        self.changes.add(change);
        self.unchecked.insert(key.to_vec(), amount);
        Ok(())
    }

    /// Makes sure that intake takes the newest corrections, and that each changes the key that it is for and no other.
    /// Then they may be recorded: what is recorded is appended, whatever happens.
    ///
    /// # Errors
    /// [`Error::Request`] names the first that does not.
    pub(crate) async fn check(&mut self) -> Result<()> {
        if self.unchecked.is_empty() {
            return Ok(());
        }
        let waiting = &self.changes.waiting;
        let newest = waiting.get(waiting.len().saturating_sub(self.unchecked.len())..);
        let newest = newest.unwrap_or_default();
        let lines = newest.iter().map(|(event, ..)| Line {
            offset: 0,
            logged_at_ms: 0,
            bytes: event.as_bytes(),
        });
        let fault = |e| Error::fault("decoding corrections", e);
        let decoded = Decoder::new(0).decode(lines).map_err(fault)?;
        if let Some(refused) = decoded.rejected.first() {
            let event = newest.get(refused.index).map_or("", |(event, ..)| event);
            return Err(Error::Request(format!(
                "the correction {event} would be rejected: {}. Nothing was corrected",
                refused.reason
            )));
        }
        let folded = self.fold.run(&decoded.events).await?;
        let changed = folded.last().map(|folded| self.scope.sums(&folded.rows));
        let changed = changed.transpose()?.unwrap_or_default();
        if changed == self.unchecked {
            self.unchecked.clear();
            return self.changes.write(false).await;
        }
        let mut wrong = self.unchecked.iter();
        let wrong = wrong.find(|(key, amount)| changed.get(*key) != Some(amount));
        let of = match wrong {
            Some((key, _)) => Value::Object(shown_key(&named(&self.scope.grain, key)?)).to_string(),
            None => "one of the keys".to_owned(),
        };
        Err(Error::Request(format!(
            "no single event changes the count of {of} by the difference and nothing else: check --set, --from and --to, and compare a view whose columns are fields of plays, such as plays_owner_day_track. Nothing was corrected"
        )))
    }

    fn event(&self, key: &Named, id: &str, amount: i64) -> Value {
        let mut event: Map<String, Value> = shown_key(key);
        if let Some(bucket) = event.remove(BUCKET) {
            event.insert("at".to_owned(), bucket);
        }
        event.retain(|_, value| !value.is_null());
        for (name, value) in self.set {
            let value = match (name.as_str(), value.parse::<i64>()) {
                ("owner_id" | "track_id" | "listener_id" | "app_id", Ok(id)) => id.into(),
                _ => value.as_str().into(),
            };
            event.insert(name.clone(), value);
        }
        let kind = event.entry("kind").or_insert_with(|| "play".into());
        debug_assert!(kind.is_string());
        event.insert("event_id".to_owned(), id.into());
        event.insert("amount".to_owned(), json!(amount));
        Value::Object(event)
    }

    /// The changes that they are, all of them.
    pub(crate) fn into_changes(self) -> Changes<'a> {
        self.changes
    }
}

fn schema() -> SchemaRef {
    Arc::new(Schema::new(vec![
        Field::new(CHANGE, DataType::Utf8, false),
        Field::new("before", DataType::Int64, false),
        Field::new("after", DataType::Int64, false),
    ]))
}

fn encode(rows: &[Change]) -> Result<bytes::Bytes> {
    let fault = |e: &dyn std::fmt::Display| Error::fault("writing corrections", e);
    let columns: Vec<ArrayRef> = vec![
        Arc::new(StringArray::from_iter_values(
            rows.iter().map(|(event, ..)| event),
        )),
        Arc::new(Int64Array::from_iter_values(
            rows.iter().map(|(_, before, _)| *before),
        )),
        Arc::new(Int64Array::from_iter_values(
            rows.iter().map(|(.., expected)| *expected),
        )),
    ];
    let rows = RecordBatch::try_new(schema(), columns).map_err(|e| fault(&e))?;
    encode_changes(&[rows])
}

/// A file of changes.
pub(crate) fn encode_changes(rows: &[RecordBatch]) -> Result<bytes::Bytes> {
    let fault = |e: &dyn std::fmt::Display| Error::fault("writing corrections", e);
    let mut writer = parquet_file::begin(schema(), STEP_ROWS).map_err(|e| fault(&e))?;
    for rows in rows {
        writer.write(rows).map_err(|e| fault(&e))?;
    }
    parquet_file::finish(writer).map_err(|e| fault(&e))
}

async fn write(journal: &Journal<'_>, rows: &[Change]) -> Result<ChangesFile> {
    let path = journal.new_file();
    journal.put(&path, encode(rows)?).await?;
    Ok(ChangesFile {
        path,
        rows: rows.len() as u64,
    })
}

/// The corrections in a file, some at a time: the events, and what was counted before and expected.
pub(crate) async fn each_step(
    archive: &Archive,
    file: &ChangesFile,
    mut step: impl AsyncFnMut(RecordBatch) -> Result<()>,
) -> Result<()> {
    let groups = usize::try_from(file.rows).map_err(|e| Error::fault("corrections", e))?;
    let groups = (0..groups.div_ceil(STEP_ROWS)).collect();
    let mut batches = archive.read_rows(&file.path, groups, STEP_ROWS).await?;
    while let Some(batch) = batches.try_next().await? {
        step(batch).await?;
    }
    Ok(())
}

impl Batch {
    /// Appends the corrections of a restoration that was recorded, and records that. How many are in the log is said as
    /// soon as they are.
    pub(crate) async fn append(
        &self,
        journal: &Journal<'_>,
        (restoration, appended): (&Restoration, &mut u64),
        intake: &Intake,
        (progress, stop): (&dyn Progress, &CancellationToken),
    ) -> Result<()> {
        let origin = format!("restoration {}", restoration.number);
        progress.stage("append", restoration.changes);
        for file in &restoration.files {
            each_step(journal.archive, file, async |batch| {
                check_stop(stop)?;
                let events = batch.column(0).as_string::<i32>();
                let lines: Vec<(u64, &[u8])> = (*appended + 1..)
                    .zip(events.iter())
                    .map(|(line, event)| (line, event.unwrap_or_default().as_bytes()))
                    .collect();
                let taken = intake.ingest(&origin, lines.into_iter()).await?;
                if let Some(refused) = taken.rejected.first() {
                    return Err(Error::Request(format!(
                        "correction {} of restoration {} was rejected: {}",
                        refused.line, restoration.number, refused.reason
                    )));
                }
                *appended += batch.num_rows() as u64;
                progress.advance(batch.num_rows() as u64);
                Ok(())
            })
            .await?;
        }
        let until = self.read_partition_ends(journal.source).await?;
        journal.end(restoration.number, &until).await
    }

    /// Goes on with restorations that died before all their corrections were in the log.
    pub(crate) async fn append_all(
        &self,
        journal: &Journal<'_>,
        intake: &Intake,
        told: (&dyn Progress, &CancellationToken),
    ) -> Result<()> {
        for recorded in journal.all().await? {
            if recorded.is_to_be_gone_on_with() {
                let of = (&recorded.restoration, &mut 0);
                self.append(journal, of, intake, told).await?;
            }
        }
        Ok(())
    }
}

/// Whether everything that restorations appended is below a position.
pub(crate) fn is_counted(
    recorded: &[Recorded],
    position: &[Offset],
) -> std::result::Result<(), u64> {
    for one in recorded {
        if one.restoration.kind != RestorationKind::Corrections {
            continue;
        }
        let until = one.done_until.iter().flatten().enumerate();
        let mut places = until.map(|(partition, until)| (position.get(partition), until));
        if places.any(|(at, until)| at.is_none_or(|at| at < until)) || one.done_until.is_none() {
            return Err(one.restoration.number);
        }
    }
    Ok(())
}

/// The id of a restoration's correction for a key, by the key's hash.
fn id_of(restoration: &str, key: u128) -> String {
    format!("restoration-{restoration}-{key:032x}")
}

/// The corrections that take those of a restoration back, as another one's.
pub(crate) async fn reversed(
    journal: &Journal<'_>,
    undone: &Restoration,
    by: &str,
) -> Result<Vec<ChangesFile>> {
    let mut files = Vec::new();
    for file in &undone.files {
        let mut rows = Vec::new();
        each_step(journal.archive, file, async |batch| {
            let events = batch.column(0).as_string::<i32>();
            let before = batch.column(1).as_primitive::<Int64Type>();
            let expected = batch.column(2).as_primitive::<Int64Type>();
            for (row, event) in events.iter().enumerate() {
                let fault = |e| Error::fault("a correction", e);
                let mut event: Map<String, Value> =
                    serde_json::from_str(event.unwrap_or_default()).map_err(fault)?;
                let amount = event.get("amount").and_then(Value::as_i64).unwrap_or(0);
                let id = event
                    .get("event_id")
                    .and_then(Value::as_str)
                    .unwrap_or_default();
                let of_key = id.rsplit('-').next().unwrap_or_default();
                let of_key = u128::from_str_radix(of_key, 16)
                    .map_err(|e| Error::fault("a correction's id", e))?;
                let id = id_of(by, of_key);
                event.insert("event_id".to_owned(), id.into());
                event.insert("amount".to_owned(), json!(-amount));
                let event = Value::Object(event).to_string();
                rows.push((event, expected.value(row), before.value(row)));
            }
            Ok(())
        })
        .await?;
        files.push(write(journal, &rows).await?);
    }
    Ok(files)
}
