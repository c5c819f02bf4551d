//! The response for an application: its settings, and its number of connected athletes.

use std::sync::Arc;

use jobs::{Board, Job};
use schemas::provenance::Provenance;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use stores::admin::ApplicationUsage;
use utoipa::ToSchema;

use super::counting::{CountingResponse, read_recounts};
use super::entity_store::unknown_application;
use crate::answer::{ProvenanceShape, entity_store_provenance};
use crate::board::answer::provenance_of_readings;
use crate::http::Api;
use crate::http::boards::{count_question, find_board, read_boards};
use crate::http::problem::Problem;
use crate::read_position::ReadPosition;

/// The board of connected athletes.
pub(super) const APPLICATIONS: &str = "applications";
/// Maximum number of applications per read of boards, which bounds the live states in memory.
const KEYS_MAX: usize = 64;

/// The owner of an application, for the OpenAPI description.
#[derive(Debug, Serialize, ToSchema)]
#[serde(untagged)]
#[expect(dead_code, reason = "only describes the schema")]
pub(crate) enum OwnerShape {
    /// A number.
    Id(i64),
    /// A text.
    Name(String),
}

/// An application.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub(crate) struct ApplicationResponse {
    pub(crate) id: i64,
    pub(crate) name: String,
    /// The owner as it was ingested: a text or a number.
    #[schema(value_type = OwnerShape)]
    pub(crate) owner: Value,
    /// Number of athletes with at least one authorization that is not revoked.
    pub(crate) connected_athletes: u64,
    /// How the athletes were counted.
    pub(crate) counting: CountingResponse,
    /// Maximum number of connected athletes.
    pub(crate) athlete_capacity: i64,
    /// True if the capacity is enforced.
    pub(crate) enforced: bool,
    /// Connected athletes / capacity, rounded to four decimals. Null if the capacity is 0.
    pub(crate) usage: Option<f64>,
    #[schema(value_type = ProvenanceShape)]
    pub(crate) provenance: Provenance,
}

impl ApplicationResponse {
    fn new(
        usage: ApplicationUsage,
        connected_athletes: u64,
        counting: CountingResponse,
        provenance: Provenance,
    ) -> Self {
        let application = usage.application;
        #[expect(clippy::cast_precision_loss, reason = "it is rounded")]
        let part = connected_athletes as f64 / application.athlete_capacity as f64;
        Self {
            id: application.id,
            name: application.name,
            owner: application.owner,
            connected_athletes,
            counting,
            athlete_capacity: application.athlete_capacity,
            enforced: usage.is_enforced,
            usage: (application.athlete_capacity > 0).then_some((part * 1e4).round() / 1e4),
            provenance,
        }
    }

    /// Updates all fields except the number of athletes and its provenance.
    pub(super) fn updated(self, usage: ApplicationUsage) -> Self {
        Self::new(
            usage,
            self.connected_athletes,
            self.counting,
            self.provenance,
        )
    }
}

pub(super) async fn application_response(
    api: &Arc<Api>,
    usage: ApplicationUsage,
) -> Result<ApplicationResponse, Problem> {
    let id = usage.application.id;
    let (mut responses, _) = application_responses(api, vec![usage]).await?;
    responses.pop().ok_or_else(|| unknown_application(id))
}

/// Builds the responses for applications, and their common provenance.
pub(super) async fn application_responses(
    api: &Arc<Api>,
    usages: Vec<ApplicationUsage>,
) -> Result<(Vec<ApplicationResponse>, Provenance), Problem> {
    let job = find_board(api, APPLICATIONS)?;
    let counting = job.counting();
    let recounted = read_recounts(api, counting, &usages).await?;
    let is_on_board = |usage: &&ApplicationUsage| !recounted.contains_key(&usage.application.id);
    let board_ids: Vec<i64> = usages
        .iter()
        .filter(is_on_board)
        .map(|usage| usage.application.id)
        .collect();
    let oldest_ms = recounted.values().map(|count| count.counted_at_ms).min();
    let (boards, provenance) = count_by_board(api, job, &board_ids, oldest_ms).await?;
    let mut boards = boards.into_iter();
    let responses = usages.into_iter().filter_map(|usage| {
        let recounted = recounted.get(&usage.application.id).copied();
        let counting = CountingResponse::new(counting, &usage, recounted);
        let (count, provenance) = match recounted {
            Some(recounted) => (
                recounted.connected,
                entity_store_provenance(recounted.counted_at_ms),
            ),
            None => boards.next()?,
        };
        Some(ApplicationResponse::new(usage, count, counting, provenance))
    });
    Ok((responses.collect(), provenance))
}

/// Reads the numbers of athletes on the boards of applications, each with its provenance. Also
/// returns the provenance of a response that includes recounted applications, of which the oldest
/// was counted at `oldest_ms`.
async fn count_by_board(
    api: &Arc<Api>,
    job: &Arc<Job<Board>>,
    ids: &[i64],
    oldest_ms: Option<i64>,
) -> Result<(Vec<(u64, Provenance)>, Provenance), Problem> {
    let mut boards = Vec::with_capacity(ids.len());
    let mut position: Option<ReadPosition> = None;
    for chunk in ids.chunks(KEYS_MAX) {
        let reading = read_boards(api, job, count_question(job, chunk.to_vec())).await?;
        let read_position = &reading.read_position;
        position = Some(match position {
            None => read_position.clone(),
            Some(position) => position.min_with(read_position),
        });
        let each = reading.boards_with_positions();
        boards.extend(each.map(|(board, read_position)| (board.clone(), read_position)));
    }
    if let (None, Some(at_ms)) = (&position, oldest_ms) {
        return Ok((Vec::new(), entity_store_provenance(at_ms)));
    }
    let mut position = position.unwrap_or_else(|| ReadPosition::empty(job.source(), 0));
    if let Some(at_ms) = oldest_ms {
        position.as_of_ms = position.as_of_ms.map(|as_of_ms| as_of_ms.min(at_ms));
        position.complete = false;
    }
    let provenance = provenance_of_readings(boards.iter().map(|(board, _)| board), position);
    let each = boards.into_iter().map(|(board, read_position)| {
        let provenance = provenance_of_readings([&board], read_position);
        (board.sum.count, provenance)
    });
    Ok((each.collect(), provenance))
}
