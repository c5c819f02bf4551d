//! Searching every store for a listener, by reading all of it: nothing is believed of what should be there.

use std::collections::BTreeSet;
use std::sync::Arc;

use arrow::array::{AsArray, BinaryArray};
use arrow::datatypes::Int64Type;
use futures::TryStreamExt;
use jobs::Job;
use jobs::tables::{Generation, kept_name, kept_row, table_name};
use schemas::key::KeyShape;
use schemas::plays::{Decoder, Line};
use schemas::seam::{Epoch, Offset};
use stores::dead_letters::erase::count_of;
use stores::erasures::{Person, mentions};
use stores::live::SlotId;
use stores::log::{FetchLimit, Records};
use stores::registry::writers_of;
use stores::view_scan::ScanShare;

use super::listener::SOURCE;
use super::receipt::LOG;
use super::restorations::in_restorations;
use super::{Eraser, Finding};
use crate::archive::listeners;
use crate::restore::changes_folder;
use crate::tally;
use crate::{Error, Result};

pub(super) const PAGE_ROWS: usize = 20_000;
pub(super) const BATCH_ROWS: usize = 32_768;
pub(super) const FETCH: FetchLimit = FetchLimit {
    records: 20_000,
    bytes: 16 << 20,
};

impl Eraser {
    /// Searches every place where a listener can be. Each is among the answers, also where nothing is found.
    pub(super) async fn search_listener(&self, person: Person) -> Result<Vec<Finding>> {
        let mut found = vec![
            finding(LOG, SOURCE.topic(), self.in_log(person).await?),
            finding("live state", SOURCE.name(), self.in_live(person).await?),
        ];
        for (table, rows) in self.in_tables(person).await? {
            found.push(finding("views", &table, rows));
        }
        let archive = &self.batch.ports.archive;
        let mut events = 0;
        let folder = format!("archive/{SOURCE}");
        for path in parquet(archive.list(&folder).await?) {
            let note = |id| events += u64::from(id == person.id);
            listeners(archive, &path, None, note).await?;
        }
        found.push(finding("archive", &folder, events));
        let results = self.in_results(person).await?;
        found.push(finding("results", &format!("results/{SOURCE}"), results));
        let changes = in_restorations(archive, |id| id == person.id).await?;
        found.push(finding("restorations", &changes_folder(SOURCE), changes));
        let letters = count_of(&*self.log, SOURCE, person).await?;
        found.push(finding("dead letters", SOURCE.dead_letter_topic(), letters));
        found.push(finding(
            "reports of runs",
            SOURCE.name(),
            self.in_reports(SOURCE, |named| named.listener() == Some(person.id))
                .await?,
        ));
        let is_wanted = |column: &str, id| column == "listener_id" && id == person.id;
        let compared = self.in_comparisons(SOURCE, is_wanted).await?;
        found.push(finding("comparisons", SOURCE.name(), compared));
        Ok(found)
    }

    async fn in_log(&self, person: Person) -> Result<u64> {
        let (log, topic) = (&self.log, SOURCE.topic());
        let mut found = 0;
        for (partition, span) in (0_u32..).zip(log.spans(topic).await?) {
            let mut next = span.start;
            while next < span.end {
                let fetched = log.fetch_apart(topic, partition, next, FETCH).await;
                let fetched = match fetched {
                    // It was trimmed meanwhile, or its time was over.
                    Err(stores::Error::OffsetOutOfRange { start, .. }) if start > next => {
                        next = start;
                        continue;
                    }
                    fetched => fetched?,
                };
                if fetched.next_offset == next {
                    break;
                }
                next = fetched.next_offset;
                found += self.in_records(&fetched.records, person).await?;
            }
        }
        Ok(found)
    }

    async fn in_records(&self, records: &Records, person: Person) -> Result<u64> {
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
        let events = events.iter().flat_map(|column| column.iter().flatten());
        let rejected = decoded.rejected.iter().filter(|rejected| {
            let raw = records.values.value(rejected.index);
            mentions(SOURCE, raw, person)
        });
        Ok((events.filter(|id| *id == person.id).count() + rejected.count()) as u64)
    }

    async fn in_live(&self, person: Person) -> Result<u64> {
        let ports = &self.batch.ports;
        let partitions = ports.log.partitions_now(SOURCE.topic()).await?;
        let mut found = 0;
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
                    found += in_keys(job.group(), &deltas.groups, person.id)?;
                    found += in_keys(job.row(), &deltas.rows, person.id)?;
                    after = page.next;
                    if after.is_none() {
                        break;
                    }
                }
            }
        }
        Ok(found)
    }

    /// By table: rows, markers too.
    async fn in_tables(&self, person: Person) -> Result<Vec<(String, u64)>> {
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
                if let Some(rows) = self.in_table(&table, &shape, person).await? {
                    tables.push((table, rows));
                }
            }
        }
        Ok(tables)
    }

    async fn in_table(&self, table: &str, row: &KeyShape, person: Person) -> Result<Option<u64>> {
        let views = &self.batch.ports.views;
        let (mut found, mut after) = (0, None);
        loop {
            let page = views.scan_rows(table, ScanShare::ALL, after.as_ref(), PAGE_ROWS);
            let Some(page) = page.await? else {
                return Ok(None);
            };
            found += in_keys(row, &page.rows, person.id)?;
            after = page.next;
            if after.is_none() {
                return Ok(Some(found));
            }
        }
    }

    /// What tables may be of, now or before.
    async fn generations(&self) -> Result<Vec<Generation>> {
        let ports = &self.batch.ports;
        let (backfills, _) = crate::archive::backfilled(&ports.archive, SOURCE).await?;
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
    async fn in_results(&self, person: Person) -> Result<u64> {
        let archive = &self.batch.ports.archive;
        let jobs = self.batch.views_of_listeners();
        let present = archive.list(&format!("results/{SOURCE}/data")).await?;
        let present: BTreeSet<String> = present.into_iter().collect();
        let mut found = 0;
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
                let mut batches = archive.rows(&file, groups, BATCH_ROWS).await?;
                while let Some(batch) = batches.try_next().await? {
                    let rows = batch.column_by_name("row");
                    if let Some(rows) = rows.and_then(|rows| rows.as_binary_opt::<i32>()) {
                        found += in_keys(job.row(), rows, person.id)?;
                    }
                }
            }
        }
        Ok(found)
    }
}

pub(super) fn finding(place: &str, at: &str, found: u64) -> Finding {
    Finding {
        place: place.to_owned(),
        at: at.to_owned(),
        found,
    }
}

pub(super) fn parquet(paths: Vec<String>) -> impl Iterator<Item = String> {
    paths.into_iter().filter(|path| path.ends_with(".parquet"))
}

/// How many of some keys name a listener.
fn in_keys(shape: &KeyShape, keys: &BinaryArray, id: i64) -> Result<u64> {
    let Some(index) = shape
        .0
        .iter()
        .position(|column| column.name == "listener_id")
    else {
        return Ok(0);
    };
    let columns = shape
        .decode_some(keys.iter().flatten(), &[index])
        .map_err(|e| Error::fault("decoding keys", e))?;
    let column = columns.get(index).and_then(Option::as_ref);
    let column = column.and_then(|column| column.as_primitive_opt::<Int64Type>());
    let ids = column.iter().flat_map(|column| column.iter().flatten());
    Ok(ids.filter(|found| *found == id).count() as u64)
}
