//! Generates live lines of all sources for the demo.

use std::fmt;

use schemas::source::Source;
use serde::Serialize;
use showcase::{
    APPLICATIONS, ATHLETES, CLUBS, FOLLOWS, Line, LineGenerator, MEMBERSHIPS, OWNERS, SEGMENTS,
    TRACKS,
};

use super::athletes::Athletes;
use super::authorizations::Authorizations;
use super::clubs::Clubs;
use super::efforts::Efforts;
use super::entities::{Entities, RowGenerator};
use super::follows::Follows;
use super::lines::write_line;
use super::plays::{Shape, Traffic};
use super::request::Request;
use super::rows::{Mix, Row, Rows};

/// Every line is new: each athlete has a row, and so a name, before the first effort.
const ONCE: Mix = Mix {
    duplicates: 0.0,
    late: 0.0,
    malformed: 0.0,
};
/// Most lines are new.
const START: Mix = Mix {
    duplicates: 0.02,
    late: 0.03,
    malformed: 0.005,
};
/// No line is new.
const CHANGES: Mix = Mix {
    duplicates: 0.85,
    late: 0.13,
    malformed: 0.02,
};
/// Many lines are new.
const MIXED: Mix = Mix {
    duplicates: 0.3,
    late: 0.1,
    malformed: 0.02,
};
/// A repeated or late pair is a new one while there are no pairs yet.
const SPARE_PAIRS: u64 = 50;

/// Lines of all sources but applications.
pub(crate) struct Live {
    plays: Traffic,
    athletes: Started<Athletes>,
    clubs: Started<Clubs>,
    follows: Started<Follows>,
    authorizations: Started<Authorizations>,
    efforts: Started<Efforts>,
}

impl fmt::Debug for Live {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Live").finish_non_exhaustive()
    }
}

/// A source whose first rows are mostly new.
struct Started<M: RowGenerator> {
    entities: Entities<M>,
    rows_left: i64,
    then: Mix,
}

impl<M: RowGenerator> Started<M> {
    fn new(source: M, request: &Request, rows_left: i64, then: Mix) -> Self {
        Self {
            entities: Entities::new(source, request),
            rows_left,
            then,
        }
    }

    fn next(&mut self, source: Source, at_ms: i64) -> Line {
        self.rows_left -= 1;
        if self.rows_left == -1 {
            self.entities.set_mix(self.then);
        }
        self.entities.set_time(at_ms);
        line(source, &self.entities.next())
    }
}

impl Live {
    /// Lines for a seed. Events of different runs with the same seed differ.
    ///
    /// # Errors
    /// Does not fail for the demo's parameters.
    pub(crate) fn new(seed: u64, run: u64, repeats_within: usize) -> anyhow::Result<Self> {
        let shape = Shape {
            owners: OWNERS.unsigned_abs(),
            tracks: TRACKS.unsigned_abs(),
            listeners: 1_000,
            apps: APPLICATIONS.unsigned_abs(),
        };
        let request = |source: Source, rows: i64, seed: u64| Request {
            source,
            rows: rows.unsigned_abs() + SPARE_PAIRS,
            seed,
            mix: START,
            owners: shape.owners,
            tracks: shape.tracks,
            segments: SEGMENTS.unsigned_abs(),
            athletes: ATHLETES.unsigned_abs(),
            clubs: CLUBS.unsigned_abs(),
            applications: APPLICATIONS.unsigned_abs(),
            shape: crate::args::Shape::default(),
            revoked: 0.2,
            from_ms: 0,
            until_ms: 1,
        };
        let of_athletes = Request {
            mix: ONCE,
            ..request(Source::Athletes, ATHLETES, seed)
        };
        let of_clubs = request(Source::Clubs, MEMBERSHIPS, seed);
        let of_follows = request(Source::Follows, FOLLOWS, seed);
        let of_authorizations = request(Source::Authorizations, 0, seed ^ run);
        let of_efforts = request(Source::Efforts, 0, seed ^ run);
        Ok(Self {
            plays: Traffic::new(seed ^ run, shape, START)?.with_repeat_window(repeats_within),
            athletes: Started::new(Athletes::named(), &of_athletes, ATHLETES, CHANGES),
            clubs: Started::new(Clubs::new(&of_clubs)?, &of_clubs, MEMBERSHIPS, CHANGES),
            follows: Started::new(Follows::new(&of_follows)?, &of_follows, FOLLOWS, CHANGES),
            authorizations: Started::new(
                Authorizations::new(&of_authorizations),
                &of_authorizations,
                0,
                MIXED,
            ),
            efforts: Started::new(Efforts::new(&of_efforts), &of_efforts, 0, MIXED),
        })
    }
}

impl LineGenerator for Live {
    fn play(&mut self, at_ms: i64, plays: i64) -> Line {
        self.plays.set_amount(plays);
        line(Source::Plays, &self.plays.next(at_ms))
    }

    fn row(&mut self, source: Source, at_ms: i64) -> Option<Line> {
        Some(match source {
            Source::Plays | Source::Applications => return None,
            Source::Athletes => self.athletes.next(source, at_ms),
            Source::Clubs => self.clubs.next(source, at_ms),
            Source::Follows => self.follows.next(source, at_ms),
            Source::Authorizations => self.authorizations.next(source, at_ms),
            Source::Efforts => self.efforts.next(source, at_ms),
        })
    }
}

fn line<R: Serialize>(source: Source, row: &Row<R>) -> Line {
    let mut bytes = Vec::with_capacity(256);
    write_line(&mut bytes, source, row);
    bytes.truncate(bytes.trim_ascii_end().len());
    Line::new(bytes, row.fault.is_none())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use anyhow::Context as _;

    use super::*;

    #[test]
    fn every_athlete_has_a_row_at_the_start() -> anyhow::Result<()> {
        for seed in 0..20 {
            let mut live = Live::new(seed, 1, 10)?;
            let ids = (0..ATHLETES).map(|_| {
                let mut line = Vec::new();
                write_line(&mut line, Source::Athletes, &live.athletes.entities.next());
                let row: serde_json::Value = serde_json::from_slice(&line)?;
                row["id"].as_i64().context("an id")
            });
            let ids: BTreeSet<i64> = ids.collect::<anyhow::Result<_>>()?;
            assert!(ids.into_iter().eq(1..=ATHLETES), "seed {seed}");
        }
        Ok(())
    }
}
