//! An installation of processes on servers to which something happens, with somebody who asks
//! questions all the time.

use std::collections::VecDeque;
use std::ops::RangeInclusive;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rand::rngs::SmallRng;
use rand::seq::IteratorRandom;
use rand::{Rng, SeedableRng};
use schemas::source::Source;
use serde_json::{Value, json};
use tests::boards::Ledger;
use tests::http::Client;
use tests::place::Place;
use tests::process::{CONFIG, Process, Server, done, run};
use tests::questions::{Asked, Traffic, ask_and_compare, position_of};
use tests::recount::Lines;
use tests::servers::Addresses;
use tests::world::World;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

/// No question waits longer for whatever answer, however long a server hangs.
const ANSWER_MAX: Duration = Duration::from_secs(20);
/// Everything that was taken in is counted by then.
const SETTLE_MAX: Duration = Duration::from_secs(90);
const PAUSE: Duration = Duration::from_millis(100);
/// Questions must not be all that the machine does.
const ASK_PAUSE: Duration = Duration::from_millis(300);
const QUESTIONS: usize = 8;
/// So many of the last questions that were answered may be asked again.
const AGAIN_MAX: usize = 6;

/// Little patience with servers, so that much happens in a short time.
const HASTE: &str = "
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

/// And small steps.
const STEPS: &str = "
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

/// The configuration of processes that something is done to.
const THROUGH: &str = "through.toml";
/// That of one process that is told something else.
const OTHER: &str = "other.toml";

/// Where the servers are.
#[derive(Debug, Clone, Default)]
pub(super) struct Setting {
    /// As this process reaches them, and processes of the installation that nothing is done to.
    pub(super) direct: Addresses,
    /// As the other processes do.
    pub(super) through: Addresses,
    /// Whether the API is among these.
    pub(super) serves_through: bool,
    /// Whether servers are waited for: where nothing is done to any of them.
    pub(super) is_patient: bool,
}

impl Setting {
    /// The servers that all tests share, as they are, and an archive in the data folder: nothing is done to S3, and the
    /// server that speaks it here is slow.
    pub(super) fn patient() -> Self {
        let at = Addresses {
            s3: None,
            ..Addresses::default()
        };
        Self {
            direct: at.clone(),
            through: at,
            is_patient: true,
            ..Self::default()
        }
    }

    fn lines(&self) -> String {
        let haste = if self.is_patient { "" } else { HASTE };
        format!("{haste}{STEPS}")
    }
}

/// The installation.
#[derive(Debug)]
pub(super) struct Scene {
    pub(super) place: Place,
    pub(super) world: World,
    pub(super) server: Server,
    pub(super) traffic: Traffic,
    pub(super) ledger: Ledger,
    pub(super) rng: SmallRng,
    asker: Asker,
    files: u32,
    setting: Box<Setting>,
}

impl Scene {
    /// An installation that has counted a little, is served and asked.
    pub(super) async fn begin(setting: &Setting, seed: u64) -> Self {
        let lines = setting.lines();
        let place = Place::on_these(&setting.direct, &lines);
        place.configure(THROUGH, &setting.through, &lines);
        let world = place.world().await;
        let config = if setting.serves_through {
            THROUGH
        } else {
            CONFIG
        };
        let server = Server::start_with(place.data(), config, &[]);
        let asker = Asker::start(server.client.clone(), seed);
        let mut scene = Self {
            place,
            world,
            server,
            traffic: Traffic::new(seed),
            ledger: Ledger::new(seed),
            rng: SmallRng::seed_from_u64(seed),
            asker,
            files: 0,
            setting: Box::new(setting.clone()),
        };
        scene.take_plays(200).await;
        scene.take_rows(6).await;
        scene.catch_up().await;
        scene
    }

    /// Takes plays in.
    pub(super) async fn take_plays(&mut self, count: usize) {
        let lines = self.traffic.lines(count);
        self.world.ingest(&lines).await;
    }

    /// Writes plays to a file.
    pub(super) fn write_plays(&mut self, count: usize) -> String {
        self.files += 1;
        let file = self.place.folder().join(format!("{}.jsonl", self.files));
        std::fs::write(&file, self.traffic.lines(count).join("\n")).expect("a file");
        file.to_string_lossy().into_owned()
    }

    /// Takes rows of entities in.
    pub(super) async fn take_rows(&mut self, times: usize) {
        for _ in 0..times {
            self.ledger.ingest(&self.world).await;
        }
    }

    /// Starts a command in the background, which something may be done to.
    pub(super) fn start(&self, args: &[&str]) -> Process {
        Process::start_with(self.place.data(), THROUGH, args)
    }

    /// Starts a command in the background that is told something else than the others: `NAME = VALUE`.
    pub(super) fn start_told(&self, line: &str, args: &[&str]) -> Process {
        let name = line.split('=').next().unwrap_or_default();
        let lines = self.setting.lines();
        let others = lines.lines().filter(|other| !other.starts_with(name));
        let lines: Vec<&str> = others.chain([line, ""]).collect();
        let through = &self.setting.through;
        self.place.configure(OTHER, through, &lines.join("\n"));
        Process::start_with(self.place.data(), OTHER, args)
    }

    /// Starts a worker that goes on until it is ended.
    pub(super) fn worker(&self) -> Process {
        self.start(&["speed", "--json", "--log-level", "info"])
    }

    /// Lets a process count everything, and expects strict answers from then on.
    pub(super) async fn catch_up(&mut self) {
        done(self.place.data(), &["speed", "--until-caught-up"]);
        self.is_settled().await;
    }

    /// Waits until a worker has counted everything, and expects strict answers from then on.
    pub(super) async fn settle(&mut self) {
        let begun = Instant::now();
        while !self.is_counted().await {
            assert!(begun.elapsed() < SETTLE_MAX, "not everything is counted");
            tokio::time::sleep(PAUSE).await;
        }
        self.is_settled().await;
    }

    async fn is_settled(&mut self) {
        self.world.live_is_back();
        self.ledger.all_told(&self.world).await;
    }

    async fn is_counted(&self) -> bool {
        for source in Source::LOGGED {
            if self.behind(source).await != Some(0) {
                return false;
            }
        }
        true
    }

    /// How many records live state is behind the log; nothing if there is none of a partition.
    pub(super) async fn behind(&self, source: Source) -> Option<i64> {
        let spans = self.world.stores.log.spans(source.topic()).await.ok()?;
        let counted = self.counted(source, spans.len()).await?;
        Some(
            spans
                .iter()
                .zip(counted)
                .map(|(span, next)| span.end - next)
                .sum(),
        )
    }

    /// By partition: up to where live state has counted.
    pub(super) async fn counted(&self, source: Source, partitions: usize) -> Option<Vec<i64>> {
        let partitions = u32::try_from(partitions).expect("few partitions");
        let live = &self.world.stores.live;
        let slots = live
            .read_deltas(source, partitions, &[])
            .await
            .ok()?
            .partition_states;
        let next = |slot: &Option<schemas::seam::PartitionState>| {
            Some(slot.as_ref()?.position.next_offset)
        };
        slots.iter().map(next).collect()
    }

    /// The records of plays that live state has counted.
    pub(super) async fn plays_counted(&self) -> i64 {
        let topic = Source::Plays.topic();
        let spans = self.world.stores.log.spans(topic).await.expect("the log");
        let counted = self.counted(Source::Plays, spans.len()).await;
        counted.expect("live state").iter().sum()
    }

    /// A batch run, once nobody else does one: the lease of one that was killed lasts a while.
    pub(super) async fn run_batch(&self, more: &[&str]) {
        let args = [&["batch", "run"], more].concat();
        for _ in 0..120 {
            let output = run(self.place.data(), &args);
            let said = String::from_utf8_lossy(&output.stderr).into_owned();
            if output.status.success() {
                return;
            }
            // A busy machine may be too slow for a lease that is so short, and for a server that has only
            // just started again.
            let again = ["a batch run is under way", "lease", "try again later"]
                .iter()
                .any(|why| said.contains(why));
            assert!(again, "{said}");
            tokio::time::sleep(Duration::from_millis(500)).await;
        }
        panic!("the lease of a run that was killed does not end");
    }

    /// Asks about rows in the midst of things.
    pub(super) async fn ask_rows(&mut self, questions: usize) {
        self.world.disturb();
        for _ in 0..questions {
            let client = &self.server.client;
            self.ledger.ask(&self.world, client, &mut self.rng).await;
        }
    }

    /// Waits until questions are answered as always again: several in a row.
    pub(super) async fn answers_again(&self) {
        let begun = Instant::now();
        let mut since = self.heard();
        loop {
            assert!(begun.elapsed() < SETTLE_MAX, "no answers: {since:?}");
            tokio::time::sleep(PAUSE).await;
            let now = self.heard();
            if (now.earlier, now.refused) != (since.earlier, since.refused) {
                since = now;
            } else if now.complete >= since.complete + 10 {
                return;
            }
        }
    }

    /// Waits until a question is answered as it was before: so that somebody hears that it is not complete.
    pub(super) async fn answers_of_before(&self, since: Counts) {
        let begun = Instant::now();
        while self.heard().earlier == since.earlier {
            let refused = lock(&self.asker.heard).refused.last().cloned();
            assert!(
                begun.elapsed() < SETTLE_MAX,
                "no answers of before: {since:?}, {:?}, {refused:?}",
                self.heard()
            );
            tokio::time::sleep(PAUSE).await;
        }
    }

    /// Asks at rest: everything that was counted is in each answer.
    pub(super) async fn compare(&mut self) {
        for _ in 0..QUESTIONS {
            ask_and_compare(&self.world, &self.server.client, &mut self.rng).await;
            self.ledger
                .ask_at_rest(&self.server.client, &mut self.rng)
                .await;
        }
    }

    /// Questions that have been answered or refused so far.
    pub(super) fn heard(&self) -> Counts {
        lock(&self.asker.heard).counts()
    }

    /// Ends what asks questions, and answers what it heard.
    pub(super) async fn heard_until_now(self) -> Heard {
        self.asker.end().await
    }

    /// Compares at rest, again after runs of the batch layer, and what was heard all the time.
    pub(super) async fn end(mut self) -> Heard {
        self.compare().await;
        self.run_batch(&[]).await;
        self.compare().await;
        self.run_batch(&["--full"]).await;
        self.compare().await;
        let heard = self.asker.end().await;
        heard.check(&Lines::of(&self.world.raw_log().await));
        heard
    }
}

/// How many answers there were.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Counts {
    /// That hold everything.
    pub(super) complete: usize,
    /// That say that they are of an earlier position.
    pub(super) earlier: usize,
    /// None.
    pub(super) refused: usize,
}

/// What the asker heard.
#[derive(Debug, Default)]
pub(super) struct Heard {
    answers: Vec<(Asked, Value)>,
    refused: Vec<String>,
    /// While these were given, live state fell back to an earlier state of itself.
    fell_back: Vec<RangeInclusive<usize>>,
    /// While these were given, what was stored of these owners was damaged.
    damaged: Vec<(RangeInclusive<usize>, Vec<i64>)>,
}

impl Heard {
    pub(super) fn counts(&self) -> Counts {
        let complete = |(_, answer): &&(Asked, Value)| is_complete(answer);
        let complete = self.answers.iter().filter(complete).count();
        Counts {
            complete,
            earlier: self.answers.len() - complete,
            refused: self.refused.len(),
        }
    }

    /// That each answer is exact for its position, and that those that call themselves complete never
    /// go back.
    pub(super) fn check(&self, lines: &Lines) {
        let mut before: Vec<i64> = Vec::new();
        let mut recounted = None;
        for (index, (asked, answer)) in self.answers.iter().enumerate() {
            let position = position_of(answer);
            if self.fell_back.iter().any(|range| range.contains(&index)) {
                before.clear();
            }
            if is_complete(answer) {
                let goes_on = before.iter().zip(&position).all(|(then, now)| then <= now);
                assert!(
                    goes_on,
                    "{}: {before:?} was answered before: {answer}",
                    asked.path
                );
                before.clone_from(&position);
            }
            let mut damaged = self.damaged.iter();
            if damaged.any(|(range, owners)| range.contains(&index) && asked.is_of(owners)) {
                continue;
            }
            let truth = match recounted.take() {
                Some((of, truth)) if of == position => truth,
                _ => lines.until(&position),
            };
            asked.check(answer, &truth);
            recounted = Some((position, truth));
        }
    }
}

fn is_complete(answer: &Value) -> bool {
    answer["provenance"]["complete"] == json!(true)
}

fn note(heard: &mut Heard, asked: Asked, status: u16, body: &str) {
    match status {
        200 => {
            let answer = serde_json::from_str(body).expect("JSON");
            heard.answers.push((asked, answer));
        }
        503 => heard.refused.push(body.to_owned()),
        // Nothing has been counted yet.
        404 if heard.answers.is_empty() => {}
        _ => panic!("{}: {status} {body}", asked.path),
    }
}

fn lock(heard: &Mutex<Heard>) -> MutexGuard<'_, Heard> {
    heard.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Asks questions all the time.
#[derive(Debug)]
struct Asker {
    heard: Arc<Mutex<Heard>>,
    stop: CancellationToken,
    task: JoinHandle<()>,
}

impl Asker {
    fn start(client: Client, seed: u64) -> Self {
        let heard = Arc::<Mutex<Heard>>::default();
        let stop = CancellationToken::new();
        let (into, until) = (Arc::clone(&heard), stop.clone());
        #[expect(
            clippy::disallowed_methods,
            reason = "it is awaited at the scene's end"
        )]
        let task = tokio::spawn(async move {
            let mut rng = SmallRng::seed_from_u64(seed ^ 0x5eed);
            let mut before: VecDeque<Asked> = VecDeque::new();
            while !until.is_cancelled() {
                // People ask again what was answered.
                let asked = match before.iter().choose(&mut rng) {
                    Some(asked) if before.len() == AGAIN_MAX && rng.random() => asked.clone(),
                    _ => Asked::make_up_of_both(&mut rng),
                };
                let (asker, path) = (client.clone(), asked.path.clone());
                let begun = Instant::now();
                let answer = tokio::task::spawn_blocking(move || asker.get(&path)).await;
                let (status, body) = answer.expect("an answer");
                assert!(
                    begun.elapsed() < ANSWER_MAX,
                    "{}: {:?}",
                    asked.path,
                    begun.elapsed()
                );
                if status == 200 {
                    before.push_back(asked.clone());
                    if before.len() > AGAIN_MAX {
                        before.pop_front();
                    }
                }
                note(&mut lock(&into), asked, status, &body);
                tokio::time::sleep(ASK_PAUSE).await;
            }
        });
        Self { heard, stop, task }
    }

    async fn end(self) -> Heard {
        self.stop.cancel();
        self.task.await.expect("nothing that ends the asker");
        std::mem::take(&mut *lock(&self.heard))
    }
}

impl Scene {
    /// Live state is as it was some time ago, without knowing, since there were these answers: they
    /// begin again there.
    pub(super) fn live_fell_back(&self, since: Counts) {
        self.world.live_fell_back();
        let mut heard = lock(&self.asker.heard);
        let (since, now) = (since.complete + since.earlier, heard.answers.len());
        // One answer may be under way.
        heard.fell_back.push(since..=now + 1);
    }

    /// What is stored of owners was damaged since there were these answers, and is right again now.
    pub(super) fn was_damaged(&self, since: Counts, owners: &[i64]) {
        self.world.live_was_damaged();
        let mut heard = lock(&self.asker.heard);
        let (since, now) = (since.complete + since.earlier, heard.answers.len());
        heard.damaged.push((since..=now + 1, owners.to_vec()));
    }
}
