//! Generates rows of entities: new rows, and newer and older versions of earlier rows.
//!
//! This module decides which rows are repeated and in which version, independent of the source.

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use serde::Serialize;

use super::fault::Fault;
use super::random_draws::draw_bool;
use super::request::GenerateRequest;
use super::rows::{GeneratedRows, Row, RowMix};

/// Maximum rows that may be repeated; of more rows, a uniform sample.
const REPEATABLE_ROWS_MAX: usize = 65_536;
/// Maximum superseded versions that may be emitted late.
const SUPERSEDED_VERSIONS_MAX: usize = 4_096;
/// Number of seeds with distinct ids. Ids stay below the limit of exact JSON numbers.
const ID_SERIES_COUNT: u64 = 900_000;
const IDS_PER_SERIES: i64 = 10_000_000_000;

/// Position of a new row.
#[derive(Debug, Clone, Copy)]
pub(super) struct RowPosition {
    /// Number of the new row, from 1 on.
    pub(super) number: i64,
    /// Number of rows before it, of all kinds.
    pub(super) rows_before: u64,
    /// Time of the row, if it does not follow from its number.
    pub(super) time_ms: Option<i64>,
}

/// Generator of the entities of one source.
pub(super) trait EntityGenerator {
    /// Fields of a row without the version.
    type Row: Serialize + Clone;
    /// Possible faults of a row.
    const FAULTS: &'static [Fault];
    /// Generates a new row.
    fn generate(&mut self, position: RowPosition, rng: &mut StdRng) -> Self::Row;
    /// Changes a mutable field.
    fn edit(&self, row: &mut Self::Row, rng: &mut StdRng);
}

/// A row with its version. A row that was never edited has none.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct VersionedRow<R> {
    #[serde(flatten)]
    row: R,
    #[serde(skip_serializing_if = "Option::is_none")]
    version: Option<i64>,
}

impl<R> VersionedRow<R> {
    const fn unversioned(row: R) -> Self {
        Self { row, version: None }
    }

    /// Changes the row, and returns the previous version.
    fn edit<G: EntityGenerator<Row = R>>(&mut self, generator: &G, rng: &mut StdRng) -> Self
    where
        R: Clone,
    {
        let previous = self.clone();
        generator.edit(&mut self.row, rng);
        self.version = Some(self.version.unwrap_or_default() + 1);
        previous
    }
}

/// Computes the offset of the ids of a seed, so that inputs of different seeds do not edit each
/// other's rows.
pub(super) fn compute_id_offset(seed: u64) -> i64 {
    (seed % ID_SERIES_COUNT).cast_signed() * IDS_PER_SERIES
}

/// The rows of a source of entities.
pub(super) struct EntityStream<G: EntityGenerator> {
    generator: G,
    mix: RowMix,
    rng: StdRng,
    row_count: u64,
    new_row_count: u64,
    time_ms: Option<i64>,
    /// A new row that was emitted malformed and must still be emitted correctly.
    unemitted: Option<G::Row>,
    repeatable: Vec<VersionedRow<G::Row>>,
    superseded: Vec<VersionedRow<G::Row>>,
}

impl<G: EntityGenerator> EntityStream<G> {
    pub(super) fn new(generator: G, request: &GenerateRequest) -> Self {
        Self {
            generator,
            mix: request.mix,
            rng: StdRng::seed_from_u64(request.seed),
            row_count: 0,
            new_row_count: 0,
            time_ms: None,
            unemitted: None,
            repeatable: Vec::new(),
            superseded: Vec::new(),
        }
    }

    /// Sets the fractions of unusual rows.
    pub(super) fn set_mix(&mut self, mix: RowMix) {
        self.mix = mix;
    }

    /// Sets the time of the next new row.
    pub(super) fn set_time(&mut self, time_ms: i64) {
        self.time_ms = Some(time_ms);
    }

    fn generate(&mut self) -> G::Row {
        if let Some(row) = self.unemitted.take() {
            return row;
        }
        self.new_row_count += 1;
        let position = RowPosition {
            number: self.new_row_count.cast_signed(),
            rows_before: self.row_count,
            time_ms: self.time_ms,
        };
        self.generator.generate(position, &mut self.rng)
    }

    fn next_malformed(&mut self) -> Row<VersionedRow<G::Row>> {
        let row = self.generate();
        self.unemitted = Some(row.clone());
        let index = self.rng.random_range(0..G::FAULTS.len().max(1));
        Row {
            fault: G::FAULTS.get(index).copied(),
            ..Row::new(VersionedRow::unversioned(row))
        }
    }

    /// Repeats an earlier row, unchanged or edited.
    fn next_repeated(&mut self) -> Option<Row<VersionedRow<G::Row>>> {
        if self.repeatable.is_empty() {
            return None;
        }
        let index = self.rng.random_range(0..self.repeatable.len());
        let is_edited: bool = self.rng.random();
        let row = self.repeatable.get_mut(index)?;
        let previous = is_edited.then(|| row.edit(&self.generator, &mut self.rng));
        let record = row.clone();
        if let Some(previous) = previous {
            self.remember_superseded(previous);
        }
        Some(Row {
            is_repeated: true,
            is_edited,
            ..Row::new(record)
        })
    }

    /// Emits a superseded version.
    fn next_late(&mut self) -> Option<Row<VersionedRow<G::Row>>> {
        if self.superseded.is_empty() {
            return None;
        }
        let index = self.rng.random_range(0..self.superseded.len());
        Some(Row {
            is_late: true,
            ..Row::new(self.superseded.get(index)?.clone())
        })
    }

    fn next_new(&mut self) -> Row<VersionedRow<G::Row>> {
        let mut record = VersionedRow::unversioned(self.generate());
        // Some rows were edited before their first emission, so that an older version may be late.
        if draw_bool(&mut self.rng, self.mix.late.min(0.5)) {
            let previous = record.edit(&self.generator, &mut self.rng);
            self.remember_superseded(previous);
        }
        self.remember_repeatable(&record);
        Row::new(record)
    }

    /// Remembers a new row for repetition.
    fn remember_repeatable(&mut self, record: &VersionedRow<G::Row>) {
        if self.mix.duplicates == 0.0 {
            return;
        }
        if self.repeatable.len() < REPEATABLE_ROWS_MAX {
            self.repeatable.push(record.clone());
            return;
        }
        // Reservoir sampling (algorithm R): each of n rows is in the sample of k rows with
        // probability k/n.
        let index = self.rng.random_range(0..self.new_row_count.max(1));
        if let Some(replaced) = usize::try_from(index)
            .ok()
            .and_then(|index| self.repeatable.get_mut(index))
        {
            *replaced = record.clone();
        }
    }

    /// Remembers a superseded version for late emission.
    fn remember_superseded(&mut self, version: VersionedRow<G::Row>) {
        if self.mix.late == 0.0 {
            return;
        }
        if self.superseded.len() < SUPERSEDED_VERSIONS_MAX {
            self.superseded.push(version);
            return;
        }
        let index = self.rng.random_range(0..SUPERSEDED_VERSIONS_MAX);
        if let Some(replaced) = self.superseded.get_mut(index) {
            *replaced = version;
        }
    }
}

impl<G: EntityGenerator> GeneratedRows for EntityStream<G> {
    type Record = VersionedRow<G::Row>;

    fn next_row(&mut self) -> Row<Self::Record> {
        let RowMix {
            duplicates,
            late,
            malformed,
        } = self.mix;
        let fraction: f64 = self.rng.random();
        let row = if fraction < malformed {
            Some(self.next_malformed())
        } else if fraction < malformed + duplicates {
            self.next_repeated()
        } else if fraction < malformed + duplicates + late {
            self.next_late()
        } else {
            None
        };
        let row = row.unwrap_or_else(|| self.next_new());
        self.row_count += 1;
        row
    }
}
