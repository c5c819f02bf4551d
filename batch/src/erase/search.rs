//! Searches every store for listeners. Reads all data, and trusts no index.

use std::collections::BTreeSet;
use std::sync::Arc;

use arrow::array::{AsArray, BinaryArray};
use arrow::datatypes::Int64Type;
use futures::TryStreamExt;
use jobs::Job;
use jobs::tables::{TableGeneration, drift_row_shape, drift_table_name, table_name};
use schemas::key::{KeyShape, KeyValue, find_possible_ints};
use schemas::plays::{Decoder, Line};
use schemas::seam::{Epoch, Offset};
use stores::dead_letters::erase::count_mentions;
use stores::erasures::{PersonKind, SearchedPeople, may_mention_kind};
use stores::live::PartitionId;
use stores::log::Records;
use stores::registry::read_writer_schemas;
use stores::view_scan::ScanShare;

use super::eraser::Eraser;
use super::findings::Findings;
use super::receipt::LOG;
use super::repair_records::count_in_changes;
use super::sources::LISTENER_SOURCE;
use super::topic_scan::OffsetRange;
use crate::archive::{Version, for_each_listener};
use crate::restore::changes_folder;
use crate::tally;
use crate::{Error, Result};

pub(super) const PAGE_ROWS: usize = 20_000;
pub(super) const BATCH_ROWS: usize = 32_768;

impl Eraser {
    /// Searches every place where listeners can occur, and adds each place to the findings. Reads a
    /// place once for all listeners.
    pub(super) async fn search_listeners(
        &self,
        ids: impl Iterator<Item = i64>,
        findings: &mut Findings,
    ) -> Result<()> {
        let archive = &self.batch.ports.archive;
        let people = SearchedPeople::new(PersonKind::Listener, ids);
        let mut counts = people.clone();
        self.count_in_log(&mut counts).await?;
        findings.add(LOG, LISTENER_SOURCE.topic(), &counts);
        counts = people.clone();
        self.count_in_live_state(&mut counts).await?;
        findings.add("live state", LISTENER_SOURCE.name(), &counts);
        for (table, counts) in self.search_tables(&people).await? {
            findings.add("views", &table, &counts);
        }
        counts = people.clone();
        let folder = format!("archive/{LISTENER_SOURCE}");
        for path in parquet_paths(archive.list(&folder).await?) {
            self.search_file(&path, &mut counts, async |counts| {
                for_each_listener(archive, &path, None, |id| counts.increment(id)).await
            })
            .await?;
        }
        findings.add("archive", &folder, &counts);
        counts = people.clone();
        self.count_in_results(&mut counts).await?;
        findings.add("results", &format!("results/{LISTENER_SOURCE}"), &counts);
        counts = people.clone();
        count_in_changes(archive, &mut counts).await?;
        findings.add("restorations", &changes_folder(LISTENER_SOURCE), &counts);
        counts = people.clone();
        count_mentions(&*self.log, LISTENER_SOURCE, &mut counts).await?;
        findings.add("dead letters", LISTENER_SOURCE.dead_letter_topic(), &counts);
        counts = people.clone();
        self.count_in_reports(LISTENER_SOURCE, &mut counts).await?;
        findings.add("reports of runs", LISTENER_SOURCE.name(), &counts);
        counts = people.clone();
        self.count_in_comparisons(LISTENER_SOURCE, &mut counts)
            .await?;
        findings.add("comparisons", LISTENER_SOURCE.name(), &counts);
        Ok(())
    }

    async fn count_in_log(&self, counts: &mut SearchedPeople) -> Result<()> {
        let topic = LISTENER_SOURCE.topic();
        for (partition, span) in (0_u32..).zip(self.log.spans(topic).await?) {
            let range = OffsetRange {
                partition,
                start: span.start,
                end: span.end,
            };
            self.for_each_batch(topic, range, async |records: &Records| {
                self.count_in_records(records, counts).await?;
                Ok(true)
            })
            .await?;
        }
        Ok(())
    }

    async fn count_in_records(&self, records: &Records, counts: &mut SearchedPeople) -> Result<()> {
        let writers = read_writer_schemas(&*self.batch.ports.schemas, &records.values).await?;
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
            counts.increment(id);
        }
        for rejected in &decoded.rejected {
            let raw = records.values.value(rejected.index);
            counts.count_mentions(|is_searched| {
                may_mention_kind(LISTENER_SOURCE, raw, PersonKind::Listener, is_searched)
            });
        }
        Ok(())
    }

    async fn count_in_live_state(&self, counts: &mut SearchedPeople) -> Result<()> {
        let ports = &self.batch.ports;
        let partitions = ports
            .log
            .current_partition_count(LISTENER_SOURCE.topic())
            .await?;
        for job in self.list_listener_views() {
            for partition in 0..partitions {
                let id = PartitionId {
                    source: LISTENER_SOURCE,
                    partition,
                };
                let mut after = None;
                loop {
                    let (view, epochs) = (job.view(), (0, Epoch::MAX >> 1));
                    let page = ports
                        .live
                        .scan_deltas(id, view, epochs, after, PAGE_ROWS)
                        .await?;
                    let deltas = &page.deltas;
                    count_in_keys(job.group(), &deltas.groups, counts);
                    count_in_keys(job.row(), &deltas.rows, counts);
                    after = page.next;
                    if after.is_none() {
                        break;
                    }
                }
            }
        }
        Ok(())
    }

    /// Counts rows and markers by table.
    async fn search_tables(
        &self,
        people: &SearchedPeople,
    ) -> Result<Vec<(String, SearchedPeople)>> {
        let mut tables = Vec::new();
        let generations = self.list_generations().await?;
        for job in self.list_listener_views() {
            let mut shapes: Vec<(String, KeyShape)> = Vec::new();
            for generation in &generations {
                shapes.push((table_name(job.view(), *generation), job.row().clone()));
                let drift_table = drift_table_name(job.view(), *generation);
                if shapes.iter().all(|(name, _)| *name != drift_table) {
                    shapes.push((drift_table, drift_row_shape(job.row())));
                }
            }
            for (table, shape) in shapes {
                let mut counts = people.clone();
                if self.count_in_table(&table, &shape, &mut counts).await? {
                    tables.push((table, counts));
                }
            }
        }
        Ok(tables)
    }

    /// Counts the rows of a table. Returns false if the table does not exist.
    async fn count_in_table(
        &self,
        table: &str,
        row: &KeyShape,
        counts: &mut SearchedPeople,
    ) -> Result<bool> {
        let views = &self.batch.ports.views;
        let mut after = None;
        loop {
            let page = views.scan_rows(table, ScanShare::ALL, after.as_ref(), PAGE_ROWS);
            let Some(page) = page.await? else {
                return Ok(false);
            };
            count_in_keys(row, &page.rows, counts);
            after = page.next;
            if after.is_none() {
                return Ok(true);
            }
        }
    }

    /// Returns all possible generations of tables, past and present.
    async fn list_generations(&self) -> Result<Vec<TableGeneration>> {
        let ports = &self.batch.ports;
        let backfills = Version::read_newest(&ports.archive, LISTENER_SOURCE)
            .await?
            .backfills();
        let mut erasures: BTreeSet<u64> = std::iter::once(0).collect();
        erasures.extend(
            ports
                .suppressions
                .all()
                .await?
                .iter()
                .map(|erasure| erasure.number),
        );
        let with_backfills = |backfills: u64| {
            let numbers = erasures.iter();
            numbers.map(move |erasures| TableGeneration {
                backfills,
                erasures: *erasures,
            })
        };
        Ok((0..=backfills).flat_map(with_backfills).collect())
    }

    /// Counts the rows of all results.
    async fn count_in_results(&self, counts: &mut SearchedPeople) -> Result<()> {
        let archive = &self.batch.ports.archive;
        let jobs = self.list_listener_views();
        let present = archive
            .list(&format!("results/{LISTENER_SOURCE}/data"))
            .await?;
        let present: BTreeSet<String> = present.into_iter().collect();
        for path in archive
            .list(&format!("results/{LISTENER_SOURCE}/views"))
            .await?
        {
            let is_of_job = |job: &&Arc<Job>| {
                let table = path.split('/').nth_back(2).unwrap_or_default();
                let suffix = table.strip_prefix(job.view());
                suffix.is_some_and(|suffix| suffix.is_empty() || suffix.starts_with('.'))
            };
            let Some(job) = jobs.iter().find(is_of_job) else {
                continue;
            };
            let Some(bytes) = archive.get(&path).await? else {
                continue;
            };
            for (file, groups) in tally::segments(&bytes) {
                if !present.contains(&file) {
                    continue;
                }
                self.search_file(&file, counts, async |counts| {
                    let mut batches = archive.read_rows(&file, groups, BATCH_ROWS).await?;
                    while let Some(batch) = batches.try_next().await? {
                        let rows = batch.column_by_name("row");
                        if let Some(rows) = rows.and_then(|rows| rows.as_binary_opt::<i32>()) {
                            count_in_keys(job.row(), rows, counts);
                        }
                    }
                    Ok(())
                })
                .await?;
            }
        }
        Ok(())
    }

    /// Adds the findings of a file, unless another process deleted the file during the search.
    pub(super) async fn search_file(
        &self,
        path: &str,
        counts: &mut SearchedPeople,
        read: impl AsyncFnOnce(&mut SearchedPeople) -> Result<()>,
    ) -> Result<()> {
        let mut file_counts = counts.zeroed();
        if let Err(error) = read(&mut file_counts).await {
            let folder = path.rsplit_once('/').map_or("", |(folder, _)| folder);
            let present = self.batch.ports.archive.list(folder).await?;
            if present.iter().any(|present_path| present_path == path) {
                return Err(error);
            }
            return Ok(());
        }
        counts.add(&file_counts);
        Ok(())
    }
}

pub(super) fn parquet_paths(paths: Vec<String>) -> impl Iterator<Item = String> {
    paths.into_iter().filter(|path| path.ends_with(".parquet"))
}

/// Counts the keys that name each searched listener.
fn count_in_keys(shape: &KeyShape, keys: &BinaryArray, counts: &mut SearchedPeople) {
    let Some(index) = shape
        .0
        .iter()
        .position(|column| column.name == "listener_id")
    else {
        return;
    };
    let Ok(columns) = shape.decode_columns(keys.iter().flatten(), &[index]) else {
        count_in_each_key(shape, index, keys, counts);
        return;
    };
    let column = columns.get(index).and_then(Option::as_ref);
    let column = column.and_then(|column| column.as_primitive_opt::<Int64Type>());
    for id in column.iter().flat_map(|column| column.iter().flatten()) {
        counts.increment(id);
    }
}

/// Counts key by key. Bytes that are not a valid key, such as those of a manually changed row,
/// count for every searched id that they may contain. Such a row must neither hide a person nor end
/// the search.
fn count_in_each_key(
    shape: &KeyShape,
    index: usize,
    keys: &BinaryArray,
    counts: &mut SearchedPeople,
) {
    for key in keys.iter().flatten() {
        match shape.decode_values(key) {
            Ok(values) => {
                if let Some(KeyValue::Int(id)) = values.get(index) {
                    counts.increment(*id);
                }
            }
            Err(_) => counts.count_mentions(|is_searched| find_possible_ints(key).any(is_searched)),
        }
    }
}
