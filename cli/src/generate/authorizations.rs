//! Generates authorizations. Applications with small ids have many; some authorizations are revoked.

use jiff::Timestamp;
use rand::Rng;
use rand::rngs::StdRng;
use serde::Serialize;

use super::article::Article;
use super::draw::{Skewed, happens, instant};
use super::entities::{RowGenerator, RowPosition, id_offset};
use super::fault::Fault;
use super::request::Request;
use super::rhythm::Rhythm;
use crate::args::Shape;

/// Maximum time from creation to revocation.
const REVOKED_WITHIN_MS: i64 = 300 * 24 * 3_600_000;
/// A time that every source rejects.
const YEAR_2500: &str = "\"2500-01-01T00:00:00Z\"";

/// A connection of an athlete to an application.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct Authorization {
    id: i64,
    application_id: i64,
    athlete_id: i64,
    created_at: Timestamp,
    #[serde(skip_serializing_if = "Option::is_none")]
    revoked_at: Option<Timestamp>,
}

/// Distribution of authorizations over applications and athletes.
#[derive(Debug)]
enum Spread {
    Skewed { applications: Skewed, athletes: i64 },
    Article(Article),
}

impl Spread {
    fn new(request: &Request) -> Self {
        match request.shape {
            Shape::Skewed => Self::Skewed {
                applications: Skewed::new(request.applications, 4),
                athletes: request.athletes.cast_signed(),
            },
            Shape::Article => Self::Article(Article::new(request)),
        }
    }

    /// Draws an application and an athlete.
    fn pair(&self, position: RowPosition, rng: &mut StdRng) -> (i64, i64) {
        match self {
            Self::Skewed {
                applications,
                athletes,
            } => {
                let application = applications.draw(rng);
                (application, rng.random_range(1..=(*athletes).max(1)))
            }
            Self::Article(article) => article.pair(position.number),
        }
    }
}

/// Generator of authorizations.
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
            spread: Spread::new(request),
            revoked: request.revoked,
            ids_before: id_offset(request.seed),
        }
    }

    /// Time of the revocation of an authorization.
    fn revoked_at(&self, created_at: Timestamp, rng: &mut StdRng) -> Timestamp {
        let created_at_ms = created_at.as_millisecond();
        let rest_ms = (self.until_ms - created_at_ms).clamp(1, REVOKED_WITHIN_MS);
        instant(created_at_ms + rng.random_range(0..rest_ms))
    }
}

impl RowGenerator for Authorizations {
    type Row = Authorization;

    const FAULTS: &'static [Fault] = &[
        Fault::Truncated,
        Fault::NotJson,
        Fault::quoted("application_id"),
        Fault::fractional("athlete_id"),
        Fault::invalid_date("created_at"),
        Fault::Missing("athlete_id"),
        Fault::Missing("created_at"),
        Fault::InvalidValue("created_at", YEAR_2500),
        Fault::huge("application_id"),
    ];

    fn generate(&mut self, position: RowPosition, rng: &mut StdRng) -> Authorization {
        let created_at_ms = position
            .at_ms
            .unwrap_or_else(|| self.rhythm.at(position.row, self.rows));
        let created_at = instant(created_at_ms);
        let is_revoked = happens(rng, self.revoked);
        let (application_id, athlete_id) = self.spread.pair(position, rng);
        Authorization {
            id: self.ids_before + position.number,
            application_id,
            athlete_id,
            created_at,
            revoked_at: is_revoked.then(|| self.revoked_at(created_at, rng)),
        }
    }

    fn edit(&self, authorization: &mut Authorization, rng: &mut StdRng) {
        authorization.revoked_at = match authorization.revoked_at {
            None => Some(self.revoked_at(authorization.created_at, rng)),
            Some(_) => None,
        };
    }
}
