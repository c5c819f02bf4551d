//! An installation of processes on servers that undergoes faults while questions are asked all the
//! time.

use std::collections::VecDeque;
use std::ops::RangeInclusive;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rand::rngs::SmallRng;
use rand::seq::IteratorRandom;
use rand::{Rng, SeedableRng};
use schemas::source::Source;
use serde_json::{Value, json};
use tests::boards::BoardHistory;
use tests::http::Client;
use tests::installation::Installation;
use tests::play_queries::{PlayGenerator, PlayQuery, check_random_query, position_of};
use tests::process::{CONFIG, Process, Server, run, run_ok};
use tests::recount::Lines;
use tests::servers::Addresses;
use tests::world::World;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

/// No request takes longer, even if a server hangs.
const CHECK_TIMEOUT: Duration = Duration::from_secs(20);
/// All ingested data is counted by then.
const SETTLE_MAX: Duration = Duration::from_secs(90);
const PAUSE: Duration = Duration::from_millis(100);
/// Pause between questions, to leave time for other processes.
const ASK_PAUSE: Duration = Duration::from_millis(300);
const QUESTIONS: usize = 8;
/// The number of recent questions that may be repeated.
const REPEATED_MAX: usize = 6;

/// Short timeouts, so that much happens in a short time.
const SHORT_TIMEOUTS: &str = "
kafka.request_timeout_ms = 3000
kafka.delivery_timeout_ms = 6000
kafka.session_timeout_ms = 6000
redis.connect_timeout_ms = 1000
redis.response_timeout_ms = 1000
redis.call_timeout_ms = 3000
cassandra.connect_timeout_ms = 1500
cassandra.request_timeout_ms = 2000
cassandra.retry_timeout_ms = 4000
database.connect_timeout_ms = 1000
database.request_timeout_ms = 2000
database.retry_timeout_ms = 3000
database.dump_timeout_ms = 3000
s3.connect_timeout_ms = 1000
s3.request_timeout_ms = 3000
s3.retry_timeout_ms = 4000
";

/// Small steps.
const SMALL_STEPS: &str = "
cassandra.lease_ms = 8000
speed.records_max = 20
speed.groups_max = 5
speed.look_interval_ms = 800
speed.poll_interval_ms = 400
batch.grace_ms = 100
batch.roll_wait_ms = 5000
batch.archive_rows_max = 300
batch.task_rows_max = 200
batch.snapshot_rows_max = 40
batch.publish_rows = 60
";

/// The configuration of processes that undergo faults.
const PROXIED_CONFIG: &str = "proxied.toml";
/// The configuration of one process with other settings.
const OTHER_CONFIG: &str = "other.toml";

/// The addresses of the servers.
#[derive(Debug, Clone, Default)]
pub(super) struct Setting {
    /// Addresses without proxies, for the test and for processes without faults.
    pub(super) direct: Addresses,
    /// Addresses for all other processes.
    pub(super) proxied: Addresses,
    /// The API uses `proxied`.
    pub(super) api_uses_proxies: bool,
    /// Timeouts are long, for tests without faults of servers.
    pub(super) has_long_timeouts: bool,
}

impl Setting {
    /// The servers that all tests share, without faults, and an archive in the data folder, since
    /// the local S3 server is slow.
    pub(super) fn shared_servers() -> Self {
        let addresses = Addresses {
            s3: None,
            ..Addresses::default()
        };
        Self {
            direct: addresses.clone(),
            proxied: addresses,
            has_long_timeouts: true,
            ..Self::default()
        }
    }

    fn lines(&self) -> String {
        let timeouts = if self.has_long_timeouts {
            ""
        } else {
            SHORT_TIMEOUTS
        };
        format!("{timeouts}{SMALL_STEPS}")
    }
}

/// The installation.
#[derive(Debug)]
pub(super) struct Scene {
    pub(super) installation: Installation,
    pub(super) world: World,
    pub(super) server: Server,
    pub(super) play_generator: PlayGenerator,
    pub(super) board_history: BoardHistory,
    pub(super) rng: SmallRng,
    questioner: Questioner,
    files: u32,
    setting: Box<Setting>,
}

impl Scene {
    /// Starts an installation that has counted some events, serves, and is asked questions.
    pub(super) async fn begin(setting: &Setting, seed: u64) -> Self {
        let lines = setting.lines();
        let installation = Installation::with_addresses(&setting.direct, &lines);
        installation.configure(PROXIED_CONFIG, &setting.proxied, &lines);
        let world = installation.world().await;
        let config = if setting.api_uses_proxies {
            PROXIED_CONFIG
        } else {
            CONFIG
        };
        let server = Server::start_with(installation.data(), config, &[]);
        let questioner = Questioner::start(server.client.clone(), seed);
        let mut scene = Self {
            installation,
            world,
            server,
            play_generator: PlayGenerator::new(seed),
            board_history: BoardHistory::new(seed),
            rng: SmallRng::seed_from_u64(seed),
            questioner,
            files: 0,
            setting: Box::new(setting.clone()),
        };
        scene.ingest_plays(200).await;
        scene.ingest_rows(6).await;
        scene.catch_up().await;
        scene
    }

    /// Ingests plays.
    pub(super) async fn ingest_plays(&mut self, count: usize) {
        let lines = self.play_generator.lines(count);
        self.world.ingest(&lines).await;
    }

    /// Writes plays to a file.
    pub(super) fn write_plays(&mut self, count: usize) -> String {
        self.files += 1;
        let file = self
            .installation
            .folder()
            .join(format!("{}.jsonl", self.files));
        std::fs::write(&file, self.play_generator.lines(count).join("\n")).expect("a file");
        file.to_string_lossy().into_owned()
    }

    /// Ingests rows of entities.
    pub(super) async fn ingest_rows(&mut self, times: usize) {
        for _ in 0..times {
            self.board_history.ingest(&self.world).await;
        }
    }

    /// Starts a command in the background that may undergo faults.
    pub(super) fn start(&self, args: &[&str]) -> Process {
        Process::start_with(self.installation.data(), PROXIED_CONFIG, args)
    }

    /// Starts a command in the background with another setting: `NAME = VALUE`.
    pub(super) fn start_with_setting(&self, line: &str, args: &[&str]) -> Process {
        let name = line.split('=').next().unwrap_or_default();
        let lines = self.setting.lines();
        let others = lines.lines().filter(|other| !other.starts_with(name));
        let lines: Vec<&str> = others.chain([line, ""]).collect();
        let proxied = &self.setting.proxied;
        self.installation
            .configure(OTHER_CONFIG, proxied, &lines.join("\n"));
        Process::start_with(self.installation.data(), OTHER_CONFIG, args)
    }

    /// Starts a worker that runs until it is stopped.
    pub(super) fn worker(&self) -> Process {
        self.start(&["speed", "--json", "--log-level", "info"])
    }

    /// Runs a process until everything is counted, and expects complete answers from then on.
    pub(super) async fn catch_up(&mut self) {
        run_ok(self.installation.data(), &["speed", "--until-caught-up"]);
        self.expect_complete().await;
    }

    /// Waits until a worker has counted everything, and expects complete answers from then on.
    pub(super) async fn settle(&mut self) {
        let started = Instant::now();
        while !self.is_all_counted().await {
            assert!(
                started.elapsed() < SETTLE_MAX,
                "some records are not counted"
            );
            tokio::time::sleep(PAUSE).await;
        }
        self.expect_complete().await;
    }

    async fn expect_complete(&mut self) {
        self.world.mark_live_restored();
        self.board_history.mark_published(&self.world).await;
    }

    async fn is_all_counted(&self) -> bool {
        for source in Source::LOGGED {
            if self.lag(source).await != Some(0) {
                return false;
            }
        }
        true
    }

    /// The lag of live state in records, or `None` if a partition has no state.
    pub(super) async fn lag(&self, source: Source) -> Option<i64> {
        let spans = self.world.stores.log.spans(source.topic()).await.ok()?;
        let next_offsets = self.next_offsets(source, spans.len()).await?;
        Some(
            spans
                .iter()
                .zip(next_offsets)
                .map(|(span, next)| span.end - next)
                .sum(),
        )
    }

    /// The next offset of live state, by partition.
    pub(super) async fn next_offsets(&self, source: Source, partitions: usize) -> Option<Vec<i64>> {
        let partitions = u32::try_from(partitions).expect("few partitions");
        let live = &self.world.stores.live;
        let states = live
            .read_deltas(source, partitions, &[])
            .await
            .ok()?
            .partition_states;
        let next = |state: &Option<schemas::seam::PartitionState>| {
            Some(state.as_ref()?.position.next_offset)
        };
        states.iter().map(next).collect()
    }

    /// The number of counted records of plays.
    pub(super) async fn counted_plays(&self) -> i64 {
        let topic = Source::Plays.topic();
        let spans = self.world.stores.log.spans(topic).await.expect("the log");
        let next_offsets = self.next_offsets(Source::Plays, spans.len()).await;
        next_offsets.expect("live state").iter().sum()
    }

    /// Runs a batch, and retries while the lease of a killed run lasts.
    pub(super) async fn run_batch(&self, extra_args: &[&str]) {
        let args = [&["batch", "run"], extra_args].concat();
        for _ in 0..120 {
            let output = run(self.installation.data(), &args);
            let message = String::from_utf8_lossy(&output.stderr).into_owned();
            if output.status.success() {
                return;
            }
            // A busy machine may be too slow for such a short lease, or for a server that has just
            // restarted.
            let is_retryable = ["a batch run is under way", "lease", "try again later"]
                .iter()
                .any(|reason| message.contains(reason));
            assert!(is_retryable, "{message}");
            tokio::time::sleep(Duration::from_millis(500)).await;
        }
        panic!("the lease of a run that was killed does not end");
    }

    /// Asks questions about rows while other work continues.
    pub(super) async fn ask_rows(&mut self, questions: usize) {
        self.world.disturb();
        for _ in 0..questions {
            let client = &self.server.client;
            self.board_history
                .check_random_query(&self.world, client, &mut self.rng)
                .await;
        }
    }

    /// Waits until several consecutive questions are answered completely.
    pub(super) async fn wait_complete_answers(&self) {
        let started = Instant::now();
        let mut since = self.answer_counts();
        loop {
            assert!(started.elapsed() < SETTLE_MAX, "no answers: {since:?}");
            tokio::time::sleep(PAUSE).await;
            let counts = self.answer_counts();
            if (counts.earlier, counts.refused) != (since.earlier, since.refused) {
                since = counts;
            } else if counts.complete >= since.complete + 10 {
                return;
            }
        }
    }

    /// Waits until an answer states an earlier position, so that a client sees an incomplete
    /// answer.
    pub(super) async fn wait_earlier_answer(&self, since: Counts) {
        let started = Instant::now();
        while self.answer_counts().earlier == since.earlier {
            let refused = lock(&self.questioner.answer_log).refused.last().cloned();
            assert!(
                started.elapsed() < SETTLE_MAX,
                "no answer of an earlier position: {since:?}, {:?}, {refused:?}",
                self.answer_counts()
            );
            tokio::time::sleep(PAUSE).await;
        }
    }

    /// Asks at rest: each answer includes everything.
    pub(super) async fn compare(&mut self) {
        for _ in 0..QUESTIONS {
            check_random_query(&self.world, &self.server.client, &mut self.rng).await;
            self.board_history
                .check_at_rest(&self.server.client, &mut self.rng)
                .await;
        }
    }

    /// The number of questions that have been answered or refused so far.
    pub(super) fn answer_counts(&self) -> Counts {
        lock(&self.questioner.answer_log).counts()
    }

    /// Stops the questions and returns the answers.
    pub(super) async fn stop_questions(self) -> AnswerLog {
        self.questioner.end().await
    }

    /// Compares at rest, again after batch runs, and checks all answers so far.
    pub(super) async fn end(mut self) -> AnswerLog {
        self.compare().await;
        self.run_batch(&[]).await;
        self.compare().await;
        self.run_batch(&["--full"]).await;
        self.compare().await;
        let answer_log = self.questioner.end().await;
        answer_log.check(&Lines::parse(&self.world.raw_log().await));
        answer_log
    }
}

/// Numbers of answers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Counts {
    /// Complete answers.
    pub(super) complete: usize,
    /// Answers that state an earlier position.
    pub(super) earlier: usize,
    /// Refused questions.
    pub(super) refused: usize,
}

/// The answers to all questions.
#[derive(Debug, Default)]
pub(super) struct AnswerLog {
    answers: Vec<(PlayQuery, Value)>,
    refused: Vec<String>,
    /// Ranges of answers during which live state fell back to an earlier state.
    reset_ranges: Vec<RangeInclusive<usize>>,
    /// Ranges of answers during which the stored data of these owners was damaged.
    damaged: Vec<(RangeInclusive<usize>, Vec<i64>)>,
}

impl AnswerLog {
    pub(super) fn counts(&self) -> Counts {
        let complete = |(_, answer): &&(PlayQuery, Value)| is_complete(answer);
        let complete = self.answers.iter().filter(complete).count();
        Counts {
            complete,
            earlier: self.answers.len() - complete,
            refused: self.refused.len(),
        }
    }

    /// Checks that each answer is exact for its position, and that the positions of complete
    /// answers never decrease.
    pub(super) fn check(&self, lines: &Lines) {
        let mut previous: Vec<i64> = Vec::new();
        let mut recounted = None;
        for (index, (query, answer)) in self.answers.iter().enumerate() {
            let position = position_of(answer);
            if self.reset_ranges.iter().any(|range| range.contains(&index)) {
                previous.clear();
            }
            if is_complete(answer) {
                let is_monotonic = previous
                    .iter()
                    .zip(&position)
                    .all(|(earlier, later)| earlier <= later);
                assert!(
                    is_monotonic,
                    "{}: {previous:?} was answered before: {answer}",
                    query.path
                );
                previous.clone_from(&position);
            }
            let mut damaged = self.damaged.iter();
            if damaged.any(|(range, owners)| range.contains(&index) && query.may_match(owners)) {
                continue;
            }
            let truth = match recounted.take() {
                Some((recounted_position, truth)) if recounted_position == position => truth,
                _ => lines.until(&position),
            };
            query.check(answer, &truth);
            recounted = Some((position, truth));
        }
    }
}

fn is_complete(answer: &Value) -> bool {
    answer["provenance"]["complete"] == json!(true)
}

fn record_answer(answer_log: &mut AnswerLog, query: PlayQuery, status: u16, body: &str) {
    match status {
        200 => {
            let answer = serde_json::from_str(body).expect("JSON");
            answer_log.answers.push((query, answer));
        }
        503 => answer_log.refused.push(body.to_owned()),
        // Nothing has been counted yet.
        404 if answer_log.answers.is_empty() => {}
        _ => panic!("{}: {status} {body}", query.path),
    }
}

fn lock(answer_log: &Mutex<AnswerLog>) -> MutexGuard<'_, AnswerLog> {
    answer_log.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Asks questions all the time.
#[derive(Debug)]
struct Questioner {
    answer_log: Arc<Mutex<AnswerLog>>,
    stop: CancellationToken,
    task: JoinHandle<()>,
}

impl Questioner {
    fn start(client: Client, seed: u64) -> Self {
        let answer_log = Arc::<Mutex<AnswerLog>>::default();
        let stop = CancellationToken::new();
        let (log, stopped) = (Arc::clone(&answer_log), stop.clone());
        #[expect(
            clippy::disallowed_methods,
            reason = "it is awaited at the scene's end"
        )]
        let task = tokio::spawn(async move {
            let mut rng = SmallRng::seed_from_u64(seed ^ 0x5eed);
            let mut recent: VecDeque<PlayQuery> = VecDeque::new();
            while !stopped.is_cancelled() {
                // Clients repeat questions.
                let query = match recent.iter().choose(&mut rng) {
                    Some(query) if recent.len() == REPEATED_MAX && rng.random() => query.clone(),
                    _ => PlayQuery::random_over_both_layers(&mut rng),
                };
                let (requester, path) = (client.clone(), query.path.clone());
                let started = Instant::now();
                let answer = tokio::task::spawn_blocking(move || requester.get(&path)).await;
                let (status, body) = answer.expect("an answer");
                assert!(
                    started.elapsed() < CHECK_TIMEOUT,
                    "{}: {:?}",
                    query.path,
                    started.elapsed()
                );
                if status == 200 {
                    recent.push_back(query.clone());
                    if recent.len() > REPEATED_MAX {
                        recent.pop_front();
                    }
                }
                record_answer(&mut lock(&log), query, status, &body);
                tokio::time::sleep(ASK_PAUSE).await;
            }
        });
        Self {
            answer_log,
            stop,
            task,
        }
    }

    async fn end(self) -> AnswerLog {
        self.stop.cancel();
        self.task.await.expect("the questioner does not panic");
        std::mem::take(&mut *lock(&self.answer_log))
    }
}

impl Scene {
    /// Records that live state fell back to an earlier state after these answers; positions may
    /// decrease once.
    pub(super) fn mark_live_reset(&self, first: Counts) {
        self.world.mark_live_reset();
        let mut answer_log = lock(&self.questioner.answer_log);
        let (first, end) = (first.complete + first.earlier, answer_log.answers.len());
        // One answer may be in flight.
        answer_log.reset_ranges.push(first..=end + 1);
    }

    /// Records that the stored data of these owners was damaged after these answers, and is
    /// repaired.
    pub(super) fn record_damage(&self, first: Counts, owners: &[i64]) {
        self.world.mark_live_damaged();
        let mut answer_log = lock(&self.questioner.answer_log);
        let (first, end) = (first.complete + first.earlier, answer_log.answers.len());
        answer_log.damaged.push((first..=end + 1, owners.to_vec()));
    }
}
