//! Authorizations: applications with small numbers have many, and some are revoked.

use rand::Rng;
use rand::rngs::StdRng;

use super::article::Article;
use super::draw::{Skewed, happens};
use super::entities::{Make, Place, ids_of};
use super::fault::Fault;
use super::request::Request;
use super::rhythm::Rhythm;
use super::rows::{Cell, Record, Sink};
use crate::args::Shape;

/// The longest time until an authorization is revoked, of those that are.
const REVOKED_WITHIN_MS: i64 = 300 * 24 * 3_600_000;
/// A time that no source takes.
const YEAR_2500_MS: i64 = 16_725_225_600_000;

/// That an athlete lets an application in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Authorization {
    id: i64,
    application_id: i64,
    athlete_id: i64,
    created_at_ms: i64,
    revoked_at_ms: Option<i64>,
}

impl Record for Authorization {
    fn put(&self, sink: &mut impl Sink) {
        sink.put("id", self.id.into());
        sink.put("application_id", self.application_id.into());
        sink.put("athlete_id", self.athlete_id.into());
        sink.put("created_at", Cell::Time(self.created_at_ms));
        sink.put("revoked_at", self.revoked_at_ms.map(Cell::Time).into());
    }
}

/// Which application an athlete lets in.
#[derive(Debug)]
enum Spread {
    Skewed { applications: Skewed, athletes: i64 },
    Article(Article),
}

impl Spread {
    fn of(request: &Request) -> Self {
        match request.shape {
            Shape::Skewed => Self::Skewed {
                applications: Skewed::new(request.applications, 4),
                athletes: request.athletes.cast_signed(),
            },
            Shape::Article => Self::Article(Article::new(request)),
        }
    }

    /// An application and an athlete.
    fn pair(&self, place: Place, rng: &mut StdRng) -> (i64, i64) {
        match self {
            Self::Skewed {
                applications,
                athletes,
            } => {
                let application = applications.draw(rng);
                (application, rng.random_range(1..=(*athletes).max(1)))
            }
            Self::Article(article) => article.pair(place.number),
        }
    }
}

/// Makes authorizations.
#[derive(Debug)]
pub(super) struct Authorizations {
    rhythm: Rhythm,
    until_ms: i64,
    rows: u64,
    spread: Spread,
    revoked: f64,
    ids_before: i64,
}

impl Authorizations {
    pub(super) fn new(request: &Request) -> Self {
        Self {
            rhythm: Rhythm::new(request.from_ms, request.until_ms),
            until_ms: request.until_ms,
            rows: request.rows,
            spread: Spread::of(request),
            revoked: request.revoked,
            ids_before: ids_of(request.seed),
        }
    }

    /// When one that was given then is revoked.
    fn revoked_at_ms(&self, created_at_ms: i64, rng: &mut StdRng) -> i64 {
        let rest_ms = (self.until_ms - created_at_ms).clamp(1, REVOKED_WITHIN_MS);
        created_at_ms + rng.random_range(0..rest_ms)
    }
}

impl Make for Authorizations {
    type Row = Authorization;

    const FAULTS: &'static [Fault] = &[
        Fault::CutOff,
        Fault::NoJson,
        Fault::quoted("application_id"),
        Fault::fractional("athlete_id"),
        Fault::no_date("created_at"),
        Fault::missing("athlete_id"),
        Fault::missing("created_at"),
        Fault::Instead("created_at", Cell::Time(YEAR_2500_MS)),
        Fault::huge("application_id"),
    ];

    fn make(&mut self, place: Place, rng: &mut StdRng) -> Authorization {
        let created_at_ms = place
            .at_ms
            .unwrap_or_else(|| self.rhythm.at(place.row, self.rows));
        let is_revoked = happens(rng, self.revoked);
        let (application_id, athlete_id) = self.spread.pair(place, rng);
        Authorization {
            id: self.ids_before + place.number,
            application_id,
            athlete_id,
            created_at_ms,
            revoked_at_ms: is_revoked.then(|| self.revoked_at_ms(created_at_ms, rng)),
        }
    }

    fn edit(&self, authorization: &mut Authorization, rng: &mut StdRng) {
        authorization.revoked_at_ms = match authorization.revoked_at_ms {
            None => Some(self.revoked_at_ms(authorization.created_at_ms, rng)),
            Some(_) => None,
        };
    }
}
