//! Entities in the demo: athletes, clubs, follows, efforts and applications that change all the
//! time, and what is served of them compared with a plain sort of the rows ([`recount`]).
//!
//! The traffic notes every line that it gives and every answer that it gets in [`Rows`], under a
//! lock. Whoever compares takes the lock: then no row changes, and the answers must be exact once
//! the speed layer has come to the end of the logs. Plays and batch runs go on meanwhile. Of boards
//! that are asked for while rows change, the athletes are compared of whom nothing came in.

mod compare;
mod people;
mod producer;
mod question;
mod recount;
mod rows;
mod traffic;
mod verify;

use std::ops::Range;

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use schemas::entities::Group;
use schemas::source::{Source, SourceKind};
use stores::canon::CanonRead;
use stores::log::LogRead;
use tokio::sync::Mutex;

pub(super) use producer::{EntityCounts, EntityProducer};
pub(super) use rows::Rows;
pub(super) use verify::EntityVerifier;

/// What the traffic left behind.
pub(super) type Ledger = Mutex<Rows>;

/// Rows of entities for each so many of all.
const ONE_IN: u128 = 5;
/// Rows of entities a second, at most: canonical stores are not made for more.
const ROWS_A_SECOND_MAX: u128 = 100;
/// First ids of demos are a multiple of this apart.
const STRIDE: i64 = 1_000;
/// Where demos on a folder that is in use begin, in strides: far from what others count up, and so
/// that JSON readers hold every id exactly.
const FAR: Range<i64> = 100_000..900_000;
/// Efforts and authorizations of a demo have ids of their own up to so many times the stride.
const MANY: i64 = 1_000_000;

/// How many of all rows are rows of entities after some time, where there are `rate` rows a second.
pub(super) fn rows_after(elapsed_ms: u128, rate: u32) -> u128 {
    let share = elapsed_ms * u128::from(rate) / ONE_IN / 1_000;
    share.min(elapsed_ms * ROWS_A_SECOND_MAX / 1_000)
}

/// Ids that follow each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Span {
    first: i64,
    count: i64,
}

impl Span {
    pub(in crate::demo) fn every(self) -> Range<i64> {
        self.first..self.first + self.count
    }

    fn choose(self, rng: &mut StdRng) -> i64 {
        rng.random_range(self.every())
    }

    /// One of them, the first ones more often.
    fn choose_low(self, rng: &mut StdRng) -> i64 {
        self.choose(rng).min(self.choose(rng))
    }
}

/// The ids of this demo: each demo on the same data folder has its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Ids {
    before: i64,
}

impl Ids {
    /// Ids that nobody has used yet: the first ones where no rows ever came in; else some far away by
    /// chance, since not every row can be looked up.
    pub(super) async fn free(
        canon: &dyn CanonRead,
        log: &dyn LogRead,
        now_ms: i64,
    ) -> anyhow::Result<Self> {
        let mut rng = StdRng::seed_from_u64(now_ms.unsigned_abs());
        let mut far = || Self {
            before: STRIDE * rng.random_range(FAR),
        };
        let mut ids = Self { before: 0 };
        for source in Source::ALL {
            // Whatever takes rows makes this topic first.
            let topic = source.dead_letter_topic();
            if source.kind() == SourceKind::Entities && !log.spans(topic).await?.is_empty() {
                ids = far();
            }
        }
        while !ids.are_free(canon).await? {
            ids = far();
        }
        Ok(ids)
    }

    async fn are_free(self, canon: &dyn CanonRead) -> anyhow::Result<bool> {
        for application in self.applications().every() {
            if canon.application(application).await?.is_some() {
                return Ok(false);
            }
        }
        for club in self.clubs().every() {
            if !canon.club_members(club).await?.is_empty() {
                return Ok(false);
            }
        }
        for follower in self.followers().every() {
            if !canon.followed_by(follower).await?.is_empty() {
                return Ok(false);
            }
        }
        let of_segment = |key| {
            self.athletes()
                .every()
                .map(move |member| Group { key, member })
        };
        let groups: Vec<Group> = self.segments().every().flat_map(of_segment).collect();
        let efforts = canon.groups(Source::Efforts, &groups).await?;
        Ok(efforts.num_rows() == 0)
    }

    /// Whether nobody has used anything yet.
    pub(in crate::demo) const fn are_first(self) -> bool {
        self.before == 0
    }

    const fn span(self, count: i64) -> Span {
        Span {
            first: self.before + 1,
            count,
        }
    }

    /// Segments.
    pub(in crate::demo) const fn segments(self) -> Span {
        self.span(12)
    }

    const fn athletes(self) -> Span {
        self.span(300)
    }

    /// Athletes that follow others.
    const fn followers(self) -> Span {
        self.span(20)
    }

    const fn clubs(self) -> Span {
        self.span(6)
    }

    /// Applications.
    pub(in crate::demo) const fn applications(self) -> Span {
        self.span(5)
    }

    /// The id of effort, activity or authorization `number`.
    const fn of_many(self, number: i64) -> i64 {
        self.before * MANY + number
    }
}

impl Span {
    /// The first of them.
    pub(super) const fn first(self) -> i64 {
        self.first
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::installation::Installation;
    use crate::settings::Settings;

    #[tokio::test]
    async fn ids_are_far_from_what_is_there() {
        let folder = tempfile::tempdir().unwrap();
        let settings = Settings {
            data_dir: folder.path().to_path_buf(),
            ..Settings::default()
        };
        let installation = Installation::open(&settings).await.unwrap();
        let (canon, log) = (&*installation.stores().canon, &*installation.stores().log);
        let ids = Ids::free(canon, log, 1).await.unwrap();
        assert_eq!(ids, Ids { before: 0 });
        let intake = installation.intake(Source::Athletes).await.unwrap();
        let line: &[u8] = br#"{"id":1,"version":5}"#;
        intake.take("f", std::iter::once((1, line))).await.unwrap();
        let ids = Ids::free(canon, log, 1).await.unwrap();
        assert!(ids.before >= STRIDE * FAR.start, "{ids:?}");
        assert!(ids.of_many(MANY) < 1 << 53);
        assert_ne!(ids, Ids::free(canon, log, 2).await.unwrap());
    }
}
