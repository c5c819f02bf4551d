use std::collections::BTreeMap;

use proptest::prelude::*;
use schemas::seam::Run;

use super::*;

#[test]
fn days_are_in_utc() {
    assert_eq!(
        [-1, 0, 86_399_999, 86_400_000].map(day_from_ms),
        [-1, 0, 0, 1]
    );
    for (day, text) in [
        (0, "1970-01-01"),
        (-1, "1969-12-31"),
        (20_648, "2026-07-14"),
    ] {
        let date: Date = text.parse().unwrap();
        assert_eq!((day_from_date(date), date_from_day(day)), (day, date));
    }
    assert_eq!(date_from_day(Day::MAX), Date::MAX);
    assert_eq!(date_from_day(Day::MIN), Date::MIN);
    let dates = [Date::MIN, Date::MAX];
    assert_eq!(dates.map(day_from_date).map(date_from_day), dates);
}

/// The result of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum RunResult {
    Complete,
    /// Each key is written or not; then the run is tried again.
    Fails(u8),
    /// Each key is written or not; then the run is abandoned.
    Abandoned(u8),
}

/// A try of a run: the days since the previous one, the counts of keys, and the result.
fn tries() -> impl Strategy<Value = Vec<(i32, [u64; 3], RunResult)>> {
    let result = prop_oneof![
        3 => Just(RunResult::Complete),
        1 => any::<u8>().prop_map(RunResult::Fails),
        1 => any::<u8>().prop_map(RunResult::Abandoned),
    ];
    let attempt = (0..3, proptest::array::uniform3(0..3_u64), result);
    proptest::collection::vec(attempt, 1..16)
}

fn run(epoch: Epoch, state: RunState) -> Run {
    Run {
        epoch,
        state,
        cuts: Vec::new(),
        stamp_us: 0,
        token: String::new(),
    }
}

type Rows = BTreeMap<(usize, Day), DayRow>;

/// The newest rows of a key up to the first with a published count.
fn newest(rows: &Rows, key: usize, published: &PublishedRuns) -> Vec<DayRow> {
    let mut newest_rows = Vec::new();
    for (_, row) in rows.range((key, Day::MIN)..(key + 1, Day::MIN)).rev() {
        newest_rows.push(*row);
        if published.published_count(row).is_some() {
            break;
        }
    }
    newest_rows
}

fn visible_count(rows: &Rows, key: usize, day: Day, published: &PublishedRuns) -> u64 {
    let counts = rows.range((key, Day::MIN)..=(key, day)).rev();
    let mut counts = counts.filter_map(|(_, row)| published.published_count(row));
    counts.next().map_or(0, |counted| counted.count)
}

proptest! {
    /// Failed and abandoned tries never change results: each day has the count of the last complete
    /// run. Readers with older run records are right too, or see that a row is hidden.
    #[test]
    fn each_day_has_the_count_of_its_last_run(tries in tries()) {
        let (mut rows, mut runs): (Rows, Vec<Run>) = Default::default();
        let mut truth: BTreeMap<Day, [u64; 3]> = BTreeMap::new();
        let (mut day, mut epoch) = (100, 1);
        for (days_later, counts, result) in tries {
            // A run that is tried again has the same day.
            if runs.last().is_none_or(|last| last.epoch < epoch) {
                day += days_later;
                runs.push(run(epoch, RunState::Sealed));
            }
            let published = PublishedRuns::from_runs(&runs.iter().cloned().collect());
            let written = match result {
                RunResult::Complete => u8::MAX,
                RunResult::Fails(keys) | RunResult::Abandoned(keys) => keys,
            };
            for (key, count) in counts.into_iter().enumerate() {
                if written >> key & 1 == 1 {
                    let new_count = RunCount { epoch, count };
                    let newest = newest(&rows, key, &published);
                    for row in plan_rows(&newest, day, new_count, &published, false) {
                        rows.insert((key, row.day), row);
                    }
                }
                check(&rows, &truth, &published)?;
            }
            let state = match result {
                RunResult::Complete => RunState::Complete,
                RunResult::Abandoned(_) => RunState::Abandoned,
                RunResult::Fails(_) => continue,
            };
            *runs.last_mut().unwrap() = run(epoch, state);
            epoch += 1;
            if result == RunResult::Complete {
                truth.insert(day, counts);
            }
            check(&rows, &truth, &PublishedRuns::from_runs(&runs.iter().cloned().collect()))?;
        }
    }

    /// An unchanged count is not written, unless another try may still write the row.
    #[test]
    fn only_changes_are_written(count in 0..3_u64, days_later in 0..3, is_doubtful: bool) {
        let published = PublishedRuns::from_runs(&[run(1, RunState::Complete)].into_iter().collect());
        let current = DayRow { day: 5, current: RunCount { epoch: 1, count: 1 }, previous: None };
        let new_count = RunCount { epoch: 2, count };
        let rows = plan_rows(&[current], 5 + days_later, new_count, &published, is_doubtful);
        prop_assert_eq!(rows.len(), usize::from(is_doubtful || count != 1));
    }
}

fn check(
    rows: &Rows,
    truth: &BTreeMap<Day, [u64; 3]>,
    published: &PublishedRuns,
) -> Result<(), TestCaseError> {
    for day in 95..150 {
        let expected = truth.range(..=day).next_back();
        for key in 0..3 {
            let expected = expected.map_or(0, |(_, counts)| counts[key]);
            prop_assert_eq!(
                visible_count(rows, key, day, published),
                expected,
                "{} on {}",
                key,
                day
            );
        }
    }
    Ok(())
}
