//! Generates authorizations. Applications with small ids have many; some authorizations are
//! revoked.

use jiff::Timestamp;
use rand::Rng;
use rand::rngs::StdRng;
use serde::Serialize;

use super::article::ArticleDistribution;
use super::entities::{EntityGenerator, RowPosition, compute_id_offset};
use super::fault::Fault;
use super::random_draws::{SkewedIds, draw_bool, timestamp_from_ms};
use super::request::GenerateRequest;
use super::time_distribution::TimeDistribution;
use crate::args::AuthorizationShape;

/// Maximum time from creation to revocation.
const REVOCATION_DELAY_MAX_MS: i64 = 300 * 24 * 3_600_000;
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
enum Distribution {
    Skewed {
        applications: SkewedIds,
        athlete_count: i64,
    },
    Article(ArticleDistribution),
}

impl Distribution {
    fn new(request: &GenerateRequest) -> Self {
        match request.shape {
            AuthorizationShape::Skewed => Self::Skewed {
                applications: SkewedIds::new(request.applications, 4),
                athlete_count: request.athletes.cast_signed(),
            },
            AuthorizationShape::Article => Self::Article(ArticleDistribution::new(request)),
        }
    }

    /// Draws an application and an athlete.
    fn draw_pair(&self, position: RowPosition, rng: &mut StdRng) -> (i64, i64) {
        match self {
            Self::Skewed {
                applications,
                athlete_count,
            } => {
                let application_id = applications.draw(rng);
                (
                    application_id,
                    rng.random_range(1..=(*athlete_count).max(1)),
                )
            }
            Self::Article(article) => article.assign_pair(position.number),
        }
    }
}

/// Generator of authorizations.
#[derive(Debug)]
pub(super) struct AuthorizationGenerator {
    times: TimeDistribution,
    end_ms: i64,
    row_count: u64,
    distribution: Distribution,
    revoked_fraction: f64,
    id_offset: i64,
}

impl AuthorizationGenerator {
    pub(super) fn new(request: &GenerateRequest) -> Self {
        Self {
            times: TimeDistribution::new(request.from_ms, request.end_ms),
            end_ms: request.end_ms,
            row_count: request.row_count,
            distribution: Distribution::new(request),
            revoked_fraction: request.revoked_fraction,
            id_offset: compute_id_offset(request.seed),
        }
    }

    /// Draws the time of the revocation of an authorization.
    fn draw_revocation(&self, created_at: Timestamp, rng: &mut StdRng) -> Timestamp {
        let created_at_ms = created_at.as_millisecond();
        let range_ms = (self.end_ms - created_at_ms).clamp(1, REVOCATION_DELAY_MAX_MS);
        timestamp_from_ms(created_at_ms + rng.random_range(0..range_ms))
    }
}

impl EntityGenerator for AuthorizationGenerator {
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
            .time_ms
            .unwrap_or_else(|| self.times.time_at(position.rows_before, self.row_count));
        let created_at = timestamp_from_ms(created_at_ms);
        let is_revoked = draw_bool(rng, self.revoked_fraction);
        let (application_id, athlete_id) = self.distribution.draw_pair(position, rng);
        Authorization {
            id: self.id_offset + position.number,
            application_id,
            athlete_id,
            created_at,
            revoked_at: is_revoked.then(|| self.draw_revocation(created_at, rng)),
        }
    }

    fn edit(&self, authorization: &mut Authorization, rng: &mut StdRng) {
        authorization.revoked_at = match authorization.revoked_at {
            None => Some(self.draw_revocation(authorization.created_at, rng)),
            Some(_) => None,
        };
    }
}
