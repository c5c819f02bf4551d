//! Why a board is what it is, and why an athlete has the place on it.

use std::sync::Arc;

use axum::http::Uri;
use jobs::board::Ranked;
use jobs::{Board, Job};
use schemas::key::KeyError;
use schemas::provenance::Provenance;
use schemas::seam::Epoch;
use serde::Serialize;
use serde_json::{Map, Value};
use stores::board_cache::BoardWant;
use utoipa::ToSchema;

use super::Api;
use super::boards::{Asked, around_member, first, id, known, read_boards, today};
use super::params::{Params, one};
use super::problem::Problem;
use super::runs::drift_total;
use crate::answer::{ProvenanceShape, shown_ms};
use crate::board::answer::{EntryShape, of_reading};
use crate::board::entries::{Entry, entries};
use crate::board::explained::{BoardExplained, Edition, MemberState};
use crate::board::read::{BoardQuestion, BoardReading};

/// The parameter that names the athlete.
const MEMBER: &str = "athlete_id";

/// What a board is made of, and a place on it.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct BoardExplanation {
    /// The board's name: segments, applications.
    board: String,
    /// The column of the key and its value.
    #[schema(value_type = Object)]
    key: Map<String, Value>,
    /// The athlete that was asked for.
    athlete_id: Option<i64>,
    /// The athlete's row as the board says it; null where the athlete is not on it, or none was asked for.
    #[schema(value_type = Option<EntryShape>)]
    entry: Option<Entry>,
    total: TotalParts,
    /// How the place came about; null where there is no entry, and for boards that only leave out rows of another one.
    place: Option<PlaceParts>,
    /// What the batch layer made of the board; null before a run has.
    batch: Option<EditionShown>,
    /// What live states say of the athlete, oldest first.
    live: Vec<StateShown>,
    /// Whether the place is another one than the batch layer's: same, entered, left, own (the athlete's row is another
    /// one), others (rows of other athletes are), absent; null where no athlete was asked for.
    change: Option<&'static str>,
    /// The same in words.
    why: Option<String>,
    #[schema(value_type = ProvenanceShape)]
    provenance: Provenance,
}

/// The parts of a board's size: count is edition less taken_away and live on top.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct TotalParts {
    count: u64,
    /// Rows of the batch layer's edition.
    edition: u64,
    /// Those of them whose athletes have a newer state.
    taken_away: u64,
    /// Rows that newer states put there.
    live: u64,
}

/// The rows before an athlete's: rank less 1 is edition less taken_away and live on top.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct PlaceParts {
    rank: u64,
    /// Rows of the edition that stand before it, an earlier one of the athlete's own among them.
    edition: u64,
    /// Those of them whose athletes have a newer state.
    taken_away: u64,
    /// Rows of newer states that stand before it.
    live: u64,
}

/// What the batch layer made of a board.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct EditionShown {
    /// The run that changed the key's boards last.
    epoch: Epoch,
    /// When it published them, in UTC; null where an older version did.
    at: Option<String>,
    /// What the run found that live state had otherwise, in all; null where that is not known.
    drift: Option<u64>,
    /// The newest complete run of the view: it found the key's boards as that run had left them.
    newest: Epoch,
    /// The run of the edition that is kept for the place of an earlier day.
    earlier: Option<Epoch>,
    /// What tells editions of the key apart: a hash of its root.
    edition: String,
    total: u64,
    /// The athlete's row and rank on it.
    #[schema(value_type = Option<EntryShape>)]
    entry: Option<Entry>,
}

/// What a live state says of the athlete.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct StateShown {
    /// The partition that it is of.
    partition: usize,
    epoch: Epoch,
    /// Whether it is the one that counts: the newest, and newer than the edition and the newest run.
    in_force: bool,
    /// The row, without a rank; null where the athlete is not on the board by it.
    #[schema(value_type = Option<Object>)]
    entry: Option<Map<String, Value>>,
}

/// A board by its name, with the column that says which one.
type Keyed<'a> = (&'a String, &'a Arc<Job<Board>>, &'a str);

/// The board that a request asks to be explained: the one whose key it names; nothing if it names none.
pub(super) fn asked<'a>(api: &'a Api, uri: &Uri) -> Result<Option<Keyed<'a>>, Problem> {
    let mut named = api.boards.iter().filter_map(|(name, job)| {
        let column = job.key().0.first()?;
        one(uri, &column.name)?;
        Some((name, job, column.name.as_str()))
    });
    let Some(first) = named.next() else {
        return Ok(None);
    };
    match named.find(|(.., column)| *column != first.2) {
        Some((.., other)) => Err(Problem::parameter(format!(
            "{} and {other} name two boards: ask for one of them at a time",
            first.2
        ))),
        None => Ok(Some(first)),
    }
}

/// Explains a board.
pub(super) async fn explain(
    api: &Arc<Api>,
    uri: &Uri,
    (name, job, column): (&str, &Arc<Job<Board>>, &str),
) -> Result<BoardExplanation, Problem> {
    let mut parameters = known(job);
    parameters.extend([column, MEMBER]);
    let params = Params::read(uri, &parameters)?;
    let member = params.parsed(MEMBER, id)?;
    let key = id(column, params.get(column).unwrap_or_default())?;
    let asked = Asked::read(job, &key.to_string(), &params, today(api))?;
    let want = match member {
        Some(member) => around_member(job, member, 0)?,
        None => BoardWant::Sums,
    };
    let asked = BoardQuestion {
        explains: true,
        ..asked.question(api, want).await?
    };
    let reading = read_boards(api, job, asked).await?;
    let board = first(&reading);
    let nothing = BoardExplained::default();
    let explained = board.explained.as_deref().unwrap_or(&nothing);
    let mut entries = entries(job, board, None)?.into_iter();
    let rank = board.found.map(|place| place + 1);
    let entry = entries.find(|entry| Some(entry.rank) == rank);
    let edition = explained.edition.as_ref();
    let live = explained.states.iter();
    let live = live
        .map(|state| state_shown(job, state))
        .collect::<Result<_, KeyError>>()?;
    let change = member.map(|_| change(board, explained));
    Ok(BoardExplanation {
        board: name.to_owned(),
        key: Map::from_iter([(column.to_owned(), Value::from(key))]),
        athlete_id: member,
        entry,
        total: TotalParts {
            count: board.sum.count,
            edition: edition.map_or(0, |edition| edition.total),
            taken_away: explained.taken_away,
            live: explained.live,
        },
        place: explained.before.map(|before| PlaceParts {
            rank: before.place() + 1,
            edition: before.sheet,
            taken_away: before.taken_away,
            live: before.live,
        }),
        batch: match edition {
            Some(edition) => Some(edition_shown(api, job, edition, explained.newest).await?),
            None => None,
        },
        live,
        change: change.as_ref().map(|(change, _)| *change),
        why: change.map(|(_, why)| why),
        provenance: of_reading([board], reading.standing.clone()),
    })
}

async fn edition_shown(
    api: &Api,
    job: &Job<Board>,
    edition: &Edition,
    newest: Epoch,
) -> Result<EditionShown, Problem> {
    let story = api.ports.views.story(job.source(), edition.epoch).await?;
    let found = edition.found.as_ref();
    let entry = entry_of(job, found.map(|(place, row)| (*place, row)))?;
    Ok(EditionShown {
        epoch: edition.epoch,
        at: edition.at_us.map(|at_us| shown_ms(at_us.div_euclid(1_000))),
        drift: story.as_ref().and_then(drift_total),
        newest,
        earlier: edition.earlier,
        edition: edition.name.clone(),
        total: edition.total,
        entry,
    })
}

fn state_shown(job: &Job<Board>, state: &MemberState) -> Result<StateShown, KeyError> {
    let entry = entry_of(job, state.row.as_ref().map(|row| (0, row)))?;
    let entry = entry.map(|entry| {
        let mut fields = Map::new();
        entry.put_into(&mut fields);
        fields.remove("rank");
        fields
    });
    Ok(StateShown {
        partition: state.partition,
        epoch: state.epoch,
        in_force: state.is_in_force,
        entry,
    })
}

fn entry_of(job: &Job<Board>, found: Option<(u64, &Ranked)>) -> Result<Option<Entry>, KeyError> {
    let Some((place, row)) = found else {
        return Ok(None);
    };
    let reading = BoardReading {
        first: place,
        rows: vec![row.clone()],
        ..BoardReading::default()
    };
    Ok(entries(job, &reading, None)?.pop())
}

/// Whether the place is another one than the batch layer's, and why.
fn change(board: &BoardReading, explained: &BoardExplained) -> (&'static str, String) {
    let edition = explained.edition.as_ref();
    let was = edition.and_then(|edition| edition.found.as_ref());
    let run = edition.map_or(0, |edition| edition.epoch);
    let in_force = explained.states.iter().find(|state| state.is_in_force);
    let since = in_force.map_or_else(String::new, |state| {
        format!("a live state of epoch {}", state.epoch)
    });
    let is_own = in_force.is_some_and(|state| {
        let shown = |row: &Ranked| (row.score.clone(), row.payload.clone());
        state.row.as_ref().map(shown) != was.map(|(_, row)| shown(row))
    });
    match (was, board.found) {
        (None, None) => (
            "absent",
            "the athlete is on the board neither by the batch rows nor by a newer state".to_owned(),
        ),
        (None, Some(_)) => (
            "entered",
            format!("{since} put the athlete on the board, where run {run} had no row"),
        ),
        (Some(_), None) => (
            "left",
            format!("{since} took away the row that run {run} had"),
        ),
        (Some((was, _)), Some(now)) if is_own => (
            "own",
            format!(
                "{since} put another row in the place of the one of run {run}: rank {} by that run, {} now",
                was + 1,
                now + 1
            ),
        ),
        (Some((was, _)), Some(now)) if *was == now => (
            "same",
            format!("run {run} has the same rank and row, and nothing newer changed that"),
        ),
        (Some((was, _)), Some(now)) => (
            "others",
            format!(
                "the athlete's row is that of run {run}, and newer states of others changed what stands before it: rank {} by that run, {} now",
                was + 1,
                now + 1
            ),
        ),
    }
}
