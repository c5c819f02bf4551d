//! `applications history`: shows connected athletes by day.

use anyhow::Context as _;
use jiff::civil::Date;
use schemas::clock::Clock;
use schemas::key::KeyValue;
use serde::Serialize;
use stores::counts::{Day, DayCount, HistoryQuery, date_of, day_of, day_of_date, read_history};

use super::unknown;
use crate::clock::SystemClock;
use crate::commands::Context;
use crate::failure;
use crate::installation::Installation;

/// Number of days without --from.
const DAYS_DEFAULT: Day = 90;
/// Days per read.
const STEP: usize = 3_660;
/// Board of connected athletes.
const BOARD: &str = "applications";

/// History of an application in the output.
#[derive(Debug, Serialize)]
struct Shown {
    application_id: i64,
    days: Vec<DayShown>,
}

#[derive(Debug, Serialize)]
struct DayShown {
    date: Date,
    connected_athletes: u64,
    epoch: u64,
}

impl From<DayCount> for DayShown {
    fn from(found: DayCount) -> Self {
        Self {
            date: date_of(found.day),
            connected_athletes: found.count,
            epoch: found.epoch,
        }
    }
}

/// Prints the days from `from` to the day before `to`.
pub(super) async fn show(
    context: &Context,
    installation: &Installation,
    id: i64,
    from: Option<Date>,
    to: Option<Date>,
) -> anyhow::Result<()> {
    let tomorrow = || day_of(SystemClock.now_ms()).saturating_add(1);
    let to = to.map_or_else(tomorrow, day_of_date);
    let from = from.map_or(to.saturating_sub(DAYS_DEFAULT), day_of_date);
    if from >= to {
        return Err(failure::usage(format!(
            "--from {} is not before --to {}; --to is the day after the last one [default: tomorrow]",
            date_of(from),
            date_of(to)
        )));
    }
    let stores = installation.stores();
    let usage = stores.entities.usages_by_id(&[id]).await?.pop();
    usage.with_context(|| unknown(id))?;
    let catalog = installation.catalog()?;
    let mut boards = catalog.boards().iter();
    let job = boards.find(|job| job.board() == BOARD && job.records_daily_counts());
    let job = job.context("the history of applications is off; add the section [history] to the job.toml of their board")?;
    let key = job.key().encode_values(&[KeyValue::Int(id)])?;
    let of = HistoryQuery {
        source: job.source(),
        job: job.name(),
        key: &key,
    };
    let (mut days, mut next) = (Vec::new(), Some(from));
    while let Some(first) = next {
        let read = read_history(&*stores.counts, &*stores.views, of, first..to, STEP);
        let found = read.await?;
        days.extend(found.days.into_iter().map(DayShown::from));
        next = found.next;
    }
    let shown = Shown {
        application_id: id,
        days,
    };
    context.output().result(&shown, |shown| {
        let lines = shown
            .days
            .iter()
            .map(|day| format!("{}  {}\n", day.date, day.connected_athletes));
        match shown.days.is_empty() {
            true => "no batch run has recorded a day of this application".to_owned(),
            false => lines.collect(),
        }
    })
}
