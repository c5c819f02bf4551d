//! Asks questions while the traffic and batch runs go on, and compares the answers with the recount.
//!
//! An answer about plays is compared with the events below its own position. For boards and
//! applications, rows are kept from changing until everything is counted; then answers must be exact.
//! Of boards that are served while rows change, athletes whose efforts do not change are compared.

use std::collections::BTreeSet;
use std::time::Duration;

use jiff::Timestamp;
use jiff::tz::TimeZone;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use schemas::source::Source;
use serde_json::{Value, json};
use stores::log::Span;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::boards::{Board, compare_moving, counts, efforts};
use crate::client::Parameters;
use crate::found::{RUNS_MIN, Row, Shared, lock};
use crate::ledger::Ledger;
use crate::questions::Question;
use crate::traffic::{Traffic, sleep};
use crate::{ATHLETES, SEGMENTS, applications, rows};

/// How long to wait for batch runs beyond the time of the demo.
const RUNS_WAIT: Duration = Duration::from_secs(120);
/// Rows change for so long between two comparisons of boards.
const BOARDS_EVERY: Duration = Duration::from_millis(800);
/// Applications change so often where nothing is compared.
const APPLICATIONS_EVERY: Duration = Duration::from_secs(2);
/// Questions about plays, and about boards, that are asked in a row; and at the end.
const QUESTIONS: usize = 8;
const LAST_QUESTIONS: usize = 300;
/// Boards that are compared while rows change.
const MOVING_BOARDS: usize = 3;
/// Owners and tracks whose totals are compared at the end.
const TOTALS: usize = 150;
/// Sources of rows that are counted.
const OF_ROWS: [Source; 2] = [Source::Efforts, Source::Authorizations];
const NONE: Parameters = Vec::new();
/// Entries of a page, at most: no segment has so many athletes.
const ENTRIES_MAX: usize = 1_000;

/// What asks and compares.
#[derive(Debug)]
pub(crate) struct Verifier<'a> {
    shared: &'a Shared,
    ledger: Ledger<'a>,
    rng: StdRng,
    /// Efforts at the last comparison of boards, and boards as they were then.
    efforts: BTreeSet<Row>,
    moving: Vec<(Board, Vec<Value>)>,
}

impl<'a> Verifier<'a> {
    /// A verifier of an installation whose log of plays was as `before` when the demo began.
    pub(crate) fn new(shared: &'a Shared, before: &[Span]) -> Self {
        Self {
            shared,
            ledger: Ledger::new(shared, before),
            rng: StdRng::seed_from_u64(shared.setup.seed),
            efforts: BTreeSet::new(),
            moving: Vec::new(),
        }
    }

    /// Compares for some time and until enough batch runs were met; then once more after the traffic,
    /// which it stops.
    pub(crate) async fn run(
        &mut self,
        seconds: u64,
        traffic: &Traffic,
        end: &CancellationToken,
    ) -> anyhow::Result<()> {
        let (begun, span) = (Instant::now(), Duration::from_secs(seconds));
        self.ask_about_rows(false).await?;
        let mut boards_at = Instant::now();
        while !end.is_cancelled() {
            let is_enough = self.shared.setup.batch.runs() >= RUNS_MIN;
            if begun.elapsed() > span && (is_enough || begun.elapsed() > span + RUNS_WAIT) {
                break;
            }
            self.ask_about_plays(QUESTIONS).await?;
            if boards_at.elapsed() > BOARDS_EVERY {
                self.ask_about_rows(false).await?;
                boards_at = Instant::now();
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        traffic.end().await;
        if !end.is_cancelled() {
            self.ask_about_all_plays().await?;
            self.ask_about_rows(true).await?;
        }
        let mut summary = lock(&self.shared.summary);
        summary.batch_runs = self.shared.setup.batch.runs();
        for (line, times) in lock(&self.shared.unread).iter() {
            let line = String::from_utf8_lossy(line);
            summary.differs(&format!("in the log {times} times too few: {line}"));
        }
        Ok(())
    }

    /// Connects and disconnects athletes where nothing is compared.
    pub(crate) async fn change_applications(
        &mut self,
        end: &CancellationToken,
    ) -> anyhow::Result<()> {
        while sleep(APPLICATIONS_EVERY, end).await {
            let changed = applications::change(self.shared, &mut self.rng).await;
            if !end.is_cancelled() {
                changed?;
            }
        }
        Ok(())
    }

    async fn ask_about_plays(&mut self, count: usize) -> anyhow::Result<()> {
        self.ledger.read_all().await?;
        for _ in 0..count {
            let now = self.shared.setup.clock.now_ms().div_euclid(1_000);
            let index = usize::try_from(self.rng.random::<u32>())?;
            if let Some(event) = self.ledger.pick(index) {
                let question = Question::about(event, now, &mut self.rng)?;
                self.ask(&question, &[]).await?;
            }
        }
        Ok(())
    }

    /// Asks about plays, and compares the answer with the events below its position, which must reach
    /// `ends`.
    async fn ask(&mut self, question: &Question, ends: &[i64]) -> anyhow::Result<()> {
        let (path, parameters) = (question.path(), question.parameters(&self.ledger.values));
        let answer = self.shared.ask(question.kind, &path, &parameters).await?;
        let position = answer.position(Source::Plays);
        self.ledger.read_to(&position).await?;
        let events = self.ledger.below(&position);
        let mut expected = question.recount(events, &self.ledger.values)?;
        expected["provenance"] = json!({"complete": true});
        let question = format!("{path} {parameters:?} at {position:?}");
        self.shared.compare(&question, &(200, expected), &answer);
        if position.len() < self.ledger.partitions() || !answer.reaches(Source::Plays, ends) {
            let difference = format!("{question}: the position does not reach {ends:?}");
            lock(&self.shared.summary).differs(&difference);
        }
        Ok(())
    }

    /// Waits until every event is counted, then asks about owners, tracks, and more.
    async fn ask_about_all_plays(&mut self) -> anyhow::Result<()> {
        self.shared.catch_up(&[Source::Plays]).await?;
        let ends = self.ledger.read_all().await?;
        let totals = [0, 1].into_iter().flat_map(|field| {
            let values = self.ledger.below(&ends).map(|event| event.values[field]);
            let values: BTreeSet<usize> = values.collect();
            let values = values.into_iter().take(TOTALS);
            values.map(move |value| Question::all_time(field, value))
        });
        let mut questions: Vec<Question> = totals.collect();
        if let Some(event) = self.ledger.pick(0) {
            let now = self.shared.setup.clock.now_ms().div_euclid(1_000);
            questions.extend(Question::of_every_kind(event, now)?);
        }
        for question in &questions {
            self.ask(question, &ends).await?;
        }
        self.ask_about_plays(LAST_QUESTIONS).await
    }

    /// Asks about boards while rows change, then keeps rows from changing and asks some more, in the
    /// end about every board of every segment and every application.
    async fn ask_about_rows(&mut self, is_last: bool) -> anyhow::Result<()> {
        let shared = self.shared;
        let mut answers = Vec::new();
        for (board, before) in std::mem::take(&mut self.moving) {
            let (path, parameters) = (board.path(), paged(&board, 0, ENTRIES_MAX));
            let answer = shared.ask("moving board", &path, &parameters).await?;
            answers.push((answer, board, before));
        }
        let _guard = shared.row_changes.lock().await;
        let now = efforts(shared).await?;
        for (answer, board, before) in answers {
            let complete = (200, json!({"provenance": {"complete": true}}));
            shared.compare(&format!("{board:?} while rows change"), &complete, &answer);
            if let Err(difference) = compare_moving((&self.efforts, &now), &before, &answer.body) {
                let difference = format!("{board:?} while rows change: {difference}");
                lock(&shared.summary).differs(&difference);
            }
        }
        applications::change(shared, &mut self.rng).await?;
        shared.catch_up(&OF_ROWS).await?;
        rows::compare(shared).await?;
        let now = Timestamp::from_millisecond(shared.setup.clock.now_ms())?;
        let today = now.to_zoned(TimeZone::UTC).date();
        let count = if is_last { LAST_QUESTIONS } else { QUESTIONS };
        for _ in 0..count {
            let board = Board::any(today, false, &mut self.rng);
            self.ask_about_board(&board).await?;
        }
        for board in Board::every(today).iter().filter(|_| is_last) {
            let entries = board.entries(shared).await?;
            self.ask_for_page(board, &entries, 0, ENTRIES_MAX).await?;
        }
        let chosen = self.rng.random_range(1..=SEGMENTS);
        for segment in (1..=SEGMENTS).filter(|segment| is_last || *segment == chosen) {
            let path = format!("/segments/{segment}/counts");
            let counts = counts(shared, segment).await?;
            shared.check("counts", &path, &NONE, (200, counts)).await?;
        }
        let all = applications::all(shared).await?;
        for one in all.iter().filter(|one| is_last || one["id"] == chosen) {
            let path = format!("/applications/{}", one["id"]);
            let expected = (200, one.clone());
            shared.check("application", &path, &NONE, expected).await?;
        }
        let parameters = vec![("limit", "1000".to_owned()), ("sort", "id".to_owned())];
        let (path, expected) = ("/applications", (200, json!({"applications": all})));
        shared
            .check("applications", path, &parameters, expected)
            .await?;
        for _ in 0..MOVING_BOARDS {
            let board = Board::any(today, true, &mut self.rng);
            let entries = board.entries(shared).await?;
            self.moving.push((board, entries));
        }
        self.efforts = efforts(shared).await?;
        Ok(())
    }

    /// Asks for some page of a board, or for an athlete's place on it.
    async fn ask_about_board(&mut self, board: &Board) -> anyhow::Result<()> {
        let entries = board.entries(self.shared).await?;
        let total = entries.len();
        if self.rng.random_bool(0.5) {
            let offset = self.rng.random_range(0..total + 2);
            let limit = self.rng.random_range(1..=total + 2);
            return self.ask_for_page(board, &entries, offset, limit).await;
        }
        let athlete = self.rng.random_range(1..=ATHLETES);
        let around = self.rng.random_range(0..8_usize);
        let mut parameters = board.parameters();
        parameters.push(("around", around.to_string()));
        let is_own = |entry: &Value| entry["athlete_id"] == athlete;
        let expected = match entries.iter().position(is_own) {
            None => (404, json!({})),
            Some(index) => {
                let near = &entries[index.saturating_sub(around)..total.min(index + around + 1)];
                let body = json!({"total": total, "entry": entries[index], "neighbours": near});
                (200, body)
            }
        };
        let path = format!("{}/athletes/{athlete}", board.path());
        self.shared
            .check("place", &path, &parameters, expected)
            .await
    }

    async fn ask_for_page(
        &self,
        board: &Board,
        entries: &[Value],
        offset: usize,
        limit: usize,
    ) -> anyhow::Result<()> {
        let total = entries.len();
        let page = &entries[offset.min(total)..total.min(offset + limit)];
        let expected = (200, json!({"total": total, "entries": page}));
        let parameters = paged(board, offset, limit);
        self.shared
            .check("board", &board.path(), &parameters, expected)
            .await
    }
}

fn paged(board: &Board, offset: usize, limit: usize) -> Parameters {
    let mut parameters = board.parameters();
    parameters.push(("limit", limit.to_string()));
    if offset > 0 {
        parameters.push(("offset", offset.to_string()));
    }
    parameters
}
