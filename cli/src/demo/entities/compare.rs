//! Comparing what is served with what was recounted.

use std::collections::BTreeSet;

use schemas::source::Source;
use serde_json::{Value, json};

use super::recount::Entry;

/// Whether an answer counts at least up to these ends.
pub(super) fn reaches(body: &Value, source: Source, ends: &[i64]) -> bool {
    let position = body.pointer(&format!("/provenance/position/{source}"));
    let position = position.and_then(Value::as_array);
    ends.iter().enumerate().all(|(partition, end)| {
        let reached = position.and_then(|position| position.get(partition));
        reached.and_then(Value::as_i64).unwrap_or(0) >= *end
    })
}

/// Compares a value.
pub(super) fn same(name: &str, expected: &Value, found: Option<&Value>) -> Result<(), String> {
    if found == Some(expected) {
        return Ok(());
    }
    Err(format!("{name}: served {found:?}, recounted {expected}"))
}

/// Compares places of a board.
pub(super) fn same_entries(
    name: &str,
    expected: &[Entry],
    found: Option<&Value>,
) -> Result<(), String> {
    let found = entries(found).ok_or_else(|| format!("{name} have another shape"))?;
    same_list(name, expected, &found)
}

fn same_list(name: &str, expected: &[Entry], found: &[Entry]) -> Result<(), String> {
    let mut pairs = found.iter().zip(expected);
    if let Some((found, expected)) = pairs.find(|(found, expected)| found != expected) {
        return Err(format!("{name}: served {found:?}, recounted {expected:?}"));
    }
    let lengths = (json!(expected.len()), json!(found.len()));
    same(&format!("number of {name}"), &lengths.0, Some(&lengths.1))
}

/// Compares a whole board, answered while rows changed, with what it was shortly before. Athletes
/// of whom something came in since may have another place; those alone.
pub(super) fn same_but_for(
    touched: &BTreeSet<i64>,
    before: &[Entry],
    body: &Value,
) -> Result<(), String> {
    let found = entries(body.get("entries")).ok_or("entries have another shape")?;
    same("total", &json!(found.len()), body.get("total"))?;
    let places = || found.iter().map(|entry| (entry.elapsed_time, entry.effort));
    let athletes: BTreeSet<i64> = found.iter().map(|entry| entry.athlete).collect();
    if !places().is_sorted_by(|one, other| one < other)
        || athletes.len() != found.len()
        || !found
            .iter()
            .map(|entry| entry.rank)
            .eq(1..=found.len() as u64)
    {
        return Err(format!("served in no order: {found:?}"));
    }
    let untouched = |entries: &[Entry]| -> Vec<Entry> {
        let left = entries
            .iter()
            .filter(|entry| !touched.contains(&entry.athlete));
        left.map(|entry| Entry {
            rank: 0,
            ..entry.clone()
        })
        .collect()
    };
    same_list("entries", &untouched(before), &untouched(&found))
}

fn entries(found: Option<&Value>) -> Option<Vec<Entry>> {
    found?.as_array()?.iter().map(entry).collect()
}

fn entry(row: &Value) -> Option<Entry> {
    let int = |name: &str| row.get(name)?.as_i64();
    Some(Entry {
        rank: row.get("rank")?.as_u64()?,
        athlete: int("athlete_id")?,
        elapsed_time: int("elapsed_time")?,
        effort: int("effort_id")?,
        activity: int("activity_id")?,
        started_at: row.get("started_at")?.as_str()?.parse().ok()?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(rank: u64, athlete: i64, elapsed_time: i64) -> Value {
        json!({
            "rank": rank, "athlete_id": athlete, "elapsed_time": elapsed_time,
            "effort_id": athlete * 10, "activity_id": 1, "started_at": "2026-11-21T12:00:00Z",
        })
    }

    #[test]
    fn a_wrong_answer_is_told() {
        let served = json!([row(1, 5, 60), row(2, 6, 61)]);
        let right = entries(Some(&served)).unwrap();
        assert!(same_entries("entries", &right, Some(&served)).is_ok());
        for wrong in [
            json!([row(1, 5, 60)]),
            json!([row(1, 5, 60), row(3, 6, 61)]),
            json!([row(1, 5, 60), row(2, 6, 60)]),
            json!([row(1, 5, 60), row(2, 6, 61), row(3, 7, 62)]),
            json!([{}]),
            json!(null),
        ] {
            let told = same_entries("entries", &right, Some(&wrong));
            assert!(told.is_err(), "{wrong}");
        }
        assert!(same_entries("entries", &right, None).is_err());
    }

    #[test]
    fn who_was_not_touched_stays() {
        let before = json!([row(1, 5, 60), row(2, 6, 61), row(3, 7, 62)]);
        let before = entries(Some(&before)).unwrap();
        let touched = BTreeSet::from([6, 8]);
        let check = |rows: &[Value]| {
            let body = json!({"total": rows.len(), "entries": rows});
            same_but_for(&touched, &before, &body)
        };
        let cases = [
            (vec![row(1, 5, 60), row(2, 7, 62)], true),
            (
                vec![row(1, 8, 50), row(2, 5, 60), row(3, 6, 61), row(4, 7, 62)],
                true,
            ),
            (vec![row(1, 5, 60), row(2, 6, 61)], false),
            (vec![row(1, 5, 60), row(2, 7, 63)], false),
            (vec![row(1, 5, 60), row(2, 7, 62), row(3, 9, 70)], false),
            (vec![row(1, 5, 60), row(2, 7, 62), row(3, 6, 61)], false),
            (
                vec![row(1, 6, 59), row(2, 5, 60), row(3, 6, 61), row(4, 7, 62)],
                false,
            ),
            (vec![row(1, 5, 60), row(3, 7, 62)], false),
        ];
        for (rows, right) in cases {
            assert_eq!(check(&rows).is_ok(), right, "{rows:?}");
        }
    }

    #[test]
    fn an_answer_reaches_as_far_as_it_says() {
        let body = json!({"provenance": {"position": {"efforts": [4, 0]}}});
        let cases: [(&[i64], bool); 5] = [
            (&[4, 0], true),
            (&[3], true),
            (&[4, 0, 0], true),
            (&[5, 0], false),
            (&[0, 0, 1], false),
        ];
        for (ends, reached) in cases {
            assert_eq!(reaches(&body, Source::Efforts, ends), reached, "{ends:?}");
        }
        assert!(!reaches(&body, Source::Authorizations, &[1]));
    }
}
