//! Searching every store for a listener, by reading all of it: nothing is believed of what should be there.

use std::collections::BTreeSet;
use std::sync::Arc;

use arrow::array::{AsArray, BinaryArray};
use arrow::datatypes::Int64Type;
use futures::TryStreamExt;
use jobs::Job;
use jobs::tables::{Generation, kept_name, kept_row, table_name};
use schemas::key::{KeyShape, KeyValue, ints_within};
use schemas::plays::{Decoder, Line};
use schemas::seam::{Epoch, Offset};
use stores::dead_letters::erase::count_of;
use stores::erasures::{Kind, Sought, mentions};
use stores::live::SlotId;
use stores::log::Records;
use stores::registry::writers_of;
use stores::view_scan::ScanShare;

use super::Eraser;
use super::findings::Findings;
use super::listener::SOURCE;
use super::receipt::LOG;
use super::restorations::in_restorations;
use crate::archive::{Version, for_each_listener};
use crate::restore::changes_folder;
use crate::tally;
use crate::{Error, Result};

pub(super) const PAGE_ROWS: usize = 20_000;
pub(super) const BATCH_ROWS: usize = 32_768;

impl Eraser {
    /// Searches every place where listeners can be, once for all of them. Each is among the answers, also where nothing
    /// is found.
    pub(super) async fn search_listeners(
        &self,
        ids: impl Iterator<Item = i64>,
        all: &mut Findings,
    ) -> Result<()> {
        let archive = &self.batch.ports.archive;
        let none = Sought::of(Kind::Listener, ids);
        let mut found = none.clone();
        self.in_log(&mut found).await?;
        all.add(LOG, SOURCE.topic(), &found);
        found = none.clone();
        self.in_live(&mut found).await?;
        all.add("live state", SOURCE.name(), &found);
        for (table, found) in self.in_tables(&none).await? {
            all.add("views", &table, &found);
        }
        found = none.clone();
        let folder = format!("archive/{SOURCE}");
        for path in parquet(archive.list(&folder).await?) {
            self.in_file(&path, &mut found, async |found| {
                for_each_listener(archive, &path, None, |id| found.note(id)).await
            })
            .await?;
        }
        all.add("archive", &folder, &found);
        found = none.clone();
        self.in_results(&mut found).await?;
        all.add("results", &format!("results/{SOURCE}"), &found);
        found = none.clone();
        in_restorations(archive, &mut found).await?;
        all.add("restorations", &changes_folder(SOURCE), &found);
        found = none.clone();
        count_of(&*self.log, SOURCE, &mut found).await?;
        all.add("dead letters", SOURCE.dead_letter_topic(), &found);
        found = none.clone();
        self.in_reports(SOURCE, &mut found).await?;
        all.add("reports of runs", SOURCE.name(), &found);
        found = none.clone();
        self.in_comparisons(SOURCE, &mut found).await?;
        all.add("comparisons", SOURCE.name(), &found);
        Ok(())
    }

    async fn in_log(&self, found: &mut Sought) -> Result<()> {
        let topic = SOURCE.topic();
        for (partition, span) in (0_u32..).zip(self.log.spans(topic).await?) {
            let within = (partition, span.start, span.end);
            self.each(topic, within, async |records: &Records| {
                self.in_records(records, found).await?;
                Ok(true)
            })
            .await?;
        }
        Ok(())
    }

    async fn in_records(&self, records: &Records, found: &mut Sought) -> Result<()> {
        let writers = writers_of(&*self.batch.ports.schemas, &records.values).await?;
        let lines = (0..records.len()).map(|index| Line {
            offset: Offset::try_from(index).unwrap_or_default(),
            logged_at_ms: 0,
            bytes: records.values.value(index),
        });
        let decoded = Decoder::new(0).decode_records(lines, &writers);
        let decoded = decoded.map_err(|e| Error::fault("decoding", e))?;
        let events = decoded.events.column_by_name("listener_id");
        let events = events.and_then(|column| column.as_primitive_opt::<Int64Type>());
        for id in events.iter().flat_map(|column| column.iter().flatten()) {
            found.note(id);
        }
        for rejected in &decoded.rejected {
            let raw = records.values.value(rejected.index);
            found.once(|has| mentions(SOURCE, raw, Kind::Listener, has));
        }
        Ok(())
    }

    async fn in_live(&self, found: &mut Sought) -> Result<()> {
        let ports = &self.batch.ports;
        let partitions = ports.log.partitions_now(SOURCE.topic()).await?;
        for job in self.batch.views_of_listeners() {
            for partition in 0..partitions {
                let slot = SlotId {
                    source: SOURCE,
                    partition,
                };
                let mut after = None;
                loop {
                    let (view, all) = (job.view(), (0, Epoch::MAX >> 1));
                    let page = ports
                        .live
                        .scan_deltas(slot, view, all, after, PAGE_ROWS)
                        .await?;
                    let deltas = &page.deltas;
                    in_keys(job.group(), &deltas.groups, found);
                    in_keys(job.row(), &deltas.rows, found);
                    after = page.next;
                    if after.is_none() {
                        break;
                    }
                }
            }
        }
        Ok(())
    }

    /// By table: rows, markers too.
    async fn in_tables(&self, none: &Sought) -> Result<Vec<(String, Sought)>> {
        let mut tables = Vec::new();
        let known = self.generations().await?;
        for job in self.batch.views_of_listeners() {
            let mut shapes: Vec<(String, KeyShape)> = Vec::new();
            for of in &known {
                shapes.push((table_name(job.view(), *of), job.row().clone()));
                let kept = kept_name(job.view(), *of);
                if shapes.iter().all(|(name, _)| *name != kept) {
                    shapes.push((kept, kept_row(job.row())));
                }
            }
            for (table, shape) in shapes {
                let mut found = none.clone();
                if self.in_table(&table, &shape, &mut found).await? {
                    tables.push((table, found));
                }
            }
        }
        Ok(tables)
    }

    /// Counts the rows of a table, and answers whether there is one.
    async fn in_table(&self, table: &str, row: &KeyShape, found: &mut Sought) -> Result<bool> {
        let views = &self.batch.ports.views;
        let mut after = None;
        loop {
            let page = views.scan_rows(table, ScanShare::ALL, after.as_ref(), PAGE_ROWS);
            let Some(page) = page.await? else {
                return Ok(false);
            };
            in_keys(row, &page.rows, found);
            after = page.next;
            if after.is_none() {
                return Ok(true);
            }
        }
    }

    /// What tables may be of, now or before.
    async fn generations(&self) -> Result<Vec<Generation>> {
        let ports = &self.batch.ports;
        let backfills = Version::newest(&ports.archive, SOURCE).await?.backfills();
        let mut erasures: BTreeSet<u64> = std::iter::once(0).collect();
        erasures.extend(ports.suppressions.all().await?.iter().map(|one| one.number));
        let of = |backfills: u64| {
            let numbers = erasures.iter();
            numbers.map(move |erasures| Generation {
                backfills,
                erasures: *erasures,
            })
        };
        Ok((0..=backfills).flat_map(of).collect())
    }

    /// Rows of results, of every result that there is.
    async fn in_results(&self, found: &mut Sought) -> Result<()> {
        let archive = &self.batch.ports.archive;
        let jobs = self.batch.views_of_listeners();
        let present = archive.list(&format!("results/{SOURCE}/data")).await?;
        let present: BTreeSet<String> = present.into_iter().collect();
        for path in archive.list(&format!("results/{SOURCE}/views")).await? {
            let of = |job: &&Arc<Job>| {
                let table = path.split('/').nth_back(2).unwrap_or_default();
                let rest = table.strip_prefix(job.view());
                rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
            };
            let Some(job) = jobs.iter().find(of) else {
                continue;
            };
            let Some(bytes) = archive.get(&path).await? else {
                continue;
            };
            for (file, groups) in tally::segments(&bytes) {
                if !present.contains(&file) {
                    continue;
                }
                self.in_file(&file, found, async |found| {
                    let mut batches = archive.rows(&file, groups, BATCH_ROWS).await?;
                    while let Some(batch) = batches.try_next().await? {
                        let rows = batch.column_by_name("row");
                        if let Some(rows) = rows.and_then(|rows| rows.as_binary_opt::<i32>()) {
                            in_keys(job.row(), rows, found);
                        }
                    }
                    Ok(())
                })
                .await?;
            }
        }
        Ok(())
    }
}

pub(super) fn parquet(paths: Vec<String>) -> impl Iterator<Item = String> {
    paths.into_iter().filter(|path| path.ends_with(".parquet"))
}

/// Counts the keys that name each listener who is sought.
fn in_keys(shape: &KeyShape, keys: &BinaryArray, found: &mut Sought) {
    let Some(index) = shape
        .0
        .iter()
        .position(|column| column.name == "listener_id")
    else {
        return;
    };
    let Ok(columns) = shape.decode_some(keys.iter().flatten(), &[index]) else {
        in_each_key((shape, index), keys, found);
        return;
    };
    let column = columns.get(index).and_then(Option::as_ref);
    let column = column.and_then(|column| column.as_primitive_opt::<Int64Type>());
    for id in column.iter().flat_map(|column| column.iter().flatten()) {
        found.note(id);
    }
}

/// The same, key by key. Bytes that are no key, as of a row that was changed by hand, name whoever's id may stand in
/// them: such a row must neither hide somebody nor end the search.
fn in_each_key((shape, index): (&KeyShape, usize), keys: &BinaryArray, found: &mut Sought) {
    for key in keys.iter().flatten() {
        match shape.decode_values(key) {
            Ok(values) => {
                if let Some(KeyValue::Int(id)) = values.get(index) {
                    found.note(*id);
                }
            }
            Err(_) => found.once(|has| ints_within(key).any(has)),
        }
    }
}
