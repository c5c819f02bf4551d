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
use crate::board::answer::merge_provenance;
use crate::http::Api;
use crate::http::boards::{build_count_request, find_board, read_boards};
use crate::http::problem::Problem;
use crate::read_position::ReadPosition;

/// The board of connected athletes.
pub(super) const APPLICATIONS_BOARD: &str = "applications";
/// Maximum number of applications per read of boards, which bounds the live entries in memory.
const APPLICATIONS_PER_READ: usize = 64;

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
        let usage_ratio = connected_athletes as f64 / application.athlete_capacity as f64;
        Self {
            id: application.id,
            name: application.name,
            owner: application.owner,
            connected_athletes,
            counting,
            athlete_capacity: application.athlete_capacity,
            enforced: usage.is_enforced,
            usage: (application.athlete_capacity > 0).then_some((usage_ratio * 1e4).round() / 1e4),
            provenance,
        }
    }

    /// Updates all fields except the number of athletes and its provenance.
    pub(super) fn with_usage(self, usage: ApplicationUsage) -> Self {
        Self::new(
            usage,
            self.connected_athletes,
            self.counting,
            self.provenance,
        )
    }
}

pub(super) async fn build_application_response(
    api: &Arc<Api>,
    usage: ApplicationUsage,
) -> Result<ApplicationResponse, Problem> {
    let id = usage.application.id;
    let (mut responses, _) = build_application_responses(api, vec![usage]).await?;
    responses.pop().ok_or_else(|| unknown_application(id))
}

/// Builds the responses for applications, and their common provenance.
pub(super) async fn build_application_responses(
    api: &Arc<Api>,
    usages: Vec<ApplicationUsage>,
) -> Result<(Vec<ApplicationResponse>, Provenance), Problem> {
    let job = find_board(api, APPLICATIONS_BOARD)?;
    let counting = job.counting();
    let recounts = read_recounts(api, counting, &usages).await?;
    let is_on_board = |usage: &&ApplicationUsage| !recounts.contains_key(&usage.application.id);
    let board_ids: Vec<i64> = usages
        .iter()
        .filter(is_on_board)
        .map(|usage| usage.application.id)
        .collect();
    let oldest_ms = recounts.values().map(|count| count.counted_at_ms).min();
    let (board_counts, provenance) = count_by_board(api, job, &board_ids, oldest_ms).await?;
    let mut board_counts = board_counts.into_iter();
    let responses = usages.into_iter().filter_map(|usage| {
        let recount = recounts.get(&usage.application.id).copied();
        let counting = CountingResponse::new(counting, &usage, recount);
        let (count, provenance) = match recount {
            Some(recount) => (
                recount.connected,
                entity_store_provenance(recount.counted_at_ms),
            ),
            None => board_counts.next()?,
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
    for chunk in ids.chunks(APPLICATIONS_PER_READ) {
        let reading = read_boards(api, job, build_count_request(job, chunk.to_vec())).await?;
        let read_position = &reading.read_position;
        position = Some(match position {
            None => read_position.clone(),
            Some(position) => position.min_with(read_position),
        });
        let chunk_boards = reading.boards_with_positions();
        boards.extend(chunk_boards.map(|(board, read_position)| (board.clone(), read_position)));
    }
    if let (None, Some(oldest_ms)) = (&position, oldest_ms) {
        return Ok((Vec::new(), entity_store_provenance(oldest_ms)));
    }
    let mut position = position.unwrap_or_else(|| ReadPosition::empty(job.source(), 0));
    if let Some(oldest_ms) = oldest_ms {
        position.as_of_ms = position.as_of_ms.map(|as_of_ms| as_of_ms.min(oldest_ms));
        position.complete = false;
    }
    let provenance = merge_provenance(boards.iter().map(|(board, _)| board), position);
    let counts = boards.into_iter().map(|(board, read_position)| {
        let provenance = merge_provenance([&board], read_position);
        (board.sum.count, provenance)
    });
    Ok((counts.collect(), provenance))
}
