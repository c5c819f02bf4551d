//! Sends queries during live traffic and batch runs, and compares the answers with a recount.
//!
//! An answer about plays is compared with the events below its own log position. For boards and
//! applications, row changes are paused until all of them are counted; then answers must be exact.
//! On boards that are served while rows change, athletes with unchanged efforts are compared.

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

use crate::boards::{Board, compare_while_changing, expected_counts, read_efforts};
use crate::client::Parameters;
use crate::ledger::Ledger;
use crate::queries::PlaysQuery;
use crate::rows::Row;
use crate::shared::{RUNS_MIN, SharedState, lock};
use crate::traffic::{Traffic, sleep};
use crate::{ATHLETES, SEGMENTS, applications, stored_rows};

/// How long to wait for batch runs beyond the duration of the demo.
const BATCH_RUNS_TIMEOUT: Duration = Duration::from_secs(120);
/// The time during which rows change between two verifications of boards.
const BOARDS_INTERVAL: Duration = Duration::from_millis(800);
/// The interval between changes of applications in a demo without verification.
const APPLICATIONS_INTERVAL: Duration = Duration::from_secs(2);
/// The number of queries of plays, and of boards, in one step.
const QUERIES_PER_STEP: usize = 8;
/// The number of queries of plays, and of boards, after the traffic has ended.
const FINAL_QUERIES: usize = 300;
/// The number of boards that are verified while rows change.
const CHANGING_BOARDS: usize = 3;
/// Upper limit of the owners, and of the tracks, whose totals are verified at the end.
const TOTALS_MAX: usize = 150;
/// The entity sources whose changes the speed layer counts.
const ENTITY_SOURCES: [Source; 2] = [Source::Efforts, Source::Authorizations];
const NO_PARAMETERS: Parameters = Vec::new();
/// A page of this size contains all entries of a board.
const ENTRIES_MAX: usize = 1_000;

/// Sends queries and verifies the answers.
#[derive(Debug)]
pub(crate) struct Verifier<'a> {
    shared: &'a SharedState,
    ledger: Ledger<'a>,
    rng: StdRng,
    /// The efforts at the last verification of boards.
    efforts: BTreeSet<Row>,
    /// Boards with their entries at the last verification.
    changing_boards: Vec<(Board, Vec<Value>)>,
}

impl<'a> Verifier<'a> {
    /// A verifier of an installation. `initial_spans` are the spans of the log of plays before the
    /// demo.
    pub(crate) fn new(shared: &'a SharedState, initial_spans: &[Span]) -> Self {
        Self {
            shared,
            ledger: Ledger::new(shared, initial_spans),
            rng: StdRng::seed_from_u64(shared.setup.seed),
            efforts: BTreeSet::new(),
            changing_boards: Vec::new(),
        }
    }

    /// Verifies answers for some time and until there were enough batch runs. Then stops the
    /// traffic, and verifies once more.
    pub(crate) async fn run(
        &mut self,
        seconds: u64,
        traffic: &Traffic,
        end: &CancellationToken,
    ) -> anyhow::Result<()> {
        let (start, duration) = (Instant::now(), Duration::from_secs(seconds));
        self.verify_rows(false).await?;
        let mut boards_verified = Instant::now();
        while !end.is_cancelled() {
            let has_enough_runs = self.shared.setup.batch.runs() >= RUNS_MIN;
            let elapsed = start.elapsed();
            let is_late = elapsed > duration + BATCH_RUNS_TIMEOUT;
            if elapsed > duration && (has_enough_runs || is_late) {
                break;
            }
            self.verify_plays(QUERIES_PER_STEP).await?;
            if boards_verified.elapsed() > BOARDS_INTERVAL {
                self.verify_rows(false).await?;
                boards_verified = Instant::now();
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        traffic.stop().await;
        if !end.is_cancelled() {
            self.verify_all_plays().await?;
            self.verify_rows(true).await?;
        }
        let mut summary = lock(&self.shared.summary);
        summary.batch_runs = self.shared.setup.batch.runs();
        for (line, missing) in lock(&self.shared.unread).iter() {
            let line = String::from_utf8_lossy(line);
            let difference = format!("{missing} copies of a line are missing in the log: {line}");
            summary.record_difference(&difference);
        }
        Ok(())
    }

    /// Connects and disconnects athletes, in a demo without verification.
    pub(crate) async fn change_applications(
        &mut self,
        end: &CancellationToken,
    ) -> anyhow::Result<()> {
        while sleep(APPLICATIONS_INTERVAL, end).await {
            let outcome = applications::change_random(self.shared, &mut self.rng).await;
            if !end.is_cancelled() {
                outcome?;
            }
        }
        Ok(())
    }

    async fn verify_plays(&mut self, count: usize) -> anyhow::Result<()> {
        self.ledger.read_all().await?;
        for _ in 0..count {
            let now_s = self.shared.setup.clock.now_ms().div_euclid(1_000);
            let number = usize::try_from(self.rng.random::<u32>())?;
            if let Some(event) = self.ledger.pick(number) {
                let query = PlaysQuery::random(event, now_s, &mut self.rng)?;
                self.verify(&query, &[]).await?;
            }
        }
        Ok(())
    }

    /// Sends a query of plays, and compares the answer with the events below its position, which
    /// must reach `ends`.
    async fn verify(&mut self, query: &PlaysQuery, ends: &[i64]) -> anyhow::Result<()> {
        let (path, parameters) = (query.path(), query.parameters(&self.ledger.values));
        let answer = self.shared.fetch(query.kind, &path, &parameters).await?;
        let position = answer.position(Source::Plays);
        self.ledger.read_to(&position).await?;
        let events = self.ledger.below(&position);
        let mut expected = query.recount(events, &self.ledger.values)?;
        expected["provenance"] = json!({"complete": true});
        let request = format!("{path} {parameters:?} at {position:?}");
        self.shared.compare(&request, &(200, expected), &answer);
        let is_short = position.len() < self.ledger.partition_count();
        if is_short || !answer.reaches(Source::Plays, ends) {
            let difference = format!("{request}: the position does not reach {ends:?}");
            lock(&self.shared.summary).record_difference(&difference);
        }
        Ok(())
    }

    /// Waits until every event is counted, then verifies totals of owners and tracks, and random
    /// queries.
    async fn verify_all_plays(&mut self) -> anyhow::Result<()> {
        self.shared.catch_up(&[Source::Plays]).await?;
        let ends = self.ledger.read_all().await?;
        let totals = [0, 1].into_iter().flat_map(|field| {
            let values = self.ledger.below(&ends).map(|event| event.values[field]);
            let values: BTreeSet<usize> = values.collect();
            let values = values.into_iter().take(TOTALS_MAX);
            values.map(move |value| PlaysQuery::all_time(field, value))
        });
        let mut queries: Vec<PlaysQuery> = totals.collect();
        if let Some(event) = self.ledger.pick(0) {
            let now_s = self.shared.setup.clock.now_ms().div_euclid(1_000);
            queries.extend(PlaysQuery::every_kind(event, now_s)?);
        }
        for query in &queries {
            self.verify(query, &ends).await?;
        }
        self.verify_plays(FINAL_QUERIES).await
    }

    /// Verifies boards while rows change. Then pauses row changes, and verifies rows, boards,
    /// counts and applications: random ones, or all of them if `is_last`.
    async fn verify_rows(&mut self, is_last: bool) -> anyhow::Result<()> {
        let shared = self.shared;
        let mut answers = Vec::new();
        for (board, before) in std::mem::take(&mut self.changing_boards) {
            let (path, parameters) = (board.path(), page_parameters(&board, 0, ENTRIES_MAX));
            let answer = shared.fetch("moving board", &path, &parameters).await?;
            answers.push((answer, board, before));
        }
        let _guard = shared.row_changes.lock().await;
        let efforts_now = read_efforts(shared).await?;
        for (answer, board, before) in answers {
            let complete = (200, json!({"provenance": {"complete": true}}));
            shared.compare(&format!("{board:?} while rows change"), &complete, &answer);
            let result = compare_while_changing(&self.efforts, &efforts_now, &before, &answer.body);
            if let Err(difference) = result {
                let difference = format!("{board:?} while rows change: {difference}");
                lock(&shared.summary).record_difference(&difference);
            }
        }
        applications::change_random(shared, &mut self.rng).await?;
        shared.catch_up(&ENTITY_SOURCES).await?;
        stored_rows::compare_tables(shared).await?;
        let now = Timestamp::from_millisecond(shared.setup.clock.now_ms())?;
        let today = now.to_zoned(TimeZone::UTC).date();
        let count = match is_last {
            true => FINAL_QUERIES,
            false => QUERIES_PER_STEP,
        };
        for _ in 0..count {
            let board = Board::random(today, false, &mut self.rng);
            self.verify_board(&board).await?;
        }
        for board in Board::list_all(today).iter().filter(|_| is_last) {
            let entries = board.recount(shared).await?;
            self.verify_page(board, &entries, 0, ENTRIES_MAX).await?;
        }
        self.verify_counts_and_applications(is_last).await?;
        for _ in 0..CHANGING_BOARDS {
            let board = Board::random(today, true, &mut self.rng);
            let entries = board.recount(shared).await?;
            self.changing_boards.push((board, entries));
        }
        self.efforts = read_efforts(shared).await?;
        Ok(())
    }

    /// Verifies the counts of a random segment and a random application, or all if `is_last`; and
    /// the list of applications.
    async fn verify_counts_and_applications(&mut self, is_last: bool) -> anyhow::Result<()> {
        let shared = self.shared;
        let chosen = self.rng.random_range(1..=SEGMENTS);
        for segment in (1..=SEGMENTS).filter(|segment| is_last || *segment == chosen) {
            let path = format!("/segments/{segment}/counts");
            let counts = expected_counts(shared, segment).await?;
            shared
                .check("counts", &path, &NO_PARAMETERS, (200, counts))
                .await?;
        }
        let all = applications::expected_applications(shared).await?;
        let is_chosen = |application: &&Value| is_last || application["id"] == chosen;
        for application in all.iter().filter(is_chosen) {
            let path = format!("/applications/{}", application["id"]);
            let expected = (200, application.clone());
            shared
                .check("application", &path, &NO_PARAMETERS, expected)
                .await?;
        }
        let parameters = vec![("limit", "1000".to_owned()), ("sort", "id".to_owned())];
        let (path, expected) = ("/applications", (200, json!({"applications": all})));
        shared
            .check("applications", path, &parameters, expected)
            .await
    }

    /// Verifies a random page of a board, or the entry of a random athlete.
    async fn verify_board(&mut self, board: &Board) -> anyhow::Result<()> {
        let entries = board.recount(self.shared).await?;
        let total = entries.len();
        if self.rng.random_bool(0.5) {
            let offset = self.rng.random_range(0..total + 2);
            let limit = self.rng.random_range(1..=total + 2);
            return self.verify_page(board, &entries, offset, limit).await;
        }
        let athlete = self.rng.random_range(1..=ATHLETES);
        let around = self.rng.random_range(0..8_usize);
        let mut parameters = board.parameters();
        parameters.push(("around", around.to_string()));
        let is_of_athlete = |entry: &Value| entry["athlete_id"] == athlete;
        let expected = match entries.iter().position(is_of_athlete) {
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

    async fn verify_page(
        &self,
        board: &Board,
        entries: &[Value],
        offset: usize,
        limit: usize,
    ) -> anyhow::Result<()> {
        let total = entries.len();
        let page = &entries[offset.min(total)..total.min(offset + limit)];
        let expected = (200, json!({"total": total, "entries": page}));
        let parameters = page_parameters(board, offset, limit);
        self.shared
            .check("board", &board.path(), &parameters, expected)
            .await
    }
}

fn page_parameters(board: &Board, offset: usize, limit: usize) -> Parameters {
    let mut parameters = board.parameters();
    parameters.push(("limit", limit.to_string()));
    if offset > 0 {
        parameters.push(("offset", offset.to_string()));
    }
    parameters
}
