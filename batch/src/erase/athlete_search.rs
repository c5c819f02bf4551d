//! Searching every store for athletes, by reading all of it: nothing is believed of what should be there.

use std::collections::BTreeMap;
use std::sync::Arc;

use arrow::array::{Array, AsArray};
use arrow::datatypes::Int64Type;
use futures::TryStreamExt;
use jobs::{Board, Job};
use schemas::achievement::{ACHIEVEMENTS, BOARD_CHANGES, Waiting, names_athlete};
use schemas::key::KeyValue;
use schemas::source::Source;
use stores::board_cache::{BoardName, BoardQuery, BoardWant, Cached};
use stores::dead_letters::erase::count_of;
use stores::erasures::{Kind, Person, Sought};
use stores::live::SlotId;

use super::Eraser;
use super::athlete::{LINES, MEMBER, SOURCES};
use super::findings::Findings;
use super::receipt::{APPS, LOG};
use super::search::{BATCH_ROWS, PAGE_ROWS, parquet};
use crate::{Error, Result};

/// More entries than this never wait in the outbox of a slot.
const WAITING_MAX: usize = 1_000_000;
/// Members that are asked for at once, of all boards together.
const ASKED: usize = 1_000;

impl Eraser {
    /// Searches every place where athletes can be, once for all of them where that is read as a whole. Each is among the
    /// answers, also where nothing is found.
    pub(super) async fn search_athletes(
        &self,
        ids: impl Iterator<Item = i64>,
        all: &mut Findings,
    ) -> Result<()> {
        let kind = Kind::Athlete;
        let none = Sought::of(kind, ids);
        for id in none.ids() {
            for rows in self.canon.rows_of(id).await? {
                let place = if rows.are_apps {
                    APPS
                } else {
                    "canonical rows"
                };
                all.add_of(Person { kind, id }, place, rows.table, rows.rows);
            }
        }
        let topics = SOURCES.map(Source::topic).into_iter();
        for topic in topics.chain([BOARD_CHANGES, ACHIEVEMENTS]) {
            let mut found = none.clone();
            self.naming(topic, &mut found).await?;
            all.add(LOG, topic, &found);
        }
        for source in SOURCES {
            self.search_boards(source, &none, all).await?;
        }
        for id in none.ids() {
            let achieved = self.achievements.naming(id).await?;
            all.add_of(
                Person { kind, id },
                "achievements",
                "achievements",
                achieved,
            );
        }
        for source in LINES {
            let mut found = none.clone();
            count_of(&*self.log, source, &mut found).await?;
            all.add("dead letters", source.dead_letter_topic(), &found);
        }
        Ok(())
    }

    /// Searches what is made of the rows of a source.
    async fn search_boards(&self, source: Source, none: &Sought, all: &mut Findings) -> Result<()> {
        let partitions = self.batch.ports.log.partitions_now(source.topic()).await?;
        let name = source.name();
        let (mut states, mut cached) = (none.clone(), none.clone());
        for job in self.boards_of(source) {
            self.in_states(&job, partitions, &mut states).await?;
            self.in_cached(&job, partitions, &mut cached).await?;
        }
        all.add("live state", name, &states);
        all.add("cached boards", name, &cached);
        let mut found = none.clone();
        self.in_outboxes(source, partitions, &mut found).await?;
        all.add("what is to be told", name, &found);
        for job in self.boards_of(source) {
            found = none.clone();
            self.in_board(&job, &mut found).await?;
            all.add("views", job.view(), &found);
        }
        for place in ["snapshots", "results"] {
            let folder = format!("{place}/{source}");
            found = none.clone();
            self.in_files(&folder, &mut found).await?;
            all.add(place, &folder, &found);
        }
        found = none.clone();
        self.in_reports(source, &mut found).await?;
        all.add("reports of runs", name, &found);
        found = none.clone();
        self.in_comparisons(source, &mut found).await?;
        all.add("comparisons", name, &found);
        Ok(())
    }

    /// States of athletes, also those that say that there is nothing.
    async fn in_states(
        &self,
        job: &Arc<Job<Board>>,
        partitions: u32,
        found: &mut Sought,
    ) -> Result<()> {
        let (live, wanted) = (&self.batch.ports.live, members(job, found)?);
        for partition in 0..partitions {
            let slot = slot(job, partition);
            let mut after = None;
            loop {
                let (view, all) = (job.view(), (0, u64::MAX >> 1));
                let page = live.scan_states(slot, view, all, after, PAGE_ROWS).await?;
                for member in page.states.members.iter().flatten() {
                    if let Some(id) = wanted.get(member) {
                        found.note(*id);
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

    /// Rows of athletes on boards that are kept beside live state, where there are any.
    async fn in_cached(
        &self,
        job: &Arc<Job<Board>>,
        partitions: u32,
        found: &mut Sought,
    ) -> Result<()> {
        let Some(cache) = self.batch.ports.live.board_cache() else {
            return Ok(());
        };
        let wanted = members(job, found)?;
        let members: Vec<Vec<u8>> = wanted.keys().cloned().collect();
        for partition in 0..partitions {
            let register = cache.register(slot(job, partition)).await?;
            let boards = register.boards.into_iter().chain(register.leftovers);
            let names = boards.map(|board| board.name);
            let names: Vec<BoardName> = names.filter(|name| name.view == job.view()).collect();
            for members in members.chunks(ASKED) {
                for names in names.chunks(ASKED / members.len()) {
                    let of = |name: &BoardName| BoardQuery {
                        name: name.clone(),
                        partition,
                        score_bytes: 8 * job.score().0.len(),
                        want: BoardWant::Members(members.to_vec()),
                    };
                    let queries: Vec<BoardQuery> = names.iter().map(of).collect();
                    for answer in cache.read_boards(job.source(), &queries).await? {
                        let Cached::Board(board) = answer.board else {
                            continue;
                        };
                        let found_ids = board.rows.iter().filter_map(|row| wanted.get(&row.member));
                        found_ids.for_each(|id| found.note(*id));
                    }
                }
            }
        }
        Ok(())
    }

    async fn in_outboxes(&self, source: Source, partitions: u32, found: &mut Sought) -> Result<()> {
        let live = &self.batch.ports.live;
        let outboxes = live.outboxes(source, 0..partitions, WAITING_MAX).await?;
        for entry in outboxes.iter().flatten().flat_map(|outbox| &outbox.entries) {
            if let Ok(waiting) = Waiting::decode(entry) {
                let message = waiting.message.get().as_bytes();
                found.once(|has| names_athlete(message, has));
            }
        }
        Ok(())
    }

    /// Rows of athletes in files of snapshots or results, whether anything names the file or not.
    async fn in_files(&self, folder: &str, found: &mut Sought) -> Result<()> {
        let archive = &self.batch.ports.archive;
        for path in parquet(archive.list(folder).await?) {
            self.in_file(&path, found, async |found| {
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
                    for id in ids.values() {
                        found.note(*id);
                    }
                }
                Ok(())
            })
            .await?;
        }
        Ok(())
    }
}

fn slot(job: &Job<Board>, partition: u32) -> SlotId {
    SlotId {
        source: job.source(),
        partition,
    }
}

/// Those who are sought, as the members of a board's live states.
fn members(job: &Job<Board>, sought: &Sought) -> Result<BTreeMap<Vec<u8>, i64>> {
    let encoded = sought.ids().map(|id| {
        let member = job.member().encode_values(&[KeyValue::Int(id)]);
        Ok((
            member.map_err(|error| Error::fault("encoding a member", error))?,
            id,
        ))
    });
    encoded.collect()
}
