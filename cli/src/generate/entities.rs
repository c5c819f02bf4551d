//! Generates rows of entities: new rows, and newer and older versions of earlier rows.
//!
//! It decides which rows are repeated and in which version, independent of the source.

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use serde::Serialize;

use super::draw::happens;
use super::fault::Fault;
use super::request::Request;
use super::rows::{Mix, Row, Rows};

/// Rows that may be repeated; of more rows, a uniform sample is kept.
const REPEATABLE_ROWS_MAX: usize = 65_536;
/// Older versions that may be emitted late.
const OUTDATED_VERSIONS_MAX: usize = 4_096;
/// Seeds with distinct ids. Ids stay below the limit of exact JSON numbers.
const SERIES: u64 = 900_000;
const IDS_IN_SERIES: i64 = 10_000_000_000;

/// Position of a new row.
#[derive(Debug, Clone, Copy)]
pub(super) struct RowPosition {
    /// Number of the new row, from 1 on.
    pub(super) number: i64,
    /// Number of all rows before it.
    pub(super) row: u64,
    /// Time of the row, if it does not follow from its number.
    pub(super) at_ms: Option<i64>,
}

/// Generator of the rows of one source of entities.
pub(super) trait RowGenerator {
    /// Fields of a row without the version.
    type Row: Serialize + Clone;
    /// Possible faults of a row.
    const FAULTS: &'static [Fault];
    /// A new row.
    fn generate(&mut self, position: RowPosition, rng: &mut StdRng) -> Self::Row;
    /// Changes a mutable field.
    fn edit(&self, row: &mut Self::Row, rng: &mut StdRng);
}

/// A row with its version. A row that was never edited has none.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct Version<R> {
    #[serde(flatten)]
    row: R,
    #[serde(skip_serializing_if = "Option::is_none")]
    version: Option<i64>,
}

impl<R> Version<R> {
    const fn first(row: R) -> Self {
        Self { row, version: None }
    }

    /// Changes the row, and returns the former version.
    fn edit<M: RowGenerator<Row = R>>(&mut self, source: &M, rng: &mut StdRng) -> Self
    where
        R: Clone,
    {
        let older = self.clone();
        source.edit(&mut self.row, rng);
        self.version = Some(self.version.unwrap_or_default() + 1);
        older
    }
}

/// Offset of ids that depend on the seed, so that inputs of different seeds do not edit each other's rows.
pub(super) fn id_offset(seed: u64) -> i64 {
    (seed % SERIES).cast_signed() * IDS_IN_SERIES
}

/// The rows of a source of entities.
pub(super) struct Entities<M: RowGenerator> {
    source: M,
    mix: Mix,
    rng: StdRng,
    rows: u64,
    new_rows: u64,
    at_ms: Option<i64>,
    /// A new row that was emitted malformed and must still be emitted correctly.
    held: Option<M::Row>,
    known: Vec<Version<M::Row>>,
    /// Superseded versions.
    outdated: Vec<Version<M::Row>>,
}

impl<M: RowGenerator> Entities<M> {
    pub(super) fn new(source: M, request: &Request) -> Self {
        Self {
            source,
            mix: request.mix,
            rng: StdRng::seed_from_u64(request.seed),
            rows: 0,
            new_rows: 0,
            at_ms: None,
            held: None,
            known: Vec::new(),
            outdated: Vec::new(),
        }
    }

    /// Sets the fractions of unusual rows.
    pub(super) fn set_mix(&mut self, mix: Mix) {
        self.mix = mix;
    }

    /// Sets the time of the next new row.
    pub(super) fn set_time(&mut self, at_ms: i64) {
        self.at_ms = Some(at_ms);
    }

    fn fresh(&mut self) -> M::Row {
        if let Some(row) = self.held.take() {
            return row;
        }
        self.new_rows += 1;
        let position = RowPosition {
            number: self.new_rows.cast_signed(),
            row: self.rows,
            at_ms: self.at_ms,
        };
        self.source.generate(position, &mut self.rng)
    }

    fn malformed(&mut self) -> Row<Version<M::Row>> {
        let row = self.fresh();
        self.held = Some(row.clone());
        let fault = self.rng.random_range(0..M::FAULTS.len().max(1));
        Row {
            fault: M::FAULTS.get(fault).copied(),
            ..Row::new(Version::first(row))
        }
    }

    /// Repeats an earlier row, unchanged or edited.
    fn again(&mut self) -> Option<Row<Version<M::Row>>> {
        if self.known.is_empty() {
            return None;
        }
        let position = self.rng.random_range(0..self.known.len());
        let edited: bool = self.rng.random();
        let known = self.known.get_mut(position)?;
        let older = edited.then(|| known.edit(&self.source, &mut self.rng));
        let record = known.clone();
        if let Some(older) = older {
            self.outdate(older);
        }
        Some(Row {
            repeated: true,
            edited,
            ..Row::new(record)
        })
    }

    /// Emits a superseded version.
    fn late(&mut self) -> Option<Row<Version<M::Row>>> {
        if self.outdated.is_empty() {
            return None;
        }
        let position = self.rng.random_range(0..self.outdated.len());
        Some(Row {
            late: true,
            ..Row::new(self.outdated.get(position)?.clone())
        })
    }

    fn first(&mut self) -> Row<Version<M::Row>> {
        let mut record = Version::first(self.fresh());
        // Some rows were edited before their first emission, so that an older version may be late.
        if happens(&mut self.rng, self.mix.late.min(0.5)) {
            let older = record.edit(&self.source, &mut self.rng);
            self.outdate(older);
        }
        self.know(&record);
        Row::new(record)
    }

    /// Remembers a new row for repetition.
    fn know(&mut self, record: &Version<M::Row>) {
        if self.mix.duplicates == 0.0 {
            return;
        }
        if self.known.len() < REPEATABLE_ROWS_MAX {
            self.known.push(record.clone());
            return;
        }
        // Reservoir sampling (algorithm R): each of n rows is among the k kept ones with probability k/n.
        let position = self.rng.random_range(0..self.new_rows.max(1));
        if let Some(kept) = usize::try_from(position)
            .ok()
            .and_then(|position| self.known.get_mut(position))
        {
            *kept = record.clone();
        }
    }

    /// Remembers a superseded version for late emission.
    fn outdate(&mut self, older: Version<M::Row>) {
        if self.mix.late == 0.0 {
            return;
        }
        if self.outdated.len() < OUTDATED_VERSIONS_MAX {
            self.outdated.push(older);
            return;
        }
        let position = self.rng.random_range(0..OUTDATED_VERSIONS_MAX);
        if let Some(kept) = self.outdated.get_mut(position) {
            *kept = older;
        }
    }
}

impl<M: RowGenerator> Rows for Entities<M> {
    type Record = Version<M::Row>;

    fn next(&mut self) -> Row<Self::Record> {
        let Mix {
            duplicates,
            late,
            malformed,
        } = self.mix;
        let dice: f64 = self.rng.random();
        let row = if dice < malformed {
            Some(self.malformed())
        } else if dice < malformed + duplicates {
            self.again()
        } else if dice < malformed + duplicates + late {
            self.late()
        } else {
            None
        };
        let row = row.unwrap_or_else(|| self.first());
        self.rows += 1;
        row
    }
}
