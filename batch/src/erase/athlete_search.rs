//! Searching every store for an athlete, by reading all of it: nothing is believed of what should be there.

use std::sync::Arc;

use arrow::array::{Array, AsArray};
use arrow::datatypes::Int64Type;
use futures::TryStreamExt;
use jobs::{Board, Job};
use schemas::achievement::{ACHIEVEMENTS, BOARD_CHANGES, Waiting, names_athlete};
use schemas::key::KeyValue;
use schemas::source::Source;
use stores::board_cache::{BoardQuery, BoardWant, Cached};
use stores::dead_letters::erase::count_of;
use stores::erasures::{Kind, Person};
use stores::live::SlotId;

use super::athlete::{LINES, SOURCES};
use super::receipt::{APPS, LOG};
use super::search::{BATCH_ROWS, PAGE_ROWS, finding, parquet};
use super::{Eraser, Finding};
use crate::{Error, Result};

/// More entries than this never wait in the outbox of a slot.
const WAITING_MAX: usize = 1_000_000;
const MEMBER: &str = "athlete_id";

impl Eraser {
    /// Searches every place where an athlete can be. Each is among the answers, also where nothing is found.
    pub(super) async fn search_athlete(&self, id: i64) -> Result<Vec<Finding>> {
        let mut found = Vec::new();
        for rows in self.canon.rows_of(id).await? {
            let place = if rows.are_apps {
                APPS
            } else {
                "canonical rows"
            };
            found.push(finding(place, rows.table, rows.rows));
        }
        let is_wanted = |one: i64| one == id;
        for topic in SOURCES.map(Source::topic) {
            found.push(finding(LOG, topic, self.naming(topic, is_wanted).await?));
        }
        for topic in [BOARD_CHANGES, ACHIEVEMENTS] {
            found.push(finding(LOG, topic, self.naming(topic, is_wanted).await?));
        }
        for source in SOURCES {
            let partitions = self.batch.ports.log.partitions_now(source.topic()).await?;
            let name = source.name();
            let (mut states, mut cached) = (0, 0);
            for job in self.boards_of(source) {
                states += self.in_states(&job, partitions, id).await?;
                cached += self.in_cached(&job, partitions, id).await?;
            }
            found.push(finding("live state", name, states));
            found.push(finding("cached boards", name, cached));
            let waiting = self.in_outboxes(source, partitions, id).await?;
            found.push(finding("what is to be told", name, waiting));
            for job in self.boards_of(source) {
                let entries = self.in_board(&job, id).await?;
                found.push(finding("views", job.view(), entries));
            }
            for folder in ["snapshots", "results"] {
                let folder = format!("{folder}/{source}");
                let rows = self.in_files(&folder, id).await?;
                found.push(finding(
                    folder.split('/').next().unwrap_or(""),
                    &folder,
                    rows,
                ));
            }
            let is_named = |named: super::reports::Named<'_>| named.athlete() == Some(id);
            let named = self.in_reports(source, is_named).await?;
            found.push(finding("reports of runs", name, named));
            let is_named = |column: &str, one| column == MEMBER && one == id;
            let named = self.in_comparisons(source, is_named).await?;
            found.push(finding("comparisons", name, named));
        }
        let achieved = self.achievements.naming(id).await?;
        found.push(finding("achievements", "achievements", achieved));
        let kind = Kind::Athlete;
        for source in LINES {
            let letters = count_of(&*self.log, source, Person { kind, id }).await?;
            found.push(finding("dead letters", source.dead_letter_topic(), letters));
        }
        Ok(found)
    }

    /// States of the athlete, also those that say that there is nothing.
    async fn in_states(&self, job: &Arc<Job<Board>>, partitions: u32, id: i64) -> Result<u64> {
        let (live, member) = (&self.batch.ports.live, member(job, id)?);
        let mut found = 0;
        for partition in 0..partitions {
            let slot = slot(job, partition);
            let mut after = None;
            loop {
                let (view, all) = (job.view(), (0, u64::MAX >> 1));
                let page = live.scan_states(slot, view, all, after, PAGE_ROWS).await?;
                let members = page.states.members.iter().flatten();
                found += members.filter(|one| *one == member).count() as u64;
                after = page.next;
                if after.is_none() {
                    break;
                }
            }
        }
        Ok(found)
    }

    /// Rows of the athlete on boards that are kept beside live state, where there are any.
    async fn in_cached(&self, job: &Arc<Job<Board>>, partitions: u32, id: i64) -> Result<u64> {
        let Some(cache) = self.batch.ports.live.board_cache() else {
            return Ok(0);
        };
        let (member, mut found) = (member(job, id)?, 0);
        for partition in 0..partitions {
            let register = cache.register(slot(job, partition)).await?;
            let boards = register.boards.into_iter().chain(register.leftovers);
            let queries = boards.filter(|board| board.name.view == job.view());
            let queries: Vec<BoardQuery> = queries
                .map(|board| BoardQuery {
                    name: board.name,
                    partition,
                    score_bytes: 8 * job.score().0.len(),
                    want: BoardWant::Members(vec![member.clone()]),
                })
                .collect();
            if queries.is_empty() {
                continue;
            }
            for answer in cache.read_boards(job.source(), &queries).await? {
                if let Cached::Board(board) = answer.board {
                    found += board.rows.len() as u64;
                }
            }
        }
        Ok(found)
    }

    async fn in_outboxes(&self, source: Source, partitions: u32, id: i64) -> Result<u64> {
        let live = &self.batch.ports.live;
        let outboxes = live.outboxes(source, 0..partitions, WAITING_MAX).await?;
        let entries = outboxes.iter().flatten().flat_map(|outbox| &outbox.entries);
        let named = entries.filter(|entry| {
            let waiting = Waiting::decode(entry);
            waiting.is_ok_and(|one| names_athlete(one.message.get().as_bytes(), |one| one == id))
        });
        Ok(named.count() as u64)
    }

    /// Rows of the athlete in files of snapshots or results, whether anything names the file or not.
    async fn in_files(&self, folder: &str, id: i64) -> Result<u64> {
        let archive = &self.batch.ports.archive;
        let mut found = 0;
        for path in parquet(archive.list(folder).await?) {
            let mut batches = archive
                .columns(&path, None, BATCH_ROWS, Some(MEMBER))
                .await?;
            while let Some(batch) = batches.try_next().await? {
                let column = batch.column_by_name(MEMBER);
                let ids = column.and_then(|column| column.as_primitive_opt::<Int64Type>());
                let Some(ids) = ids.filter(|ids| ids.null_count() == 0) else {
                    let what = "it has no athletes";
                    return Err(Error::damaged(&path, what));
                };
                found += ids.values().iter().filter(|one| **one == id).count() as u64;
            }
        }
        Ok(found)
    }
}

fn slot(job: &Job<Board>, partition: u32) -> SlotId {
    SlotId {
        source: job.source(),
        partition,
    }
}

fn member(job: &Job<Board>, id: i64) -> Result<Vec<u8>> {
    let member = job.member().encode_values(&[KeyValue::Int(id)]);
    member.map_err(|error| Error::fault("encoding a member", error))
}
