//! Rows of entities: new ones, and newer and older versions of those that are there.
//!
//! It owns which rows come again and in which version; it knows no source.

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use serde::Serialize;

use super::draw::happens;
use super::fault::Fault;
use super::request::Request;
use super::rows::{Mix, Row, Rows};

/// Rows that may come again: of more a sample is kept, fair to all that there were.
const KNOWN: usize = 65_536;
/// Older versions that may come late.
const OUTDATED: usize = 4_096;
/// Seeds whose ids differ: an id stays within what every JSON reader holds exactly.
const SERIES: u64 = 900_000;
const IDS_IN_SERIES: i64 = 10_000_000_000;

/// Where a new row stands.
#[derive(Debug, Clone, Copy)]
pub(super) struct Place {
    /// The how manieth new row it is, from 1 on.
    pub(super) number: i64,
    /// Rows of any kind before it.
    pub(super) row: u64,
    /// When it happens, if that does not follow from its number.
    pub(super) at_ms: Option<i64>,
}

/// A source of entities: how its rows come about, and how they change.
pub(super) trait Make {
    /// What a row says, but for its version.
    type Row: Serialize + Clone;
    /// What can be wrong with a row.
    const FAULTS: &'static [Fault];
    /// A new row.
    fn make(&mut self, place: Place, rng: &mut StdRng) -> Self::Row;
    /// Changes something that can change.
    fn edit(&self, row: &mut Self::Row, rng: &mut StdRng);
}

/// A row in one of its versions. A row that was never edited has none.
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
    fn edit<M: Make<Row = R>>(&mut self, source: &M, rng: &mut StdRng) -> Self
    where
        R: Clone,
    {
        let older = self.clone();
        source.edit(&mut self.row, rng);
        self.version = Some(self.version.unwrap_or_default() + 1);
        older
    }
}

/// The id before the first one of things whose ids are of a seed: so that inputs of different seeds
/// don't edit each other's rows.
pub(super) fn ids_of(seed: u64) -> i64 {
    (seed % SERIES).cast_signed() * IDS_IN_SERIES
}

/// The rows of a source of entities.
pub(super) struct Entities<M: Make> {
    source: M,
    mix: Mix,
    rng: StdRng,
    rows: u64,
    new_rows: u64,
    at_ms: Option<i64>,
    /// A new row that came malformed and is still to come as it should.
    held: Option<M::Row>,
    known: Vec<Version<M::Row>>,
    /// Older versions of which a newer one has come.
    outdated: Vec<Version<M::Row>>,
}

impl<M: Make> Entities<M> {
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

    /// Lets other fractions of the rows be out of the ordinary.
    pub(super) fn set_mix(&mut self, mix: Mix) {
        self.mix = mix;
    }

    /// Sets when the next new row happens.
    pub(super) fn set_time(&mut self, at_ms: i64) {
        self.at_ms = Some(at_ms);
    }

    fn fresh(&mut self) -> M::Row {
        if let Some(row) = self.held.take() {
            return row;
        }
        self.new_rows += 1;
        let place = Place {
            number: self.new_rows.cast_signed(),
            row: self.rows,
            at_ms: self.at_ms,
        };
        self.source.make(place, &mut self.rng)
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

    /// A row that has come before, as it was or edited.
    fn again(&mut self) -> Option<Row<Version<M::Row>>> {
        if self.known.is_empty() {
            return None;
        }
        let place = self.rng.random_range(0..self.known.len());
        let edited: bool = self.rng.random();
        let known = self.known.get_mut(place)?;
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

    /// An older version than one that has come before.
    fn late(&mut self) -> Option<Row<Version<M::Row>>> {
        if self.outdated.is_empty() {
            return None;
        }
        let place = self.rng.random_range(0..self.outdated.len());
        Some(Row {
            late: true,
            ..Row::new(self.outdated.get(place)?.clone())
        })
    }

    fn first(&mut self) -> Row<Version<M::Row>> {
        let mut record = Version::first(self.fresh());
        // Some were edited before they came: what they were may come late.
        if happens(&mut self.rng, self.mix.late.min(0.5)) {
            let older = record.edit(&self.source, &mut self.rng);
            self.outdate(older);
        }
        self.know(&record);
        Row::new(record)
    }

    /// Notes a new row, so that it may come again.
    fn know(&mut self, record: &Version<M::Row>) {
        if self.mix.duplicates == 0.0 {
            return;
        }
        if self.known.len() < KNOWN {
            self.known.push(record.clone());
            return;
        }
        // Algorithm R: each of n rows is among the k that are kept with probability k/n.
        let place = self.rng.random_range(0..self.new_rows.max(1));
        if let Some(kept) = usize::try_from(place)
            .ok()
            .and_then(|place| self.known.get_mut(place))
        {
            *kept = record.clone();
        }
    }

    /// Notes a version of which a newer one comes now, so that it may come late.
    fn outdate(&mut self, older: Version<M::Row>) {
        if self.mix.late == 0.0 {
            return;
        }
        if self.outdated.len() < OUTDATED {
            self.outdated.push(older);
            return;
        }
        let place = self.rng.random_range(0..OUTDATED);
        if let Some(kept) = self.outdated.get_mut(place) {
            *kept = older;
        }
    }
}

impl<M: Make> Rows for Entities<M> {
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
