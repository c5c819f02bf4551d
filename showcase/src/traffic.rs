//! Gives made-up lines to the installation: two months of history, then live ones.

use std::time::Duration;

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use schemas::source::Source;
use serde_json::json;
use stores::names::Named;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::found::Shared;
use crate::rhythm::share;
use crate::{ATHLETES, FOLLOWS, Line, Lines, MEMBERSHIPS, OWNERS, SEGMENTS, TRACKS, words};

const TICK: Duration = Duration::from_millis(100);
const HOUR_MS: i64 = 3_600_000;
/// So long that every month has a whole one before it.
const HISTORY_HOURS: u32 = 62 * 24;
/// These hours have more events, so that the charts of a day are as smooth as those of a month.
const RECENT_HOURS: u32 = 48;
const RECENT_SHARE: f64 = 0.15;
/// How much less was played at the beginning of the history.
const GROWTH: f64 = 0.15;
const LINES_PER_STEP: usize = 5_000;
/// Authorizations at the start; efforts at most, and one for so many events.
const AUTHORIZATIONS: i64 = 1_600;
const EFFORTS_MAX: i64 = 20_000;
const EVENTS_PER_EFFORT: i64 = 8;
/// How full each application is at the start, in percent of its capacity.
const USAGE: [i64; 12] = [97, 61, 102, 34, 88, 12, 75, 99, 45, 91, 26, 68];
/// Where the developers of a demo's applications are.
const DEVELOPERS: &str = "@showcase.example";
const FIRST_OWNER: &str = "SELECT owner FROM applications WHERE id = 1";
/// A row of any entity.
const FIRST_ROW: &str = "SELECT '1' FROM (SELECT id FROM athletes UNION ALL SELECT id FROM efforts \
    UNION ALL SELECT id FROM applications UNION ALL SELECT id FROM authorizations \
    UNION ALL SELECT club_id FROM clubs UNION ALL SELECT follower_id FROM follows) AS ids LIMIT 1";
const CONNECTED: &str = "SELECT DISTINCT application_id, athlete_id FROM authorizations \
    WHERE revoked_at_us IS NULL";

/// Plays and rows a second. One in five is a row, up to what entity stores are made for.
fn per_second(shared: &Shared) -> (f64, f64) {
    let rate = f64::from(shared.setup.rate);
    let rows = (rate / 5.0).min(100.0);
    (rate - rows, rows)
}

/// Gives names, rows and the history of plays. Where an earlier demo gave these, only rows.
///
/// # Errors
/// Data that is not of a demo, and errors of the stores.
pub(crate) async fn history(shared: &Shared, lines: &mut dyn Lines) -> anyhow::Result<()> {
    let stores = &shared.setup.stores;
    let plays = stores.log.spans(Source::Plays.topic()).await?;
    let has_rows = !shared.query(FIRST_ROW).await?.is_empty();
    let is_first = plays.iter().all(|span| span.end == 0) && !has_rows;
    let owner = format!("{:?}", shared.query(FIRST_OWNER).await?);
    anyhow::ensure!(
        is_first || owner.contains(DEVELOPERS),
        "the installation holds data that is not of a demo; name another folder by --data-dir"
    );
    let now_ms = shared.setup.clock.now_ms();
    let efforts = i64::from(shared.setup.history) / EVENTS_PER_EFFORT;
    for (source, count) in [
        (Source::Athletes, ATHLETES),
        (Source::Clubs, MEMBERSHIPS),
        (Source::Follows, FOLLOWS),
        (Source::Authorizations, AUTHORIZATIONS),
        (Source::Efforts, efforts.min(EFFORTS_MAX)),
    ] {
        let given = (0..count).filter_map(|index| {
            // These steps lead to all hours in turn. Some rows are of the year before.
            let old_hours = i64::from(index % 8 == 0) * 365 * 24;
            let hours = index * 389 % i64::from(HISTORY_HOURS) + old_hours;
            let into_ms = index * 7_919 % 3_600 * 1_000;
            lines.row(source, now_ms - 2_000 - into_ms - hours * HOUR_MS)
        });
        for step in given.collect::<Vec<Line>>().chunks(LINES_PER_STEP) {
            shared.give(source, step).await?;
        }
    }
    if !is_first {
        return Ok(());
    }
    for (kind, count, name) in [
        (Named::Owner, OWNERS, words::artist as fn(usize) -> String),
        (Named::Track, TRACKS, words::track),
        (Named::Segment, SEGMENTS, words::segment),
    ] {
        let ids = (1..=count).zip(0..);
        let names: Vec<_> = ids.map(|(id, at)| (id, Some(name(at)))).collect();
        stores.canon.set_names(kind, &names).await?;
    }
    // Each application has a capacity for the athletes that it has.
    let connected = shared.query(CONNECTED).await?;
    let applications = USAGE.into_iter().enumerate().map(|(index, percent)| {
        let (id, name) = (index + 1, words::application(index));
        let is_of_it = |row: &&Vec<Option<String>>| row[0] == Some(id.to_string());
        let athletes = i64::try_from(connected.iter().filter(is_of_it).count()).unwrap_or(0);
        let row = json!({
            "id": id, "name": name, "owner": format!("developer-{id}{DEVELOPERS}"),
            "athlete_capacity": 100 * athletes / percent,
        });
        Line::new(row.to_string().into_bytes(), true)
    });
    let applications: Vec<Line> = applications.collect();
    shared.give(Source::Applications, &applications).await?;
    plays_history(shared, lines).await
}

/// Gives about as many events as were asked for. Each stands for as many plays as make the past as
/// busy as live plays are.
async fn plays_history(shared: &Shared, lines: &mut dyn Lines) -> anyhow::Result<()> {
    let (events, hours) = (f64::from(shared.setup.history), f64::from(HISTORY_HOURS));
    let mut at_ms = shared.setup.clock.now_ms() - 2_000 - i64::from(HISTORY_HOURS) * HOUR_MS;
    let (mut due, mut given) = (0.0, Vec::new());
    for hour in 0..HISTORY_HOURS {
        let growth = 1.0 - GROWTH * (1.0 - f64::from(hour) / hours);
        let busy = per_second(shared).0 * 3_600.0 * share(at_ms) * growth;
        let is_recent = hour >= HISTORY_HOURS - RECENT_HOURS;
        let recent = f64::from(u8::from(is_recent)) * RECENT_SHARE / f64::from(RECENT_HOURS);
        let density = events * ((1.0 - RECENT_SHARE) / hours + recent);
        due += density.min(busy);
        let count = i64::from(take_whole(&mut due));
        let amount = take_whole(&mut (busy / density).max(1.0));
        given.extend((0..count).map(|index| {
            let into_ms = (2 * index + 1) * HOUR_MS / (2 * count);
            lines.play(at_ms + into_ms, amount.into())
        }));
        if given.len() >= LINES_PER_STEP {
            let step = std::mem::take(&mut given);
            shared.give(Source::Plays, &step).await?;
        }
        at_ms += HOUR_MS;
    }
    shared.give(Source::Plays, &given).await
}

/// Live traffic, which can be stopped.
#[derive(Debug)]
pub(crate) struct Traffic {
    stop: CancellationToken,
    ended: CancellationToken,
}

impl Traffic {
    /// Traffic that also stops when `end` is cancelled.
    pub(crate) fn new(end: &CancellationToken) -> Self {
        Self {
            stop: end.child_token(),
            ended: CancellationToken::new(),
        }
    }

    /// Appends live lines until it is stopped.
    pub(crate) async fn run(&self, shared: &Shared, lines: &mut dyn Lines) -> anyhow::Result<()> {
        let _ended = self.ended.clone().drop_guard();
        live(shared, lines, &self.stop).await
    }

    /// Stops, and returns after the last line is in the log: the caller may then read its ends.
    pub(crate) async fn end(&self) {
        self.stop.cancel();
        self.ended.cancelled().await;
    }
}

/// Gives live lines until `stop`.
async fn live(
    shared: &Shared,
    lines: &mut dyn Lines,
    stop: &CancellationToken,
) -> anyhow::Result<()> {
    let (plays, rows) = per_second(shared);
    let mut rng = StdRng::seed_from_u64(shared.setup.seed);
    let (mut before, mut plays_due, mut rows_due) = (Instant::now(), 0.0, 0.0);
    // Where nothing is compared, athletes stay as they are for longer.
    let kinds = shared.setup.seconds.map_or(100, |_| 25);
    while sleep(TICK, stop).await {
        let now_ms = shared.setup.clock.now_ms();
        // After a pause, such as a laptop's sleep, only a second is made up for.
        let elapsed = before.elapsed().as_secs_f64().min(1.0);
        before = Instant::now();
        plays_due += elapsed * plays * share(now_ms);
        let given = (0..take_whole(&mut plays_due)).map(|_| lines.play(now_ms - 1_500, 1));
        let given: Vec<Line> = given.collect();
        shared.give(Source::Plays, &given).await?;
        rows_due = f64::min(rows_due + elapsed * rows, rows.max(1.0));
        // Plays go on while rows must not change.
        let Ok(_guard) = shared.row_changes.try_lock() else {
            continue;
        };
        for _ in 0..take_whole(&mut rows_due) {
            let source = match rng.random_range(0..kinds) {
                0 | 1 => Source::Athletes,
                2 => Source::Clubs,
                3 => Source::Follows,
                4 | 5 => Source::Authorizations,
                _ => Source::Efforts,
            };
            let row = lines.row(source, now_ms - 1_500);
            shared.give(source, row.as_slice()).await?;
        }
    }
    Ok(())
}

/// Sleeps; returns false as soon as it is time to stop.
pub(crate) async fn sleep(span: Duration, stop: &CancellationToken) -> bool {
    tokio::select! {
        () = stop.cancelled() => false,
        () = tokio::time::sleep(span) => true,
    }
}

/// Takes the whole number from a number, and leaves its fraction.
fn take_whole(number: &mut f64) -> u32 {
    let whole = number.trunc();
    *number -= whole;
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "cut to the range"
    )]
    {
        whole as u32
    }
}
