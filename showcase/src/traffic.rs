//! Ingests generated lines: two months of history, then live traffic.

use std::time::Duration;

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use schemas::source::Source;
use serde_json::json;
use stores::names::NamedKind;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::rhythm::relative_activity;
use crate::shared::SharedState;
use crate::{ATHLETES, FOLLOWS, Line, LineGenerator, MEMBERSHIPS, OWNERS, SEGMENTS, TRACKS, words};

const TICK: Duration = Duration::from_millis(100);
const HOUR_MS: i64 = 3_600_000;
/// The length of the history: the current month and a whole previous one.
const HISTORY_HOURS: u32 = 62 * 24;
/// The last hours of the history. They have more events, so that the charts of a day are as smooth
/// as those of a month.
const RECENT_HOURS: u32 = 48;
/// The fraction of the events that is added to the recent hours.
const RECENT_FRACTION: f64 = 0.15;
/// The growth of the activity during the history, as a fraction of the present activity.
const GROWTH: f64 = 0.15;
const LINES_PER_CALL: usize = 5_000;
/// The number of authorizations at the start.
const AUTHORIZATIONS: i64 = 1_600;
/// Upper limit of efforts in the history.
const EFFORTS_MAX: i64 = 20_000;
const EVENTS_PER_EFFORT: i64 = 8;
/// The usage of each application at the start, in percent of its capacity.
const USAGE_PERCENT: [i64; 12] = [97, 61, 102, 34, 88, 12, 75, 99, 45, 91, 26, 68];
/// The domain of the owners of a demo's applications, by which a demo's data is recognized.
const DEVELOPER_DOMAIN: &str = "@showcase.example";
const FIRST_OWNER: &str = "SELECT owner FROM applications WHERE id = 1";
/// Selects any row of any entity.
const FIRST_ROW: &str = "SELECT '1' FROM (SELECT id FROM athletes UNION ALL SELECT id FROM efforts \
    UNION ALL SELECT id FROM applications UNION ALL SELECT id FROM authorizations \
    UNION ALL SELECT club_id FROM clubs UNION ALL SELECT follower_id FROM follows) AS ids LIMIT 1";
const CONNECTED_ATHLETES: &str = "SELECT DISTINCT application_id, athlete_id FROM authorizations \
    WHERE revoked_at_us IS NULL";

/// Splits the rate of the setup into plays and rows per second. A fifth are rows, but at most 100
/// per second, the rate for which entity stores are designed.
fn split_rate(shared: &SharedState) -> (f64, f64) {
    let rate = f64::from(shared.setup.rate);
    let rows = (rate / 5.0).min(100.0);
    (rate - rows, rows)
}

/// Writes names, rows and the history of plays. If an earlier demo wrote them, writes only rows.
///
/// # Errors
/// Fails if the installation contains other data than that of a demo, and on errors of the stores.
pub(crate) async fn write_history(
    shared: &SharedState,
    lines: &mut dyn LineGenerator,
) -> anyhow::Result<()> {
    let stores = &shared.setup.stores;
    let plays = stores.log.spans(Source::Plays.topic()).await?;
    let has_rows = !shared.query(FIRST_ROW).await?.is_empty();
    let is_first = plays.iter().all(|span| span.end == 0) && !has_rows;
    let owner = format!("{:?}", shared.query(FIRST_OWNER).await?);
    anyhow::ensure!(
        is_first || owner.contains(DEVELOPER_DOMAIN),
        "the installation contains data that is not from a demo; choose another folder with --data-dir"
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
        let rows = (0..count).filter_map(|index| {
            // The factor distributes rows over all hours. Every eighth row is from the previous
            // year.
            let old_hours = i64::from(index % 8 == 0) * 365 * 24;
            let hours = index * 389 % i64::from(HISTORY_HOURS) + old_hours;
            let within_hour_ms = index * 7_919 % 3_600 * 1_000;
            lines.row(source, now_ms - 2_000 - within_hour_ms - hours * HOUR_MS)
        });
        for chunk in rows.collect::<Vec<Line>>().chunks(LINES_PER_CALL) {
            shared.ingest(source, chunk).await?;
        }
    }
    if !is_first {
        return Ok(());
    }
    for (kind, count, name) in [
        (
            NamedKind::Owner,
            OWNERS,
            words::artist_name as fn(usize) -> String,
        ),
        (NamedKind::Track, TRACKS, words::track_title),
        (NamedKind::Segment, SEGMENTS, words::segment_name),
    ] {
        let ids = (1..=count).zip(0..);
        let names: Vec<_> = ids.map(|(id, index)| (id, Some(name(index)))).collect();
        stores.entities.set_names(kind, &names).await?;
    }
    // Capacities follow from the connected athletes and the intended usage.
    let connected = shared.query(CONNECTED_ATHLETES).await?;
    let applications = USAGE_PERCENT
        .into_iter()
        .enumerate()
        .map(|(index, percent)| {
            let (id, name) = (index + 1, words::application_name(index));
            let is_connected = |row: &&Vec<Option<String>>| row[0] == Some(id.to_string());
            let count = connected.iter().filter(is_connected).count();
            let athletes = i64::try_from(count).unwrap_or(0);
            let row = json!({
                "id": id, "name": name, "owner": format!("developer-{id}{DEVELOPER_DOMAIN}"),
                "athlete_capacity": 100 * athletes / percent,
            });
            Line::new(row.to_string().into_bytes(), true)
        });
    let applications: Vec<Line> = applications.collect();
    shared.ingest(Source::Applications, &applications).await?;
    write_plays_history(shared, lines).await
}

/// Writes about as many events as the setup requests. The amount of each event is such that the
/// past is as busy as the live traffic.
async fn write_plays_history(
    shared: &SharedState,
    lines: &mut dyn LineGenerator,
) -> anyhow::Result<()> {
    let (events, hours) = (f64::from(shared.setup.history), f64::from(HISTORY_HOURS));
    let mut at_ms = shared.setup.clock.now_ms() - 2_000 - i64::from(HISTORY_HOURS) * HOUR_MS;
    let (mut count_due, mut chunk) = (0.0, Vec::new());
    for hour in 0..HISTORY_HOURS {
        let growth = 1.0 - GROWTH * (1.0 - f64::from(hour) / hours);
        let plays_per_hour = split_rate(shared).0 * 3_600.0 * relative_activity(at_ms) * growth;
        let is_recent = hour >= HISTORY_HOURS - RECENT_HOURS;
        let recent = f64::from(u8::from(is_recent)) * RECENT_FRACTION / f64::from(RECENT_HOURS);
        let events_per_hour = events * ((1.0 - RECENT_FRACTION) / hours + recent);
        count_due += events_per_hour.min(plays_per_hour);
        let count = i64::from(take_whole(&mut count_due));
        let amount = take_whole(&mut (plays_per_hour / events_per_hour).max(1.0));
        chunk.extend((0..count).map(|index| {
            let within_hour_ms = (2 * index + 1) * HOUR_MS / (2 * count);
            lines.play(at_ms + within_hour_ms, amount.into())
        }));
        if chunk.len() >= LINES_PER_CALL {
            let full_chunk = std::mem::take(&mut chunk);
            shared.ingest(Source::Plays, &full_chunk).await?;
        }
        at_ms += HOUR_MS;
    }
    shared.ingest(Source::Plays, &chunk).await
}

/// Live traffic that can be stopped.
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

    /// Ingests live lines until it is stopped.
    pub(crate) async fn run(
        &self,
        shared: &SharedState,
        lines: &mut dyn LineGenerator,
    ) -> anyhow::Result<()> {
        let _ended = self.ended.clone().drop_guard();
        ingest_live(shared, lines, &self.stop).await
    }

    /// Stops the traffic, and returns when the last line is in the log, so that the caller may read
    /// the log's ends.
    pub(crate) async fn stop(&self) {
        self.stop.cancel();
        self.ended.cancelled().await;
    }
}

/// Ingests live lines until `stop` is cancelled.
async fn ingest_live(
    shared: &SharedState,
    lines: &mut dyn LineGenerator,
    stop: &CancellationToken,
) -> anyhow::Result<()> {
    let (plays, rows) = split_rate(shared);
    let mut rng = StdRng::seed_from_u64(shared.setup.seed);
    let (mut last_tick, mut plays_due, mut rows_due) = (Instant::now(), 0.0, 0.0);
    // Without verification, athletes change less often.
    let choices = shared.setup.seconds.map_or(100, |_| 25);
    while sleep(TICK, stop).await {
        let now_ms = shared.setup.clock.now_ms();
        // After a pause, such as a laptop's sleep, events of at most one second are ingested at
        // once.
        let elapsed = last_tick.elapsed().as_secs_f64().min(1.0);
        last_tick = Instant::now();
        plays_due += elapsed * plays * relative_activity(now_ms);
        let events = (0..take_whole(&mut plays_due)).map(|_| lines.play(now_ms - 1_500, 1));
        let events: Vec<Line> = events.collect();
        shared.ingest(Source::Plays, &events).await?;
        rows_due = f64::min(rows_due + elapsed * rows, rows.max(1.0));
        // While rows must not change, only plays are ingested.
        let Ok(_guard) = shared.row_changes.try_lock() else {
            continue;
        };
        for _ in 0..take_whole(&mut rows_due) {
            let source = match rng.random_range(0..choices) {
                0 | 1 => Source::Athletes,
                2 => Source::Clubs,
                3 => Source::Follows,
                4 | 5 => Source::Authorizations,
                _ => Source::Efforts,
            };
            let row = lines.row(source, now_ms - 1_500);
            shared.ingest(source, row.as_slice()).await?;
        }
    }
    Ok(())
}

/// Sleeps. Returns false as soon as `stop` is cancelled.
pub(crate) async fn sleep(duration: Duration, stop: &CancellationToken) -> bool {
    tokio::select! {
        () = stop.cancelled() => false,
        () = tokio::time::sleep(duration) => true,
    }
}

/// Removes and returns the integer part of a number.
fn take_whole(number: &mut f64) -> u32 {
    let integer_part = number.trunc();
    *number -= integer_part;
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "cut to the range"
    )]
    {
        integer_part as u32
    }
}
