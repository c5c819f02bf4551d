use std::collections::BTreeMap;

use proptest::prelude::*;
use schemas::seam::Run;

use super::*;

#[test]
fn days_are_those_of_utc() {
    assert_eq!([-1, 0, 86_399_999, 86_400_000].map(day_of), [-1, 0, 0, 1]);
    for (day, text) in [
        (0, "1970-01-01"),
        (-1, "1969-12-31"),
        (20_648, "2026-07-14"),
    ] {
        let date: Date = text.parse().unwrap();
        assert_eq!((day_of_date(date), date_of(day)), (day, date));
    }
    assert_eq!(date_of(Day::MAX), Date::MAX);
    assert_eq!(date_of(Day::MIN), Date::MIN);
    let dates = [Date::MIN, Date::MAX];
    assert_eq!(dates.map(day_of_date).map(date_of), dates);
}

/// What became of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fate {
    Complete,
    /// Each key is written or not; then the run is tried again.
    Dies(u8),
    /// The same, and the run is abandoned.
    Abandoned(u8),
}

/// A try of a run: by how many days it is later than the one before, counts of keys, and its fate.
fn tries() -> impl Strategy<Value = Vec<(i32, [u64; 3], Fate)>> {
    let fate = prop_oneof![
        3 => Just(Fate::Complete),
        1 => any::<u8>().prop_map(Fate::Dies),
        1 => any::<u8>().prop_map(Fate::Abandoned),
    ];
    let one = (0..3, proptest::array::uniform3(0..3_u64), fate);
    proptest::collection::vec(one, 1..16)
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

/// The newest rows of a key up to the first that says something.
fn newest(rows: &Rows, key: usize, published: &Published) -> Vec<DayRow> {
    let mut found = Vec::new();
    for (_, row) in rows.range((key, Day::MIN)..(key + 1, Day::MIN)).rev() {
        found.push(*row);
        if published.seen(row).is_some() {
            break;
        }
    }
    found
}

fn shown(rows: &Rows, key: usize, day: Day, published: &Published) -> u64 {
    let seen = rows.range((key, Day::MIN)..=(key, day)).rev();
    let mut seen = seen.filter_map(|(_, row)| published.seen(row));
    seen.next().map_or(0, |counted| counted.count)
}

proptest! {
    /// Whatever died or was abandoned, at every moment each day has what the last complete run up to it
    /// found; readers who know the runs of a moment ago are right too, or see that something is hidden.
    #[test]
    fn days_have_what_the_last_run_found(tries in tries()) {
        let (mut rows, mut runs): (Rows, Vec<Run>) = Default::default();
        let mut truth: BTreeMap<Day, [u64; 3]> = BTreeMap::new();
        let (mut day, mut epoch) = (100, 1);
        for (later, counts, fate) in tries {
            // A run that is tried again is of the same day.
            if runs.last().is_none_or(|last| last.epoch < epoch) {
                day += later;
                runs.push(run(epoch, RunState::Sealed));
            }
            let published = Published::of(&runs.iter().cloned().collect());
            let written = match fate {
                Fate::Complete => u8::MAX,
                Fate::Dies(keys) | Fate::Abandoned(keys) => keys,
            };
            for (key, count) in counts.into_iter().enumerate() {
                if written >> key & 1 == 1 {
                    let found = Counted { epoch, count };
                    let newest = newest(&rows, key, &published);
                    for row in to_write(&newest, (day, found), &published, false) {
                        rows.insert((key, row.day), row);
                    }
                }
                check(&rows, &truth, &published)?;
            }
            let state = match fate {
                Fate::Complete => RunState::Complete,
                Fate::Abandoned(_) => RunState::Abandoned,
                Fate::Dies(_) => continue,
            };
            *runs.last_mut().unwrap() = run(epoch, state);
            epoch += 1;
            if fate == Fate::Complete {
                truth.insert(day, counts);
            }
            check(&rows, &truth, &Published::of(&runs.iter().cloned().collect()))?;
        }
    }

    /// What nothing changed of is not written, unless somebody else may yet write there.
    #[test]
    fn only_changes_are_written(count in 0..3_u64, later in 0..3, is_doubtful: bool) {
        let published = Published::of(&[run(1, RunState::Complete)].into_iter().collect());
        let stands = DayRow { day: 5, now: Counted { epoch: 1, count: 1 }, before: None };
        let found = Counted { epoch: 2, count };
        let rows = to_write(&[stands], (5 + later, found), &published, is_doubtful);
        prop_assert_eq!(rows.len(), usize::from(is_doubtful || count != 1));
    }
}

fn check(
    rows: &Rows,
    truth: &BTreeMap<Day, [u64; 3]>,
    published: &Published,
) -> Result<(), TestCaseError> {
    for day in 95..150 {
        let expected = truth.range(..=day).next_back();
        for key in 0..3 {
            let expected = expected.map_or(0, |(_, counts)| counts[key]);
            prop_assert_eq!(
                shown(rows, key, day, published),
                expected,
                "{} on {}",
                key,
                day
            );
        }
    }
    Ok(())
}
