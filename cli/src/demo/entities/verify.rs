//! Asking about boards and applications, and comparing each answer with the recount.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use jiff::civil::Date;
use jiff::tz::TimeZone;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use schemas::clock::Clock;
use schemas::source::Source;
use serde_json::{Value, json};
use stores::canon::CanonRead;
use stores::log::LogRead;
use tokio::time::Instant;

use super::compare::{reaches, same, same_but_for, same_entries};
use super::question::{Asked, BOARDS, Window};
use super::recount::{Entry, board, counts};
use super::rows::Rows;
use super::{Ids, Ledger};
use crate::demo::client::{Answered, Client, Parameters};
use crate::demo::findings::Findings;
use crate::installation::Installation;
use crate::roles::BatchWatch;

/// Questions each time that the traffic is held up.
const QUESTIONS_PER_STEP: usize = 8;
/// Boards that are asked for before that, while it goes on.
const IN_MOTION_PER_STEP: usize = 3;
/// The traffic goes on for so long.
const EVERY: Duration = Duration::from_millis(800);
/// Of each segment: pages and athletes on any board at the end.
const ANY_AT_THE_END: usize = 12;
/// Places of a page, at most: no segment has so many athletes.
const PLACES_MAX: usize = 1_000;
/// How long the speed layer may take to catch up.
const CATCH_UP: Duration = Duration::from_secs(60);

/// Asks and compares.
#[derive(Debug)]
pub(in crate::demo) struct EntityVerifier {
    client: Client,
    ledger: Arc<Ledger>,
    log: Arc<dyn LogRead>,
    canon: Arc<dyn CanonRead>,
    clock: Arc<dyn Clock>,
    ids: Ids,
    rng: StdRng,
    findings: Findings,
    /// Where the logs of efforts and of authorizations end.
    ends: [Vec<i64>; 2],
    asked_at: Instant,
    /// Boards as they were then.
    then: Vec<(Asked, Vec<Entry>)>,
}

impl EntityVerifier {
    pub(in crate::demo) fn new(
        installation: &Installation,
        client: Client,
        ids: Ids,
        seed: u64,
        ledger: Arc<Ledger>,
    ) -> Self {
        Self {
            client,
            ledger,
            log: Arc::clone(&installation.stores().log) as _,
            canon: Arc::clone(&installation.stores().canon) as _,
            clock: Arc::clone(installation.clock()),
            ids,
            rng: StdRng::seed_from_u64(seed),
            findings: Findings::default(),
            ends: [Vec::new(), Vec::new()],
            asked_at: Instant::now(),
            then: Vec::new(),
        }
    }

    pub(in crate::demo) const fn findings(&self) -> &Findings {
        &self.findings
    }

    /// Now and then asks some questions, then holds the traffic up and asks some more.
    pub(in crate::demo) async fn ask_some(&mut self, watch: &BatchWatch) -> anyhow::Result<()> {
        if self.asked_at.elapsed() < EVERY {
            return Ok(());
        }
        let mut in_motion = Vec::new();
        for (asked, before) in std::mem::take(&mut self.then) {
            let parameters = whole_board(&asked);
            let path = asked.path();
            let answered = self.client.whole(&path, &parameters).await?;
            in_motion.push((path, parameters, before, answered));
        }
        let ledger = Arc::clone(&self.ledger);
        let mut rows = ledger.lock().await;
        for (path, parameters, before, answered) in in_motion {
            self.findings.compared(watch.is_under_way());
            let of = (Source::Efforts, 200);
            self.judge((&path, &parameters), of, &answered, |body| {
                same_but_for(&rows.touched, &before, body)
            });
        }
        let held_at = Instant::now();
        if self.catch_up().await? {
            tracing::debug!(elapsed = ?held_at.elapsed(), "all rows are counted");
            self.ask_at_rest(&rows, watch).await?;
            for _ in 0..IN_MOTION_PER_STEP {
                let mut asked = Asked::any(self.ids, &rows, self.today()?, &mut self.rng);
                (asked.club, asked.following) = (None, None);
                let before = board(&rows, &asked);
                self.then.push((asked, before));
            }
            rows.touched.clear();
        }
        self.asked_at = Instant::now();
        Ok(())
    }

    async fn ask_at_rest(&mut self, rows: &Rows, watch: &BatchWatch) -> anyhow::Result<()> {
        for _ in 0..QUESTIONS_PER_STEP {
            let asked = Asked::any(self.ids, rows, self.today()?, &mut self.rng);
            self.ask_any(rows, &asked, watch).await?;
        }
        let segment = self.ids.segments().choose(&mut self.rng);
        self.ask_counts(rows, segment, watch).await?;
        let application = self.ids.applications().choose(&mut self.rng);
        self.ask_application(rows, application, watch).await
    }

    /// Asks about every board of every segment, and about every application. The traffic must have
    /// ended. Each board is compared as a whole for all time and for one year, month or day, which
    /// is another one on the next segment.
    pub(in crate::demo) async fn ask_everything(
        &mut self,
        watch: &BatchWatch,
    ) -> anyhow::Result<()> {
        let ledger = Arc::clone(&self.ledger);
        let rows = ledger.lock().await;
        if !self.catch_up().await? {
            return Ok(());
        }
        let today = self.today()?;
        for segment in self.ids.segments().every() {
            self.ask_counts(&rows, segment, watch).await?;
            for (board, window) in boards_at_the_end(segment) {
                let mut asked = Asked::overall(segment);
                (asked.board, asked.window, asked.date) = (board, window, today);
                self.ask_page(&rows, &asked, (0, PLACES_MAX), watch).await?;
            }
            for _ in 0..ANY_AT_THE_END {
                let asked = Asked::any(self.ids, &rows, today, &mut self.rng);
                let asked = Asked { segment, ..asked };
                self.ask_any(&rows, &asked, watch).await?;
            }
        }
        for application in self.ids.applications().every() {
            self.ask_application(&rows, application, watch).await?;
        }
        self.ask_applications(&rows, watch).await
    }

    /// How many changes the log was not told of.
    async fn waiting(&self) -> anyhow::Result<u64> {
        let mut waiting = 0;
        for source in Source::LOGGED {
            waiting += self.canon.waiting(source).await?.notifications;
        }
        Ok(waiting)
    }

    /// Waits until everything was counted that is told of now; answers false if that takes too long.
    async fn catch_up(&mut self) -> anyhow::Result<bool> {
        let begun = Instant::now();
        let segment = self.ids.segments().first();
        let application = self.ids.applications().first();
        let probes = [
            format!("/api/v1/segments/{segment}/counts"),
            format!("/api/v1/applications/{application}"),
        ];
        while self.waiting().await? > 0 {
            if begun.elapsed() > CATCH_UP {
                let what = "changes stay in the outbox of the canonical store";
                self.findings.differs(what.to_owned());
                return Ok(false);
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        for (index, source) in [Source::Efforts, Source::Authorizations]
            .into_iter()
            .enumerate()
        {
            let spans = self.log.spans(source.topic()).await?;
            let ends: Vec<i64> = spans.iter().map(|span| span.end).collect();
            while let (_, body) = self.client.whole(&probes[index], &Vec::new()).await?
                && !reaches(&body, source, &ends)
            {
                if begun.elapsed() > CATCH_UP {
                    self.findings.differs(format!(
                        "{source}: the speed layer has not reached {ends:?}: {body}"
                    ));
                    return Ok(false);
                }
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
            self.ends[index] = ends;
        }
        Ok(true)
    }

    fn today(&self) -> anyhow::Result<Date> {
        let now = Timestamp::from_millisecond(self.clock.now_ms())?;
        Ok(now.to_zoned(TimeZone::UTC).date())
    }

    /// Asks for some page of a board, or for some athlete's place on it.
    async fn ask_any(
        &mut self,
        rows: &Rows,
        asked: &Asked,
        watch: &BatchWatch,
    ) -> anyhow::Result<()> {
        if self.rng.random_bool(0.5) {
            let places = board(rows, asked).len() + 2;
            let offset = self.rng.random_range(0..places);
            let limit = self.rng.random_range(1..=places);
            return self.ask_page(rows, asked, (offset, limit), watch).await;
        }
        let athlete = self.ids.athletes().choose_low(&mut self.rng);
        let around = self.rng.random_range(0..8);
        self.ask_place(rows, asked, (athlete, around), watch).await
    }

    async fn ask_page(
        &mut self,
        rows: &Rows,
        asked: &Asked,
        (offset, limit): (usize, usize),
        watch: &BatchWatch,
    ) -> anyhow::Result<()> {
        let mut parameters = asked.parameters();
        parameters.push(("limit", limit.to_string()));
        if offset > 0 {
            parameters.push(("offset", offset.to_string()));
        }
        let all = board(rows, asked);
        let page: Vec<Entry> = all.iter().skip(offset).take(limit).cloned().collect();
        self.ask(
            &asked.path(),
            &parameters,
            (Source::Efforts, 200),
            watch,
            |body| {
                same("total", &json!(all.len()), body.get("total"))?;
                same_entries("entries", &page, body.get("entries"))
            },
        )
        .await
    }

    async fn ask_place(
        &mut self,
        rows: &Rows,
        asked: &Asked,
        (athlete, around): (i64, usize),
        watch: &BatchWatch,
    ) -> anyhow::Result<()> {
        let mut parameters = asked.parameters();
        parameters.push(("around", around.to_string()));
        let path = format!("{}/athletes/{athlete}", asked.path());
        let all = board(rows, asked);
        let Some(place) = all.iter().position(|entry| entry.athlete == athlete) else {
            return self
                .ask(
                    &path,
                    &parameters,
                    (Source::Efforts, 404),
                    watch,
                    |_| Ok(()),
                )
                .await;
        };
        let before = place.saturating_sub(around);
        let near: Vec<Entry> = all
            .iter()
            .take(place + around + 1)
            .skip(before)
            .cloned()
            .collect();
        let own: Vec<Entry> = all.iter().skip(place).take(1).cloned().collect();
        self.ask(&path, &parameters, (Source::Efforts, 200), watch, |body| {
            same("total", &json!(all.len()), body.get("total"))?;
            let entry = body.get("entry").map(|entry| json!([entry]));
            same_entries("entry", &own, entry.as_ref())?;
            same_entries("neighbours", &near, body.get("neighbours"))
        })
        .await
    }

    async fn ask_counts(
        &mut self,
        rows: &Rows,
        segment: i64,
        watch: &BatchWatch,
    ) -> anyhow::Result<()> {
        let path = format!("/api/v1/segments/{segment}/counts");
        let (efforts, athletes) = counts(rows, segment);
        let of = (Source::Efforts, 200);
        self.ask(&path, &Vec::new(), of, watch, |body| {
            same("efforts", &json!(efforts), body.get("efforts"))?;
            same("athletes", &json!(athletes), body.get("athletes"))
        })
        .await
    }

    async fn ask_application(
        &mut self,
        rows: &Rows,
        id: i64,
        watch: &BatchWatch,
    ) -> anyhow::Result<()> {
        let path = format!("/api/v1/applications/{id}");
        let connected = rows.connected(id).len();
        let application = rows.applications.get(&id).cloned();
        let status = if application.is_some() { 200 } else { 404 };
        let of = (Source::Authorizations, status);
        self.ask(&path, &Vec::new(), of, watch, |body| {
            let Some(application) = application else {
                return Ok(());
            };
            let expected = [
                ("id", json!(id)),
                ("name", json!(application.name)),
                ("owner", application.owner),
                ("connected_athletes", json!(connected)),
                ("athlete_capacity", json!(application.capacity)),
            ];
            expected
                .iter()
                .try_for_each(|(name, value)| same(name, value, body.get(*name)))
        })
        .await
    }

    /// Asks for all applications at once; those of other demos on the same data folder are passed
    /// over.
    async fn ask_applications(&mut self, rows: &Rows, watch: &BatchWatch) -> anyhow::Result<()> {
        let known = rows.applications.keys();
        let expected: Vec<Value> = known
            .map(|id| json!([id, rows.connected(*id).len()]))
            .collect();
        let parameters = vec![("limit", "1000".to_owned())];
        let of = (Source::Authorizations, 200);
        self.ask("/api/v1/applications", &parameters, of, watch, |body| {
            let served = body.get("applications").and_then(Value::as_array);
            let ours = served.into_iter().flatten().filter(|row| {
                let id = row.get("id").and_then(Value::as_i64);
                id.is_some_and(|id| rows.applications.contains_key(&id))
            });
            let ours: Vec<Value> = ours
                .map(|row| json!([row["id"], row["connected_athletes"]]))
                .collect();
            same("applications", &json!(expected), Some(&json!(ours)))
        })
        .await
    }

    /// Asks, and compares what is answered.
    async fn ask(
        &mut self,
        path: &str,
        parameters: &Parameters,
        (source, expected): (Source, u16),
        watch: &BatchWatch,
        compare: impl FnOnce(&Value) -> Result<(), String>,
    ) -> anyhow::Result<()> {
        let before = watch.is_under_way();
        let answered = self.client.whole(path, parameters).await?;
        self.findings.compared(before || watch.is_under_way());
        self.judge((path, parameters), (source, expected), &answered, compare);
        Ok(())
    }

    fn judge(
        &mut self,
        (path, parameters): (&str, &Parameters),
        (source, expected): (Source, u16),
        (status, body): &Answered,
        compare: impl FnOnce(&Value) -> Result<(), String>,
    ) {
        let ends = &self.ends[usize::from(source == Source::Authorizations)];
        let outcome = if *status != expected {
            Err(format!("status {status}, recounted {expected}: {body}"))
        } else if *status != 200 {
            Ok(())
        } else if body.pointer("/provenance/complete") != Some(&json!(true)) {
            Err(format!("the answer is not whole: {body}"))
        } else if reaches(body, source, ends) {
            compare(body)
        } else {
            let provenance = body.get("provenance").unwrap_or(&Value::Null);
            Err(format!("does not reach {ends:?}: {provenance}"))
        };
        if let Err(difference) = outcome {
            self.findings
                .differs(format!("{path} {parameters:?}: {difference}"));
        }
    }
}

/// Everybody in every window; each other board for all time and in one window.
fn boards_at_the_end(segment: i64) -> impl Iterator<Item = (&'static str, Window)> {
    let overall = Window::EVERY.map(|window| ("overall", window));
    let others = (segment..).zip(BOARDS).skip(1).flat_map(|(number, board)| {
        let window = match number.rem_euclid(3) {
            0 => Window::Year,
            1 => Window::Month,
            _ => Window::Day,
        };
        [(board, Window::All), (board, window)]
    });
    overall.into_iter().chain(others)
}

/// The parameters for all places of a board.
fn whole_board(asked: &Asked) -> Parameters {
    let mut parameters = asked.parameters();
    parameters.push(("limit", PLACES_MAX.to_string()));
    parameters
}
