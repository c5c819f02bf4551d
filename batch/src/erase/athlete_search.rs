//! Searches every store for athletes. Reads all data, and trusts no index.

use std::collections::BTreeMap;
use std::sync::Arc;

use arrow::array::{Array, AsArray};
use arrow::datatypes::Int64Type;
use futures::TryStreamExt;
use jobs::{Board, Job};
use schemas::achievement::{ACHIEVEMENTS, BOARD_CHANGES, OutboxMessageRef, names_athlete};
use schemas::key::KeyValue;
use schemas::source::Source;
use stores::board_cache::{BoardName, BoardQuery, BoardSelection, CacheLookup};
use stores::dead_letters::erase::count_mentions;
use stores::erasures::{Person, PersonKind, SearchedPeople};
use stores::live::PartitionId;

use super::eraser::Eraser;
use super::findings::Findings;
use super::receipt::{APPS, LOG};
use super::search::{BATCH_ROWS, PAGE_ROWS, parquet_paths};
use super::sources::{ATHLETE_COLUMN, ATHLETE_SOURCES, BOARD_SOURCES};
use crate::{Error, Result};

/// An outbox of a partition state never has more entries.
const OUTBOX_ENTRIES_MAX: usize = 1_000_000;
/// Members that are queried at once, of all boards together.
const MEMBERS_AT_ONCE: usize = 1_000;

impl Eraser {
    /// Searches every place where athletes can occur, and adds each place to the findings. Reads a
    /// place once for all athletes where possible.
    pub(super) async fn search_athletes(
        &self,
        ids: impl Iterator<Item = i64>,
        all: &mut Findings,
    ) -> Result<()> {
        let kind = PersonKind::Athlete;
        let none = SearchedPeople::new(kind, ids);
        for id in none.ids() {
            for rows in self.entity_eraser.count_athlete_rows(id).await? {
                let place = if rows.is_view { APPS } else { "canonical rows" };
                all.add_for(Person { kind, id }, place, rows.table, rows.rows);
            }
        }
        let topics = BOARD_SOURCES.map(Source::topic).into_iter();
        for topic in topics.chain([BOARD_CHANGES, ACHIEVEMENTS]) {
            let mut found = none.clone();
            self.count_in_topic(topic, &mut found).await?;
            all.add(LOG, topic, &found);
        }
        for source in BOARD_SOURCES {
            self.search_boards(source, &none, all).await?;
        }
        for id in none.ids() {
            let achieved = self.achievements.count_naming(id).await?;
            all.add_for(
                Person { kind, id },
                "achievements",
                "achievements",
                achieved,
            );
        }
        for source in ATHLETE_SOURCES {
            let mut found = none.clone();
            count_mentions(&*self.log, source, &mut found).await?;
            all.add("dead letters", source.dead_letter_topic(), &found);
        }
        Ok(())
    }

    /// Searches the data derived from the rows of a source.
    async fn search_boards(
        &self,
        source: Source,
        none: &SearchedPeople,
        all: &mut Findings,
    ) -> Result<()> {
        let partitions = self.batch.ports.log.partitions_now(source.topic()).await?;
        let name = source.name();
        let (mut states, mut cached) = (none.clone(), none.clone());
        for job in self.boards(source) {
            self.count_live_entries(&job, partitions, &mut states)
                .await?;
            self.count_cached_rows(&job, partitions, &mut cached)
                .await?;
        }
        all.add("live state", name, &states);
        all.add("cached boards", name, &cached);
        let mut found = none.clone();
        self.count_in_outboxes(source, partitions, &mut found)
            .await?;
        all.add("outboxes", name, &found);
        for job in self.boards(source) {
            found = none.clone();
            self.count_in_board(&job, &mut found).await?;
            all.add("views", job.view(), &found);
        }
        for place in ["snapshots", "results"] {
            let folder = format!("{place}/{source}");
            found = none.clone();
            self.count_in_files(&folder, &mut found).await?;
            all.add(place, &folder, &found);
        }
        found = none.clone();
        self.count_in_reports(source, &mut found).await?;
        all.add("reports of runs", name, &found);
        found = none.clone();
        self.count_in_comparisons(source, &mut found).await?;
        all.add("comparisons", name, &found);
        Ok(())
    }

    /// Counts live entries of athletes, including those that mark an absent member.
    async fn count_live_entries(
        &self,
        job: &Arc<Job<Board>>,
        partitions: u32,
        found: &mut SearchedPeople,
    ) -> Result<()> {
        let (live, by_encoding) = (&self.batch.ports.live, encode_members(job, found)?);
        for partition in 0..partitions {
            let state_id = partition_id(job, partition);
            let mut after = None;
            loop {
                let (view, all) = (job.view(), (0, u64::MAX >> 1));
                let page = live
                    .scan_states(state_id, view, all, after, PAGE_ROWS)
                    .await?;
                for member in page.states.members.iter().flatten() {
                    if let Some(id) = by_encoding.get(member) {
                        found.increment(*id);
                    }
                }
                after = page.next;
                if after.is_none() {
                    break;
                }
            }
        }
        Ok(())
    }

    /// Counts rows of athletes on cached boards.
    async fn count_cached_rows(
        &self,
        job: &Arc<Job<Board>>,
        partitions: u32,
        found: &mut SearchedPeople,
    ) -> Result<()> {
        let Some(cache) = self.batch.ports.live.board_cache() else {
            return Ok(());
        };
        let by_encoding = encode_members(job, found)?;
        let members: Vec<Vec<u8>> = by_encoding.keys().cloned().collect();
        for partition in 0..partitions {
            let register = cache.read_register(partition_id(job, partition)).await?;
            let boards = register.boards.into_iter().chain(register.stale_boards);
            let names = boards.map(|board| board.name);
            let names: Vec<BoardName> = names.filter(|name| name.view == job.view()).collect();
            for members in members.chunks(MEMBERS_AT_ONCE) {
                for names in names.chunks(MEMBERS_AT_ONCE / members.len()) {
                    let of = |name: &BoardName| BoardQuery {
                        name: name.clone(),
                        partition,
                        score_bytes: 8 * job.score().0.len(),
                        selection: BoardSelection::Members(members.to_vec()),
                    };
                    let queries: Vec<BoardQuery> = names.iter().map(of).collect();
                    for answer in cache.read_boards(job.source(), &queries).await? {
                        let CacheLookup::Board(board) = answer.board else {
                            continue;
                        };
                        let found_ids = board
                            .rows
                            .iter()
                            .filter_map(|row| by_encoding.get(&row.member));
                        found_ids.for_each(|id| found.increment(*id));
                    }
                }
            }
        }
        Ok(())
    }

    async fn count_in_outboxes(
        &self,
        source: Source,
        partitions: u32,
        found: &mut SearchedPeople,
    ) -> Result<()> {
        let live = &self.batch.ports.live;
        let outboxes = live
            .outboxes(source, 0..partitions, OUTBOX_ENTRIES_MAX)
            .await?;
        for entry in outboxes.iter().flatten().flat_map(|outbox| &outbox.entries) {
            if let Ok(waiting) = OutboxMessageRef::decode(entry) {
                let message = waiting.message.get().as_bytes();
                found.count_mentions(|has| names_athlete(message, has));
            }
        }
        Ok(())
    }

    /// Counts rows of athletes in files of snapshots or results, including unreferenced files.
    async fn count_in_files(&self, folder: &str, found: &mut SearchedPeople) -> Result<()> {
        let archive = &self.batch.ports.archive;
        for path in parquet_paths(archive.list(folder).await?) {
            self.search_file(&path, found, async |found| {
                let mut batches = archive
                    .columns(&path, None, BATCH_ROWS, Some(ATHLETE_COLUMN))
                    .await?;
                while let Some(batch) = batches.try_next().await? {
                    let column = batch.column_by_name(ATHLETE_COLUMN);
                    let ids = column.and_then(|column| column.as_primitive_opt::<Int64Type>());
                    let Some(ids) = ids.filter(|ids| ids.null_count() == 0) else {
                        let what = "it has no column of athlete ids";
                        return Err(Error::damaged(&path, what));
                    };
                    for id in ids.values() {
                        found.increment(*id);
                    }
                }
                Ok(())
            })
            .await?;
        }
        Ok(())
    }
}

fn partition_id(job: &Job<Board>, partition: u32) -> PartitionId {
    PartitionId {
        source: job.source(),
        partition,
    }
}

/// Returns the searched athletes by their encoding as members of a board.
fn encode_members(job: &Job<Board>, sought: &SearchedPeople) -> Result<BTreeMap<Vec<u8>, i64>> {
    let encoded = sought.ids().map(|id| {
        let member = job.member().encode_values(&[KeyValue::Int(id)]);
        Ok((
            member.map_err(|error| Error::fault("encoding a member", error))?,
            id,
        ))
    });
    encoded.collect()
}
