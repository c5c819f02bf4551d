//! The recount: events counted one by one.

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::sync::Arc;

use super::calendar::Range;
use super::ledger::Event;
use super::question::{By, Filter, Form, Question};

/// Rows of a breakdown that are compared: a page.
const ROWS_MAX: usize = 1_000;

/// A value that is counted apart. Texts are ordered by their bytes, nothing comes last.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Key {
    Int(i64),
    Text(Arc<str>),
    Missing,
}

/// An answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Answer {
    /// The total, and if it was asked for that of the period before.
    Total(i64, Option<i64>),
    /// Where points begin, and their counts.
    Series(Vec<(i64, i64)>),
    /// Rows from the largest on, and the sum of all.
    Breakdown(Vec<(Key, i64)>, i64),
}

/// The answer to a question, from the events that count.
///
/// # Errors
/// Times beyond the calendar.
pub(super) fn answer<'a>(
    question: &Question,
    events: impl Iterator<Item = &'a Event>,
) -> anyhow::Result<Answer> {
    let range = question.period.range(&question.zone)?;
    let asked = events.filter(|event| fits(event, &question.filter));
    Ok(match question.form {
        Form::Total { compared } => {
            let before = if compared {
                question.period.before(&question.zone)?
            } else {
                None
            };
            let (mut count, mut previous) = (0, 0);
            for event in asked {
                if range.holds(event.at) {
                    count += event.amount;
                }
                if before.is_some_and(|before| before.holds(event.at)) {
                    previous += event.amount;
                }
            }
            Answer::Total(count, before.map(|_| previous))
        }
        Form::Series(interval) => {
            let (from, to) = (range.from.unwrap_or(0), range.to.unwrap_or(0));
            let begins = interval.points(&question.zone, from, to)?;
            let mut points: Vec<(i64, i64)> = begins.into_iter().map(|at| (at, 0)).collect();
            for event in asked.filter(|event| range.holds(event.at)) {
                let point = points.partition_point(|(at, _)| *at <= event.at);
                if let Some((_, count)) = point.checked_sub(1).and_then(|at| points.get_mut(at)) {
                    *count += event.amount;
                }
            }
            Answer::Series(points)
        }
        Form::Breakdown(by) => breakdown(by, range, asked),
    })
}

fn breakdown<'a>(by: By, range: Range, events: impl Iterator<Item = &'a Event>) -> Answer {
    let mut counts: BTreeMap<Key, i64> = BTreeMap::new();
    for event in events.filter(|event| range.holds(event.at)) {
        *counts.entry(key(by, event)).or_default() += event.amount;
    }
    let total = counts.values().sum();
    let counts = counts.into_iter().filter(|(_, count)| *count != 0);
    let mut rows: Vec<(Key, i64)> = counts.collect();
    rows.sort_by(|one, other| match other.1.cmp(&one.1) {
        Ordering::Equal => one.0.cmp(&other.0),
        order => order,
    });
    rows.truncate(ROWS_MAX);
    Answer::Breakdown(rows, total)
}

fn key(by: By, event: &Event) -> Key {
    let int = |id: Option<i64>| id.map_or(Key::Missing, Key::Int);
    let text = |text: &Option<Arc<str>>| text.clone().map_or(Key::Missing, Key::Text);
    match by {
        By::Track => Key::Int(event.track),
        By::Listener => int(event.listener),
        By::App => int(event.app),
        By::Country => text(&event.country),
        By::Referrer => text(&event.referrer),
    }
}

fn fits(event: &Event, filter: &Filter) -> bool {
    fn same<T: PartialEq>(asked: Option<&T>, found: Option<&T>) -> bool {
        asked.is_none() || asked == found
    }
    same(filter.owner.as_ref(), Some(&event.owner))
        && same(filter.track.as_ref(), Some(&event.track))
        && same(filter.listener.as_ref(), event.listener.as_ref())
        && same(filter.country.as_ref(), event.country.as_ref())
        && same(filter.referrer.as_ref(), event.referrer.as_ref())
        && same(filter.app.as_ref(), event.app.as_ref())
        && same(filter.kind.as_ref(), Some(&event.kind))
}

#[cfg(test)]
mod tests {
    use jiff::civil::date;
    use jiff::tz::TimeZone;

    use super::*;
    use crate::demo::calendar::{Interval, Period};

    fn event(at: &str, track: i64, country: Option<&str>, amount: i64) -> Event {
        Event {
            offset: 0,
            owner: 1,
            track,
            listener: None,
            country: country.map(Arc::from),
            referrer: None,
            app: None,
            kind: "play".into(),
            at: at.parse::<jiff::Timestamp>().unwrap().as_second(),
            amount,
        }
    }

    #[test]
    fn events_are_counted_one_by_one() {
        let events = [
            event("2026-11-20T23:59:59Z", 7, Some("DE"), 1),
            event("2026-11-21T00:00:00Z", 7, None, 5),
            event("2026-11-21T12:00:00Z", 8, Some("DE"), 5),
            event("2026-11-21T12:00:00Z", 8, Some("AT"), -1),
        ];
        let mut question = Question::all_time(Some(1), None);
        let ask = |question: &Question| answer(question, events.iter()).unwrap();
        assert_eq!(ask(&question), Answer::Total(10, None));
        question.period = Period::Day(date(2026, 11, 21));
        question.form = Form::Total { compared: true };
        assert_eq!(ask(&question), Answer::Total(9, Some(1)));
        question.form = Form::Breakdown(By::Country);
        let rows = vec![
            (Key::Text("DE".into()), 5),
            (Key::Missing, 5),
            (Key::Text("AT".into()), -1),
        ];
        assert_eq!(ask(&question), Answer::Breakdown(rows, 9));
        question.filter.track = Some(8);
        question.zone = TimeZone::get("Asia/Tokyo").unwrap();
        question.period = Period::Dates(date(2026, 11, 20), date(2026, 11, 22));
        question.form = Form::Series(Interval::Day);
        let Answer::Series(points) = ask(&question) else {
            panic!("a series was asked for");
        };
        assert_eq!(points.iter().map(|(_, n)| *n).collect::<Vec<_>>(), [0, 4]);
    }
}
