//! Explanations of boards and of an athlete's rank.

use std::sync::Arc;

use axum::http::Uri;
use jobs::board::RankedEntry;
use jobs::{Board, Job};
use schemas::key::KeyError;
use schemas::provenance::Provenance;
use schemas::seam::Epoch;
use serde::Serialize;
use serde_json::{Map, Value};
use stores::board_cache::BoardSelection;
use utoipa::ToSchema;

use super::Api;
use super::boards::{
    BoardRequest, first_board, list_board_params, parse_id, read_boards, select_around, today,
};
use super::params::{Params, find_first_value};
use super::problem::Problem;
use super::runs::read_drift_total;
use crate::answer::{ProvenanceShape, format_ms};
use crate::board::answer::{EntryShape, merge_provenance};
use crate::board::entries::{Entry, build_entries};
use crate::board::explanation::{BoardExplanation, ExplainedLiveEntry, ExplainedVersion};
use crate::board::reader::BoardReadRequest;
use crate::board::reading::BoardReading;

/// The parameter that names the athlete.
const MEMBER_PARAM: &str = "athlete_id";

/// The parts of a board, and of an athlete's rank.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct BoardExplanationResponse {
    /// The name of the board: segments or applications.
    board: String,
    /// The column of the key and its value.
    #[schema(value_type = Object)]
    key: Map<String, Value>,
    /// The selected athlete.
    athlete_id: Option<i64>,
    /// The athlete's row. Null if the athlete is not on the board, or none is selected.
    #[schema(value_type = Option<EntryShape>)]
    entry: Option<Entry>,
    total: TotalParts,
    /// The parts of the rank. Null without an entry, and for boards that filter another board.
    place: Option<RankParts>,
    /// The published version of the board. Null before the first run.
    batch: Option<VersionResponse>,
    /// Live entries of the athlete, oldest first.
    live: Vec<LiveEntryResponse>,
    /// How the rank differs from the published version: same, entered, left, own (the athlete's row
    /// changed), others (rows of other athletes changed) or absent. Null if no athlete is selected.
    change: Option<&'static str>,
    /// The change in words.
    why: Option<String>,
    #[schema(value_type = ProvenanceShape)]
    provenance: Provenance,
}

/// The parts of a board's size: count = edition - taken_away + live.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct TotalParts {
    count: u64,
    /// Rows of the published version.
    edition: u64,
    /// Rows of the version that a newer live entry replaces or removes.
    taken_away: u64,
    /// Rows of newer live entries.
    live: u64,
}

/// The rows before an athlete's: rank - 1 = edition - taken_away + live.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = PlaceParts)]
pub(crate) struct RankParts {
    rank: u64,
    /// Rows of the version before it, including an earlier row of the same athlete.
    edition: u64,
    /// Rows of the version that a newer live entry replaces or removes.
    taken_away: u64,
    /// Rows of newer live entries before it.
    live: u64,
}

/// The published version of a board.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct VersionResponse {
    /// The last run that changed boards of the key.
    epoch: Epoch,
    /// Time of publication in UTC. Null if an older release of Backstitch published it.
    at: Option<String>,
    /// The total difference between live state and the run. Null if unknown.
    drift: Option<u64>,
    /// The newest complete run of the view. It left the boards of the key unchanged since `epoch`.
    newest: Epoch,
    /// The run of the version that is kept for ranks of an earlier day.
    earlier: Option<Epoch>,
    /// Identifies the version: the hash of its root.
    edition: String,
    total: u64,
    /// The athlete's row and rank in this version.
    #[schema(value_type = Option<EntryShape>)]
    entry: Option<Entry>,
}

/// A live entry of the athlete.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = LiveStateResponse)]
pub(crate) struct LiveEntryResponse {
    /// Its partition.
    partition: usize,
    epoch: Epoch,
    /// True if it decides the athlete's row: it is the newest, and newer than the version and the
    /// newest run.
    in_force: bool,
    /// The row without a rank. Null if this live entry removes the athlete from the board.
    #[schema(value_type = Option<Object>)]
    entry: Option<Map<String, Value>>,
}

/// A board, and the column of its key.
pub(super) struct RequestedBoard<'a> {
    name: &'a str,
    job: &'a Arc<Job<Board>>,
    key_column: &'a str,
}

/// Returns the board whose key the request has. Returns `None` if the request has no key of a
/// board.
pub(super) fn requested_board<'a>(
    api: &'a Api,
    uri: &Uri,
) -> Result<Option<RequestedBoard<'a>>, Problem> {
    let mut requested = api.boards.iter().filter_map(|(name, job)| {
        let column = job.key().0.first()?;
        find_first_value(uri, &column.name)?;
        let key_column = column.name.as_str();
        Some(RequestedBoard {
            name,
            job,
            key_column,
        })
    });
    let Some(first) = requested.next() else {
        return Ok(None);
    };
    match requested.find(|other| other.key_column != first.key_column) {
        Some(other) => Err(Problem::parameter(format!(
            "{} and {} name two boards: send one of them",
            first.key_column, other.key_column
        ))),
        None => Ok(Some(first)),
    }
}

/// Explains a board.
pub(super) async fn explain(
    api: &Arc<Api>,
    uri: &Uri,
    requested: &RequestedBoard<'_>,
) -> Result<BoardExplanationResponse, Problem> {
    let RequestedBoard {
        name,
        job,
        key_column,
    } = *requested;
    let mut parameters = list_board_params(job);
    parameters.extend([key_column, MEMBER_PARAM]);
    let params = Params::parse(uri, &parameters)?;
    let member = params.parse_with(MEMBER_PARAM, parse_id)?;
    let key = parse_id(key_column, params.get(key_column).unwrap_or_default())?;
    let request = BoardRequest::parse(job, &key.to_string(), &params, today(api))?;
    let selection = match member {
        Some(member) => select_around(job, member, 0)?,
        None => BoardSelection::TotalsOnly,
    };
    let read_request = BoardReadRequest {
        explains: true,
        ..request.build_read_request(api, selection).await?
    };
    let reading = read_boards(api, job, read_request).await?;
    let board = first_board(&reading);
    let empty = BoardExplanation::default();
    let explained = board.explanation.as_deref().unwrap_or(&empty);
    let mut entries = build_entries(job, board, None)?.into_iter();
    let rank = board.member_index.map(|index| index + 1);
    let entry = entries.find(|entry| Some(entry.rank) == rank);
    let version = explained.version.as_ref();
    let live = explained.live_entries.iter();
    let live = live
        .map(|entry| build_live_entry_response(job, entry))
        .collect::<Result<_, KeyError>>()?;
    let change = member.map(|_| describe_change(board, explained));
    Ok(BoardExplanationResponse {
        board: name.to_owned(),
        key: Map::from_iter([(key_column.to_owned(), Value::from(key))]),
        athlete_id: member,
        entry,
        total: TotalParts {
            count: board.sum.count,
            edition: version.map_or(0, |version| version.total),
            taken_away: explained.removed,
            live: explained.added,
        },
        place: explained.rank_breakdown.map(|before| RankParts {
            rank: before.index() + 1,
            edition: before.version,
            taken_away: before.removed,
            live: before.live,
        }),
        batch: match version {
            Some(version) => {
                Some(build_version_response(api, job, version, explained.newest).await?)
            }
            None => None,
        },
        live,
        change: change.as_ref().map(|(change, _)| *change),
        why: change.map(|(_, description)| description),
        provenance: merge_provenance([board], reading.read_position.clone()),
    })
}

async fn build_version_response(
    api: &Api,
    job: &Job<Board>,
    version: &ExplainedVersion,
    newest: Epoch,
) -> Result<VersionResponse, Problem> {
    let details = api
        .ports
        .views
        .run_details(job.source(), version.epoch)
        .await?;
    let member = version.member.as_ref();
    let entry = build_ranked_entry(job, member.map(|(index, row)| (*index, row)))?;
    Ok(VersionResponse {
        epoch: version.epoch,
        at: version
            .published_at_us
            .map(|at_us| format_ms(at_us.div_euclid(1_000))),
        drift: details.as_ref().and_then(read_drift_total),
        newest,
        earlier: version.earlier,
        edition: version.name.clone(),
        total: version.total,
        entry,
    })
}

fn build_live_entry_response(
    job: &Job<Board>,
    live: &ExplainedLiveEntry,
) -> Result<LiveEntryResponse, KeyError> {
    let entry = build_ranked_entry(job, live.row.as_ref().map(|row| (0, row)))?;
    let entry = entry.map(|entry| {
        let mut fields = Map::new();
        entry.insert_into(&mut fields);
        fields.remove("rank");
        fields
    });
    Ok(LiveEntryResponse {
        partition: live.partition,
        epoch: live.epoch,
        in_force: live.is_effective,
        entry,
    })
}

fn build_ranked_entry(
    job: &Job<Board>,
    indexed_row: Option<(u64, &RankedEntry)>,
) -> Result<Option<Entry>, KeyError> {
    let Some((index, row)) = indexed_row else {
        return Ok(None);
    };
    let reading = BoardReading {
        first_index: index,
        rows: vec![row.clone()],
        ..BoardReading::default()
    };
    Ok(build_entries(job, &reading, None)?.pop())
}

/// Returns how the rank differs from the published version, as a code and in words.
fn describe_change(board: &BoardReading, explained: &BoardExplanation) -> (&'static str, String) {
    let version = explained.version.as_ref();
    let old_row = version.and_then(|version| version.member.as_ref());
    let run = version.map_or(0, |version| version.epoch);
    let effective = explained
        .live_entries
        .iter()
        .find(|entry| entry.is_effective);
    let cause = effective.map_or_else(String::new, |entry| {
        format!("a live entry of epoch {}", entry.epoch)
    });
    let is_row_changed = effective.is_some_and(|entry| {
        let visible_fields = |row: &RankedEntry| (row.score.clone(), row.payload.clone());
        entry.row.as_ref().map(visible_fields) != old_row.map(|(_, row)| visible_fields(row))
    });
    match (old_row, board.member_index) {
        (None, None) => (
            "absent",
            "neither the batch rows nor a newer live entry has a row of the athlete".to_owned(),
        ),
        (None, Some(_)) => (
            "entered",
            format!("{cause} added the athlete; run {run} had no row"),
        ),
        (Some(_), None) => ("left", format!("{cause} removed the row of run {run}")),
        (Some((old_index, _)), Some(index)) if is_row_changed => (
            "own",
            format!(
                "{cause} replaced the row of run {run}: rank {} in that run, {} now",
                old_index + 1,
                index + 1
            ),
        ),
        (Some((old_index, _)), Some(index)) if *old_index == index => {
            ("same", format!("run {run} has the same row and rank"))
        }
        (Some((old_index, _)), Some(index)) => (
            "others",
            format!(
                "newer live entries of other athletes changed the rank; the row is that of run {run}: rank {} in that run, {} now",
                old_index + 1,
                index + 1
            ),
        ),
    }
}
