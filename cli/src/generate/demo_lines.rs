//! Generates lines for the demo, of all sources but applications.

use std::fmt;

use schemas::source::Source;
use serde::Serialize;
use showcase::{
    APPLICATIONS, ATHLETES, CLUBS, FOLLOWS, Line, LineGenerator, MEMBERSHIPS, OWNERS, SEGMENTS,
    TRACKS,
};

use super::athletes::AthleteGenerator;
use super::authorizations::AuthorizationGenerator;
use super::clubs::MembershipGenerator;
use super::efforts::EffortGenerator;
use super::entities::{EntityGenerator, EntityStream};
use super::follows::FollowGenerator;
use super::lines::write_line;
use super::plays::{EventGenerator, IdCounts};
use super::request::GenerateRequest;
use super::rows::{GeneratedRows, Row, RowMix};
use crate::args::AuthorizationShape;

/// Every line is new: each athlete has a row, and so a name, before the first effort.
const ALL_NEW: RowMix = RowMix {
    duplicates: 0.0,
    late: 0.0,
    malformed: 0.0,
};
/// Most lines are new.
const MOSTLY_NEW: RowMix = RowMix {
    duplicates: 0.02,
    late: 0.03,
    malformed: 0.005,
};
/// No line is new.
const NONE_NEW: RowMix = RowMix {
    duplicates: 0.85,
    late: 0.13,
    malformed: 0.02,
};
/// Many lines are new.
const PARTLY_NEW: RowMix = RowMix {
    duplicates: 0.3,
    late: 0.1,
    malformed: 0.02,
};
/// Extra pairs, since a repeated or late pair is a new one while there are no earlier pairs.
const SPARE_PAIRS: u64 = 50;

/// Generator of the lines of each source.
pub(crate) struct DemoLineGenerator {
    plays: EventGenerator,
    athletes: PhasedStream<AthleteGenerator>,
    clubs: PhasedStream<MembershipGenerator>,
    follows: PhasedStream<FollowGenerator>,
    authorizations: PhasedStream<AuthorizationGenerator>,
    efforts: PhasedStream<EffortGenerator>,
}

impl fmt::Debug for DemoLineGenerator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DemoLineGenerator").finish_non_exhaustive()
    }
}

/// Rows of a source, whose mix changes after the first rows.
struct PhasedStream<G: EntityGenerator> {
    entities: EntityStream<G>,
    initial_rows_left: i64,
    later_mix: RowMix,
}

impl<G: EntityGenerator> PhasedStream<G> {
    fn new(
        generator: G,
        request: &GenerateRequest,
        initial_rows_left: i64,
        later_mix: RowMix,
    ) -> Self {
        Self {
            entities: EntityStream::new(generator, request),
            initial_rows_left,
            later_mix,
        }
    }

    fn next_line(&mut self, source: Source, time_ms: i64) -> Line {
        self.initial_rows_left -= 1;
        if self.initial_rows_left == -1 {
            self.entities.set_mix(self.later_mix);
        }
        self.entities.set_time(time_ms);
        to_line(source, &self.entities.next_row())
    }
}

impl DemoLineGenerator {
    /// Creates the generator of a seed. Events of different runs with the same seed differ.
    ///
    /// # Errors
    /// Does not fail for the demo's parameters.
    pub(crate) fn new(seed: u64, run: u64, repeat_window: usize) -> anyhow::Result<Self> {
        let id_counts = IdCounts {
            owners: OWNERS.unsigned_abs(),
            tracks: TRACKS.unsigned_abs(),
            listeners: 1_000,
            apps: APPLICATIONS.unsigned_abs(),
        };
        let request = |source: Source, rows: i64, seed: u64| GenerateRequest {
            source,
            row_count: rows.unsigned_abs() + SPARE_PAIRS,
            seed,
            mix: MOSTLY_NEW,
            owners: id_counts.owners,
            tracks: id_counts.tracks,
            segments: SEGMENTS.unsigned_abs(),
            athletes: ATHLETES.unsigned_abs(),
            clubs: CLUBS.unsigned_abs(),
            applications: APPLICATIONS.unsigned_abs(),
            shape: AuthorizationShape::default(),
            revoked_fraction: 0.2,
            from_ms: 0,
            end_ms: 1,
        };
        let athletes = GenerateRequest {
            mix: ALL_NEW,
            ..request(Source::Athletes, ATHLETES, seed)
        };
        let clubs = request(Source::Clubs, MEMBERSHIPS, seed);
        let follows = request(Source::Follows, FOLLOWS, seed);
        let authorizations = request(Source::Authorizations, 0, seed ^ run);
        let efforts = request(Source::Efforts, 0, seed ^ run);
        Ok(Self {
            plays: EventGenerator::new(seed ^ run, id_counts, MOSTLY_NEW)?
                .with_repeat_window(repeat_window),
            athletes: PhasedStream::new(
                AthleteGenerator::with_distinct_names(),
                &athletes,
                ATHLETES,
                NONE_NEW,
            ),
            clubs: PhasedStream::new(
                MembershipGenerator::new(&clubs)?,
                &clubs,
                MEMBERSHIPS,
                NONE_NEW,
            ),
            follows: PhasedStream::new(
                FollowGenerator::new(&follows)?,
                &follows,
                FOLLOWS,
                NONE_NEW,
            ),
            authorizations: PhasedStream::new(
                AuthorizationGenerator::new(&authorizations),
                &authorizations,
                0,
                PARTLY_NEW,
            ),
            efforts: PhasedStream::new(EffortGenerator::new(&efforts), &efforts, 0, PARTLY_NEW),
        })
    }
}

impl LineGenerator for DemoLineGenerator {
    fn play(&mut self, at_ms: i64, plays: i64) -> Line {
        self.plays.set_amount(plays);
        to_line(Source::Plays, &self.plays.next_row(at_ms))
    }

    fn row(&mut self, source: Source, at_ms: i64) -> Option<Line> {
        Some(match source {
            Source::Plays | Source::Applications => return None,
            Source::Athletes => self.athletes.next_line(source, at_ms),
            Source::Clubs => self.clubs.next_line(source, at_ms),
            Source::Follows => self.follows.next_line(source, at_ms),
            Source::Authorizations => self.authorizations.next_line(source, at_ms),
            Source::Efforts => self.efforts.next_line(source, at_ms),
        })
    }
}

fn to_line<R: Serialize>(source: Source, row: &Row<R>) -> Line {
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
            let mut generator = DemoLineGenerator::new(seed, 1, 10)?;
            let ids = (0..ATHLETES).map(|_| {
                let mut line = Vec::new();
                write_line(
                    &mut line,
                    Source::Athletes,
                    &generator.athletes.entities.next_row(),
                );
                let row: serde_json::Value = serde_json::from_slice(&line)?;
                row["id"].as_i64().context("an id")
            });
            let ids: BTreeSet<i64> = ids.collect::<anyhow::Result<_>>()?;
            assert!(ids.into_iter().eq(1..=ATHLETES), "seed {seed}");
        }
        Ok(())
    }
}
