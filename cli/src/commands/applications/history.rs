//! `applications history`: shows connected athletes by day.

use anyhow::Context as _;
use jiff::civil::Date;
use schemas::clock::Clock;
use schemas::key::KeyValue;
use serde::Serialize;
use stores::counts::{
    Day, DayCount, HistoryQuery, date_from_day, day_from_date, day_from_ms, read_history,
};

use super::unknown_application;
use crate::clock::SystemClock;
use crate::commands::Context;
use crate::failure;
use crate::installation::Installation;

/// Number of days without --from.
const DAYS_DEFAULT: Day = 90;
const DAYS_PER_READ: usize = 3_660;
/// Board of connected athletes.
const BOARD: &str = "applications";

/// History of an application in the output.
#[derive(Debug, Serialize)]
struct HistoryOutput {
    application_id: i64,
    days: Vec<DayEntry>,
}

#[derive(Debug, Serialize)]
struct DayEntry {
    date: Date,
    connected_athletes: u64,
    epoch: u64,
}

impl From<DayCount> for DayEntry {
    fn from(count: DayCount) -> Self {
        Self {
            date: date_from_day(count.day),
            connected_athletes: count.count,
            epoch: count.epoch,
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
    let tomorrow = || day_from_ms(SystemClock.now_ms()).saturating_add(1);
    let to = to.map_or_else(tomorrow, day_from_date);
    let from = from.map_or(to.saturating_sub(DAYS_DEFAULT), day_from_date);
    if from >= to {
        return Err(failure::usage_error(format!(
            "--from {} is not before --to {}; --to is the day after the last one [default: tomorrow]",
            date_from_day(from),
            date_from_day(to)
        )));
    }
    let stores = installation.stores();
    let usage = stores.entities.usages_by_id(&[id]).await?.pop();
    usage.with_context(|| unknown_application(id))?;
    let catalog = installation.load_catalog()?;
    let mut boards = catalog.boards().iter();
    let job = boards.find(|job| job.board() == BOARD && job.records_daily_counts());
    let job = job.context("the history of applications is off; add the section [history] to the job.toml of their board")?;
    let key = job.key().encode_values(&[KeyValue::Int(id)])?;
    let query = HistoryQuery {
        source: job.source(),
        job: job.name(),
        key: &key,
    };
    let (mut days, mut next) = (Vec::new(), Some(from));
    while let Some(first) = next {
        let page = read_history(
            &*stores.counts,
            &*stores.views,
            query,
            first..to,
            DAYS_PER_READ,
        );
        let page = page.await?;
        days.extend(page.days.into_iter().map(DayEntry::from));
        next = page.next;
    }
    let output = HistoryOutput {
        application_id: id,
        days,
    };
    context.output().print_result(&output, |output| {
        let lines = output
            .days
            .iter()
            .map(|day| format!("{}  {}\n", day.date, day.connected_athletes));
        match output.days.is_empty() {
            true => "no batch run has recorded a day of this application".to_owned(),
            false => lines.collect(),
        }
    })
}
