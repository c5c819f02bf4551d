//! Searches every store for athletes. Reads all data, and trusts no index.

use std::collections::BTreeMap;
use std::sync::Arc;

use arrow::array::{Array, AsArray};
use arrow::datatypes::Int64Type;
use futures::TryStreamExt;
use jobs::{Board, Job};
use schemas::achievement::{
    ACHIEVEMENTS_TOPIC, BOARD_CHANGES_TOPIC, OutboxMessageRef, mentions_athlete,
};
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
        findings: &mut Findings,
    ) -> Result<()> {
        let kind = PersonKind::Athlete;
        let people = SearchedPeople::new(kind, ids);
        for id in people.ids() {
            for rows in self.entity_eraser.count_athlete_rows(id).await? {
                let place = if rows.is_view { APPS } else { "canonical rows" };
                findings.add_for(Person { kind, id }, place, rows.table, rows.rows);
            }
        }
        let topics = BOARD_SOURCES.map(Source::topic).into_iter();
        for topic in topics.chain([BOARD_CHANGES_TOPIC, ACHIEVEMENTS_TOPIC]) {
            let mut counts = people.clone();
            self.count_in_topic(topic, &mut counts).await?;
            findings.add(LOG, topic, &counts);
        }
        for source in BOARD_SOURCES {
            self.search_boards(source, &people, findings).await?;
        }
        for id in people.ids() {
            let achieved = self.achievements.count_naming(id).await?;
            findings.add_for(
                Person { kind, id },
                "achievements",
                "achievements",
                achieved,
            );
        }
        for source in ATHLETE_SOURCES {
            let mut counts = people.clone();
            count_mentions(&*self.log, source, &mut counts).await?;
            findings.add("dead letters", source.dead_letter_topic(), &counts);
        }
        Ok(())
    }

    /// Searches the data derived from the rows of a source.
    async fn search_boards(
        &self,
        source: Source,
        people: &SearchedPeople,
        findings: &mut Findings,
    ) -> Result<()> {
        let partitions = self
            .batch
            .ports
            .log
            .current_partition_count(source.topic())
            .await?;
        let name = source.name();
        let (mut live, mut cached) = (people.clone(), people.clone());
        for job in self.list_boards(source) {
            self.count_live_entries(&job, partitions, &mut live).await?;
            self.count_cached_rows(&job, partitions, &mut cached)
                .await?;
        }
        findings.add("live state", name, &live);
        findings.add("cached boards", name, &cached);
        let mut counts = people.clone();
        self.count_in_outboxes(source, partitions, &mut counts)
            .await?;
        findings.add("outboxes", name, &counts);
        for job in self.list_boards(source) {
            counts = people.clone();
            self.count_in_board(&job, &mut counts).await?;
            findings.add("views", job.view(), &counts);
        }
        for place in ["snapshots", "results"] {
            let folder = format!("{place}/{source}");
            counts = people.clone();
            self.count_in_files(&folder, &mut counts).await?;
            findings.add(place, &folder, &counts);
        }
        counts = people.clone();
        self.count_in_reports(source, &mut counts).await?;
        findings.add("reports of runs", name, &counts);
        counts = people.clone();
        self.count_in_comparisons(source, &mut counts).await?;
        findings.add("comparisons", name, &counts);
        Ok(())
    }

    /// Counts live entries of athletes, including those that mark an absent member.
    async fn count_live_entries(
        &self,
        job: &Arc<Job<Board>>,
        partitions: u32,
        counts: &mut SearchedPeople,
    ) -> Result<()> {
        let (live, by_encoding) = (&self.batch.ports.live, encode_members(job, counts)?);
        for partition in 0..partitions {
            let state_id = to_partition_id(job, partition);
            let mut after = None;
            loop {
                let (view, epochs) = (job.view(), (0, u64::MAX >> 1));
                let page = live
                    .scan_entries(state_id, view, epochs, after, PAGE_ROWS)
                    .await?;
                for member in page.entries.members.iter().flatten() {
                    if let Some(id) = by_encoding.get(member) {
                        counts.increment(*id);
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
        counts: &mut SearchedPeople,
    ) -> Result<()> {
        let Some(cache) = self.batch.ports.live.board_cache() else {
            return Ok(());
        };
        let by_encoding = encode_members(job, counts)?;
        let members: Vec<Vec<u8>> = by_encoding.keys().cloned().collect();
        for partition in 0..partitions {
            let register = cache.read_register(to_partition_id(job, partition)).await?;
            let boards = register.boards.into_iter().chain(register.stale_boards);
            let names = boards.map(|board| board.name);
            let names: Vec<BoardName> = names.filter(|name| name.view == job.view()).collect();
            for members in members.chunks(MEMBERS_AT_ONCE) {
                for names in names.chunks(MEMBERS_AT_ONCE / members.len()) {
                    let to_query = |name: &BoardName| BoardQuery {
                        name: name.clone(),
                        partition,
                        score_bytes: 8 * job.score().0.len(),
                        selection: BoardSelection::Members(members.to_vec()),
                    };
                    let queries: Vec<BoardQuery> = names.iter().map(to_query).collect();
                    for reply in cache.read_boards(job.source(), &queries).await? {
                        let CacheLookup::Board(board) = reply.board else {
                            continue;
                        };
                        let ids = board
                            .rows
                            .iter()
                            .filter_map(|row| by_encoding.get(&row.member));
                        ids.for_each(|id| counts.increment(*id));
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
        counts: &mut SearchedPeople,
    ) -> Result<()> {
        let live = &self.batch.ports.live;
        let outboxes = live
            .outboxes(source, 0..partitions, OUTBOX_ENTRIES_MAX)
            .await?;
        for entry in outboxes.iter().flatten().flat_map(|outbox| &outbox.entries) {
            if let Ok(waiting) = OutboxMessageRef::decode(entry) {
                let message = waiting.message.get().as_bytes();
                counts.count_mentions(|is_searched| mentions_athlete(message, is_searched));
            }
        }
        Ok(())
    }

    /// Counts rows of athletes in files of snapshots or results, including unreferenced files.
    async fn count_in_files(&self, folder: &str, counts: &mut SearchedPeople) -> Result<()> {
        let archive = &self.batch.ports.archive;
        for path in parquet_paths(archive.list(folder).await?) {
            self.search_file(&path, counts, async |counts| {
                let mut batches = archive
                    .read_columns(&path, None, BATCH_ROWS, Some(ATHLETE_COLUMN))
                    .await?;
                while let Some(batch) = batches.try_next().await? {
                    let column = batch.column_by_name(ATHLETE_COLUMN);
                    let ids = column.and_then(|column| column.as_primitive_opt::<Int64Type>());
                    let Some(ids) = ids.filter(|ids| ids.null_count() == 0) else {
                        let damage = "it has no column of athlete ids";
                        return Err(Error::damaged(&path, damage));
                    };
                    for id in ids.values() {
                        counts.increment(*id);
                    }
                }
                Ok(())
            })
            .await?;
        }
        Ok(())
    }
}

fn to_partition_id(job: &Job<Board>, partition: u32) -> PartitionId {
    PartitionId {
        source: job.source(),
        partition,
    }
}

/// Returns the searched athletes by their encoding as members of a board.
fn encode_members(job: &Job<Board>, people: &SearchedPeople) -> Result<BTreeMap<Vec<u8>, i64>> {
    let encoded = people.ids().map(|id| {
        let member = job.member().encode_values(&[KeyValue::Int(id)]);
        Ok((
            member.map_err(|error| Error::fault("encoding a member", error))?,
            id,
        ))
    });
    encoded.collect()
}
