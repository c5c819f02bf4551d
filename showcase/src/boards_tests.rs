use jiff::civil::date;

use super::*;

fn board(name: &'static str, window: usize) -> Board {
    Board {
        segment: 1,
        name,
        window: WINDOWS[window],
        date: date(2026, 11, 21),
        club: None,
        following: None,
    }
}

/// Parses `athlete seconds effort started_at zone birth_year version`.
fn row(text: &str) -> Row {
    let parts: Vec<&str> = text.split(' ').collect();
    let started_at: Timestamp = parts[3].parse().unwrap();
    let started_at = started_at.as_microsecond().to_string();
    let columns = [
        parts[0],
        parts[1],
        parts[2],
        "7",
        &started_at,
        parts[4],
        parts[5],
        parts[6],
        "0",
    ];
    columns.map(|column| Some(column.to_owned())).to_vec()
}

#[test]
fn ranks_each_athlete_by_the_best_effort_in_the_window() {
    let rows = [
        "5 60 3 2026-11-21T12:00:00Z UTC 1991 0",
        "6 60 2 2026-11-20T12:00:00Z UTC 1990 0",
        "7 50 1 2026-10-20T12:00:00Z UTC 1940 0",
        // In New York, it is still the previous year.
        "5 40 4 2026-01-01T03:00:00Z America/New_York 1991 0",
        "6 70 5 2026-11-21T12:00:00Z UTC 1990 0",
    ]
    .map(row);
    type Case<'a> = (&'a str, usize, &'a [(i64, i64)]);
    let cases: [Case<'_>; 7] = [
        ("overall", 0, &[(5, 4), (7, 1), (6, 2)]),
        ("overall", 1, &[(7, 1), (6, 2), (5, 3)]),
        ("overall", 2, &[(6, 2), (5, 3)]),
        ("overall", 3, &[(5, 3), (6, 5)]),
        ("age:25-34", 0, &[(5, 4)]),
        ("age:35-44", 0, &[(6, 2), (5, 3)]),
        ("age:75+", 0, &[(7, 1)]),
    ];
    for (name, window, expected) in cases {
        let entries = board(name, window).rank_rows(&rows).unwrap();
        let expected = (1..).zip(expected).map(|(rank, (athlete, effort))| {
            json!({"rank": rank, "athlete_id": athlete, "effort_id": effort})
        });
        let expected: Vec<Value> = expected.collect();
        compare(&json!(expected), &json!(entries)).unwrap();
    }
}

#[test]
fn moving_boards_must_contain_unchanged_athletes() {
    let entry = |rank: u64, athlete: i64, elapsed_time: i64| {
        json!({
            "rank": rank, "athlete_id": athlete, "elapsed_time": elapsed_time,
            "effort_id": athlete * 10, "activity_id": 1, "started_at": "2026-11-21T12:00:00Z",
        })
    };
    let before = [entry(1, 5, 60), entry(2, 6, 61), entry(3, 7, 62)];
    let efforts = |rows: &[&str]| -> BTreeSet<Row> {
        let rows = rows
            .iter()
            .map(|row| format!("{row} 2026-11-21T12:00:00Z UTC 1990"));
        rows.map(|text| row(&format!("{text} 0"))).collect()
    };
    let old = efforts(&["5 60 50", "6 61 60", "7 62 70"]);
    let new = efforts(&["5 60 50", "6 59 60", "7 62 70", "8 50 80"]);
    let cases = [
        (vec![entry(1, 5, 60), entry(2, 7, 62)], true),
        (
            vec![
                entry(1, 8, 50),
                entry(2, 5, 60),
                entry(3, 6, 61),
                entry(4, 7, 62),
            ],
            true,
        ),
        (vec![entry(1, 5, 60), entry(2, 6, 61)], false),
        (vec![entry(1, 5, 60), entry(2, 7, 63)], false),
        (
            vec![entry(1, 5, 60), entry(2, 7, 62), entry(3, 9, 70)],
            false,
        ),
        (
            vec![entry(1, 5, 60), entry(2, 7, 62), entry(3, 6, 61)],
            false,
        ),
        (
            vec![
                entry(1, 6, 59),
                entry(2, 5, 60),
                entry(3, 6, 61),
                entry(4, 7, 62),
            ],
            false,
        ),
        (vec![entry(1, 5, 60), entry(3, 7, 62)], false),
    ];
    for (entries, is_right) in cases {
        let body = json!({"total": entries.len(), "entries": entries});
        let result = compare_while_changing(&old, &new, &before, &body);
        assert_eq!(result.is_ok(), is_right, "{entries:?}");
    }
}
