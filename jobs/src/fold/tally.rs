//! Folding tallies: what only adds up is added up at once, and by nothing that is planned.
//!
//! A query over a micro-batch of some thousand events costs an engine more than the adding: it makes columns for each
//! view, hashes them value by value, and what comes out has yet to be encoded. So where a view's query does nothing but
//! add up, which is read from its plan, its keys are put together from columns that were encoded once for all views, and
//! the counts are added up by key. A view over such a view is added up from the events that stand for the rows of that
//! one. Other queries run as they are.

use std::collections::HashMap;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, BinaryArray, BinaryBuilder, Int64Array, RecordBatch};
use arrow::datatypes::{
    DataType, Int64Type, TimeUnit, TimestampMicrosecondType, TimestampMillisecondType,
};
use foldhash::fast::RandomState;
use schemas::key::{KeyColumn, KeyKind, KeyShape};
use schemas::time::Width;

use super::{Fold, Folded, reads, wrong};
use crate::job::Job;
use crate::sums::Take;
use crate::tally::Tally;
use crate::{Engine, Result};

/// What one job makes of a micro-batch: its rows, encoded.
#[derive(Debug, Clone)]
pub struct TallyRows {
    /// The job.
    pub job: Arc<Job>,
    /// The encoded group key of each row.
    pub groups: BinaryArray,
    /// Its encoded row key.
    pub rows: BinaryArray,
    /// Its count.
    pub counts: Int64Array,
}

/// How some tallies are folded.
#[derive(Debug)]
pub struct TallyFold {
    fold: Fold<Tally>,
    steps: Vec<Step>,
}

/// How one job is folded.
#[derive(Debug)]
enum Step {
    /// By its query.
    Query,
    /// By adding up.
    Adds(Adds),
}

impl Step {
    const fn is_query(&self) -> bool {
        matches!(self, Self::Query)
    }
}

/// A job that adds up.
#[derive(Debug)]
struct Adds {
    base: Base,
    /// The job whose rows it adds up, if that adds up too: by its place.
    under: Option<usize>,
    /// By column of its keys, where they come from in the base.
    takes: Vec<Take>,
    /// The columns of its keys, those of the group first.
    keys: Vec<KeyColumn>,
    groups: usize,
    /// Which column of the base is summed, where it adds up all of it.
    summed: usize,
}

/// What keys are made of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Base {
    Events,
    /// The rows of the job at this place, which is folded by its query.
    Rows(usize),
}

/// A column as it stands in keys: what it is made of, and whether it may be null there.
type Piece = (Base, Take, bool);

/// What a job has added up.
#[derive(Debug)]
struct Added {
    /// For each key a row of the base that has it.
    firsts: Vec<usize>,
    counts: Int64Array,
    groups: BinaryArray,
    rows: BinaryArray,
}

impl TallyFold {
    /// Prepares the jobs of one source, which come in the order of [`crate::Catalog::jobs`].
    ///
    /// # Errors
    /// Those of [`Fold::new`].
    pub async fn new(engine: &Engine, jobs: &[Arc<Job>]) -> Result<Self> {
        let reads = reads(jobs)?;
        let steps = steps(jobs, &reads, &vec![false; jobs.len()]);
        // What a query reads has to be rows, so that is made by its query too. Readers come later.
        let mut queries: Vec<bool> = steps.iter().map(Step::is_query).collect();
        for (place, read) in reads.iter().enumerate().rev() {
            let is_query = queries.get(place).copied().unwrap_or(true);
            if let (true, Some(read)) = (is_query, *read)
                && let Some(read) = queries.get_mut(read)
            {
                *read = true;
            }
        }
        let steps = self::steps(jobs, &reads, &queries);
        let is_query = |place: usize| steps.get(place).is_some_and(Step::is_query);
        let fold = Fold::of_those(engine, jobs, &reads, is_query).await?;
        Ok(Self { fold, steps })
    }

    /// The views that the fold keeps, as `name@version`.
    #[must_use]
    pub fn views(&self) -> Vec<&str> {
        self.fold.views()
    }

    /// What every job makes of the events, in the jobs' order. A key stands in it once, unless a query gives it several
    /// times.
    ///
    /// # Errors
    /// [`crate::Error::Query`] or [`crate::Error::Rows`] if a query fails or rows don't fit; then nothing of the micro-batch counts.
    pub async fn run(&self, events: &RecordBatch) -> Result<Vec<TallyRows>> {
        let folded = self.fold.run_those(events).await?;
        let mut pieces = Pieces {
            events,
            folded: &folded,
            encoded: HashMap::new(),
        };
        let mut added: Vec<Option<Added>> = Vec::with_capacity(self.steps.len());
        let mut rows = Vec::with_capacity(self.steps.len());
        for ((step, of), folded) in self.steps.iter().zip(&self.fold.steps).zip(&folded) {
            let job = Arc::clone(&of.job);
            let (groups, keys, counts) = match (step, folded) {
                (Step::Query, Some(folded)) => {
                    added.push(None);
                    folded.encoded()?
                }
                (Step::Query, None) => return Err(wrong(&job, "it was not run")),
                (Step::Adds(adds), _) => {
                    let under = adds.under.and_then(|place| added.get(place)?.as_ref());
                    let of_job = pieces.add(&job, adds, under)?;
                    // Arrays are shared, so this copies none.
                    let Added {
                        groups,
                        rows,
                        counts,
                        ..
                    } = &of_job;
                    let keys = (groups.clone(), rows.clone(), counts.clone());
                    added.push(Some(of_job));
                    keys
                }
            };
            rows.push(TallyRows {
                job,
                groups,
                rows: keys,
                counts,
            });
        }
        Ok(rows)
    }
}

/// How jobs are folded: those at the places that `queries` names by their queries.
fn steps(jobs: &[Arc<Job>], reads: &[Option<usize>], queries: &[bool]) -> Vec<Step> {
    let mut steps: Vec<Step> = Vec::with_capacity(jobs.len());
    for ((job, reads), is_query) in jobs.iter().zip(reads).zip(queries) {
        let adds = (!is_query).then(|| adds(job, *reads, &steps));
        steps.push(adds.flatten().map_or(Step::Query, Step::Adds));
    }
    steps
}

/// How a job that only adds up is folded, where the job that it reads, if any, is folded as `steps` say.
fn adds(job: &Job, reads: Option<usize>, steps: &[Step]) -> Option<Adds> {
    let adding = job.adding()?;
    let under = reads.and_then(|place| match steps.get(place)? {
        Step::Adds(under) => Some((place, under)),
        Step::Query => None,
    });
    let (base, takes) = match (&under, reads) {
        (None, None) => (Base::Events, adding.takes.clone()),
        (None, Some(place)) => (Base::Rows(place), adding.takes.clone()),
        (Some((_, under)), _) => {
            // Its counts stand after its keys; nothing else of it can be added up.
            if adding.summed != under.takes.len() {
                return None;
            }
            let through = |take: &Take| {
                let below = under.takes.get(take.column)?;
                Some(Take {
                    column: below.column,
                    // Buckets lie within coarser ones.
                    width: take.width.max(below.width),
                })
            };
            let takes = adding.takes.iter().map(through).collect::<Option<_>>()?;
            (under.base, takes)
        }
    };
    Some(Adds {
        base,
        under: under.map(|(place, _)| place),
        takes,
        keys: job.group().0.iter().chain(&job.row().0).cloned().collect(),
        groups: job.group().0.len(),
        summed: adding.summed,
    })
}

/// The columns of a micro-batch as they stand in keys: each is encoded once for all jobs.
struct Pieces<'a> {
    events: &'a RecordBatch,
    folded: &'a [Option<Folded<Tally>>],
    encoded: HashMap<Piece, BinaryArray>,
}

impl<'a> Pieces<'a> {
    fn base(&self, base: Base) -> Option<&'a RecordBatch> {
        match base {
            Base::Events => Some(self.events),
            Base::Rows(place) => self.folded.get(place)?.as_ref().map(|folded| &folded.rows),
        }
    }

    /// Adds up what a job counts: all rows of its base, or those that stand for the rows of the job under it.
    fn add(&mut self, job: &Job, adds: &Adds, under: Option<&Added>) -> Result<Added> {
        let base = self
            .base(adds.base)
            .ok_or_else(|| wrong(job, "what it reads was not made"))?;
        let mut columns = Vec::with_capacity(adds.keys.len());
        for (key, take) in adds.keys.iter().zip(&adds.takes) {
            let piece = (adds.base, *take, key.nullable);
            let encoded = match self.encoded.get(&piece) {
                Some(encoded) => encoded.clone(),
                None => {
                    let encoded = encode(job, base, key, *take)?;
                    self.encoded.insert(piece, encoded.clone());
                    encoded
                }
            };
            columns.push(encoded);
        }
        match under {
            Some(under) => {
                let rows = under
                    .firsts
                    .iter()
                    .copied()
                    .zip(under.counts.values().iter().copied());
                Ok(sum(&columns, adds.groups, rows))
            }
            None => {
                let summed = base.column(adds.summed);
                let summed = summed
                    .as_primitive_opt::<Int64Type>()
                    .filter(|summed| summed.null_count() == 0)
                    .ok_or_else(|| wrong(job, "what it adds up is no column of numbers"))?;
                let rows = summed.values().iter().copied().enumerate();
                Ok(sum(&columns, adds.groups, rows))
            }
        }
    }
}

/// A column as it stands in keys.
fn encode(job: &Job, base: &RecordBatch, key: &KeyColumn, take: Take) -> Result<BinaryArray> {
    let column = base
        .columns()
        .get(take.column)
        .ok_or_else(|| wrong(job, "what it reads lacks a column"))?;
    let column = match take.width {
        None => Arc::clone(column),
        Some(width) => buckets(column, width)
            .ok_or_else(|| wrong(job, "what it makes buckets of is no instant"))?,
    };
    KeyShape(vec![key.clone()])
        .encode(&[column])
        .map_err(|error| wrong(job, error))
}

/// The starts of the buckets that hold some instants.
fn buckets(instants: &ArrayRef, width: Width) -> Option<ArrayRef> {
    let floor = |seconds: i64| width.floor(seconds).saturating_mul(1_000);
    let starts = match instants.data_type() {
        DataType::Timestamp(TimeUnit::Microsecond, _) => instants
            .as_primitive::<TimestampMicrosecondType>()
            .unary::<_, TimestampMillisecondType>(|at| floor(at.div_euclid(1_000_000))),
        DataType::Timestamp(TimeUnit::Millisecond, _) => instants
            .as_primitive::<TimestampMillisecondType>()
            .unary::<_, TimestampMillisecondType>(|at| floor(at.div_euclid(1_000))),
        _ => return None,
    };
    Some(Arc::new(starts.with_data_type(KeyKind::Time.data_type())))
}

/// Adds up by key: `rows` are rows of the columns, each with what it counts.
fn sum(
    columns: &[BinaryArray],
    groups: usize,
    rows: impl ExactSizeIterator<Item = (usize, i64)> + Clone,
) -> Added {
    let length = rows.len();
    let (mut bytes, mut ends) = (Vec::with_capacity(length * 48), Vec::with_capacity(length));
    for (row, _) in rows.clone() {
        let mut group_end = bytes.len();
        for (place, column) in columns.iter().enumerate() {
            bytes.extend_from_slice(column.value(row));
            if place + 1 == groups {
                group_end = bytes.len();
            }
        }
        ends.push((group_end, bytes.len()));
    }
    let mut places: HashMap<&[u8], usize, RandomState> =
        HashMap::with_capacity_and_hasher(length, RandomState::default());
    let (mut firsts, mut counts) = (
        Vec::with_capacity(length),
        Vec::<i64>::with_capacity(length),
    );
    let (mut group_keys, mut row_keys) = (
        BinaryBuilder::with_capacity(length, length * 16),
        BinaryBuilder::with_capacity(length, length * 40),
    );
    let mut from = 0;
    for ((row, count), (group_end, end)) in rows.zip(ends) {
        let part = |range: std::ops::Range<usize>| bytes.get(range).unwrap_or_default();
        let next = counts.len();
        let place = *places.entry(part(from..end)).or_insert(next);
        match counts.get_mut(place) {
            Some(sum) => {
                // As sums of the query engine do.
                *sum = sum.wrapping_add(count);
            }
            None => {
                firsts.push(row);
                counts.push(count);
                group_keys.append_value(part(from..group_end));
                row_keys.append_value(part(group_end..end));
            }
        }
        from = end;
    }
    Added {
        firsts,
        counts: counts.into(),
        groups: group_keys.finish(),
        rows: row_keys.finish(),
    }
}

#[cfg(test)]
#[path = "tally_tests.rs"]
mod tests;
