use jiff::civil::date;
use schemas::source::Source;
use serde_json::json;

use super::*;
use crate::demo::entities::question::Window;
use crate::demo::entities::rows::Became;

fn rows(lines: &[(Source, &str)]) -> Rows {
    let mut rows = Rows::default();
    for (source, line) in lines {
        rows.take(*source, line).unwrap();
    }
    rows
}

/// `id athlete seconds started_at`, then fields as they stand.
fn effort(what: &str) -> String {
    let parts: Vec<&str> = what.splitn(5, ' ').collect();
    let [id, athlete, seconds, at, rest @ ..] = parts.as_slice() else {
        panic!("{what}");
    };
    let rest = rest.first().unwrap_or(&r#""version":0"#);
    format!(
        r#"{{"id":{id},"segment_id":1,"athlete_id":{athlete},"activity_id":7,"elapsed_time":{seconds},"started_at":"{at}",{rest}}}"#
    )
}

/// Athlete and effort of each place.
fn places(rows: &Rows, asked: &Asked) -> Vec<(i64, i64)> {
    let board = board(rows, asked);
    let ranks: Vec<u64> = board.iter().map(|entry| entry.rank).collect();
    assert_eq!(ranks, (1..=board.len() as u64).collect::<Vec<_>>());
    board
        .iter()
        .map(|entry| (entry.athlete, entry.effort))
        .collect()
}

/// Athlete and effort of each place that is expected.
type Places = &'static [(i64, i64)];
/// Board, window, club, whom one follows, and what is expected.
type Case = (&'static str, Window, Option<i64>, Option<i64>, Places);

const AT: &str = "2026-11-21T12:00:00Z";

#[test]
fn each_athlete_stands_with_the_best_effort() {
    // Lines, and what the board is then.
    let cases: [(&[&str], Places); 8] = [
        (&[], &[]),
        (&["1 5 60", "2 6 50"], &[(6, 2), (5, 1)]),
        (&["2 5 60", "1 6 60", "3 5 60"], &[(6, 1), (5, 2)]),
        (
            &["1 5 60", "1 5 90 \"version\":1", "2 6 70"],
            &[(6, 2), (5, 1)],
        ),
        (&["1 5 60 \"version\":2", "1 5 9 \"version\":1"], &[(5, 1)]),
        (&["1 5 60", "2 5 70", "1 5 60 \"deleted\":true"], &[(5, 2)]),
        (&["1 5 60 \"visibility\":\"only_me\"", "2 6 70"], &[(6, 2)]),
        (
            &[
                "1 5 60 \"deleted\":true",
                "1 5 60 \"visibility\":\"everyone\"",
            ],
            &[(5, 1)],
        ),
    ];
    for (lines, expected) in cases {
        let lines: Vec<String> = lines
            .iter()
            .map(|line| {
                let mut parts: Vec<&str> = line.splitn(4, ' ').collect();
                parts.insert(3, AT);
                effort(&parts.join(" "))
            })
            .collect();
        let of_efforts: Vec<(Source, &str)> = lines
            .iter()
            .map(|line| (Source::Efforts, line.as_str()))
            .collect();
        let rows = rows(&of_efforts);
        assert_eq!(places(&rows, &Asked::overall(1)), expected, "{lines:?}");
        assert_eq!(places(&rows, &Asked::overall(2)), [], "{lines:?}");
    }
}

#[test]
fn a_row_that_would_move_is_refused() {
    let mut rows = Rows::default();
    let line = effort(&format!("1 5 60 {AT}"));
    assert_eq!(rows.take(Source::Efforts, &line).unwrap(), Became::Stored);
    let moved = effort(&format!("1 6 60 {AT}"));
    assert_eq!(rows.take(Source::Efforts, &moved).unwrap(), Became::Refused);
    let older = effort(&format!("1 5 50 {AT} \"version\":-1"));
    assert_eq!(rows.take(Source::Efforts, &older).unwrap(), Became::Older);
    assert_eq!(counts(&rows, 1), (1, 1));
}

const ALL: Window = Window::All;
const CASES: [Case; 14] = [
    (
        "overall",
        ALL,
        None,
        None,
        &[(1, 5), (2, 2), (3, 3), (4, 4)],
    ),
    (
        "overall",
        Window::Year,
        None,
        None,
        &[(1, 1), (3, 3), (4, 4)],
    ),
    (
        "overall",
        Window::Month,
        None,
        None,
        &[(1, 1), (3, 3), (4, 4)],
    ),
    ("overall", Window::Day, Some(8), None, &[(1, 1)]),
    ("gender:F", ALL, None, None, &[(1, 5), (3, 3)]),
    ("gender:X", ALL, None, None, &[]),
    ("age:25-34", ALL, None, None, &[(1, 5)]),
    ("age:35-44", ALL, None, None, &[(1, 1), (2, 2)]),
    ("age:75+", ALL, None, None, &[(3, 3)]),
    ("weight:0-54", Window::Year, None, None, &[(1, 1)]),
    ("weight:55-64", ALL, None, None, &[(2, 2)]),
    ("weight:115+", ALL, None, None, &[(3, 3)]),
    ("overall", ALL, None, Some(4), &[(2, 2), (4, 4)]),
    ("overall", ALL, Some(8), Some(4), &[]),
];

fn four_athletes() -> Rows {
    let efforts = [
        format!("1 1 60 {AT}"),
        // Still the year before in New York.
        "2 2 70 2026-01-01T03:00:00Z \"tz\":\"America/New_York\"".to_owned(),
        format!("3 3 80 {AT}"),
        format!("4 4 90 {AT}"),
        "5 1 50 2025-11-21T12:00:00Z".to_owned(),
    ]
    .map(|line| effort(&line));
    let mut lines: Vec<(Source, &str)> = efforts
        .iter()
        .map(|line| (Source::Efforts, line.as_str()))
        .collect();
    lines.extend([
        (
            Source::Athletes,
            r#"{"id":1,"gender":"F","birth_year":1991,"weight_kg":54.9}"#,
        ),
        (
            Source::Athletes,
            r#"{"id":2,"gender":"M","birth_year":1990,"weight_kg":55}"#,
        ),
        (
            Source::Athletes,
            r#"{"id":3,"gender":"F","birth_year":1940,"weight_kg":130.5}"#,
        ),
        (Source::Clubs, r#"{"club_id":8,"athlete_id":1}"#),
        (Source::Clubs, r#"{"club_id":8,"athlete_id":4}"#),
        (
            Source::Clubs,
            r#"{"club_id":8,"athlete_id":4,"deleted":true}"#,
        ),
        (Source::Follows, r#"{"follower_id":4,"followed_id":2}"#),
    ]);
    rows(&lines)
}

#[test]
fn boards_leave_athletes_out() {
    let mut rows = four_athletes();
    let ask = |rows: &Rows, board, window, club, following| {
        let asked = Asked {
            segment: 1,
            board,
            window,
            date: date(2026, 11, 21),
            club,
            following,
        };
        places(rows, &asked)
    };
    for (board, window, club, following, expected) in CASES {
        let found = ask(&rows, board, window, club, following);
        assert_eq!(found, expected, "{board} {window:?} {club:?} {following:?}");
    }
    assert_eq!(counts(&rows, 1), (5, 4));
    let deleted = r#"{"id":1,"deleted":true}"#;
    rows.take(Source::Athletes, deleted).unwrap();
    assert_eq!(
        ask(&rows, "overall", Window::Day, None, None),
        [(3, 3), (4, 4)]
    );
    assert_eq!(counts(&rows, 1), (3, 3));
    for (disqualified, expected) in [(true, (2, 2)), (false, (3, 3))] {
        let line = format!(r#"{{"id":3,"disqualified":{disqualified}}}"#);
        rows.take(Source::Athletes, &line).unwrap();
        assert_eq!(counts(&rows, 1), expected);
    }
}

#[test]
fn an_application_is_full_at_its_capacity() {
    let authorization = |id: i64, athlete: i64| {
        format!(r#"{{"id":{id},"application_id":9,"athlete_id":{athlete},"created_at":"{AT}"}}"#)
    };
    let mut rows = rows(&[
        (
            Source::Applications,
            r#"{"id":9,"name":"a","owner":1,"athlete_capacity":2}"#,
        ),
        (Source::Authorizations, &authorization(1, 5)),
        (Source::Authorizations, &authorization(2, 5)),
    ]);
    let new = |id: i64| (201, json!({"id": id}));
    let full = |connected: i64, capacity: i64| {
        let body = json!({"connected_athletes": connected, "athlete_capacity": capacity});
        (403, body)
    };
    assert!(rows.connect(8, 5, &(404, json!({}))).is_ok());
    assert!(rows.connect(9, 5, &(200, json!({"id": null}))).is_ok());
    assert!(rows.connect(9, 6, &new(2)).is_err(), "an id that is in use");
    assert!(rows.connect(9, 6, &full(1, 2)).is_err());
    assert!(rows.connect(9, 6, &new(3)).is_ok());
    assert!(rows.connect(9, 7, &new(4)).is_err());
    assert!(rows.connect(9, 7, &full(1, 2)).is_err());
    assert!(rows.connect(9, 7, &full(2, 2)).is_ok());
    assert!(rows.disconnect(9, 5, &(204, json!(null))).is_ok());
    assert_eq!(rows.connected(9), BTreeSet::from([6]));
    assert!(
        rows.allow(9, 1, &(200, json!({"athlete_capacity": 1})))
            .is_ok()
    );
    assert!(rows.connect(9, 7, &full(1, 1)).is_ok());
    assert!(rows.disconnect(9, 5, &(404, json!(null))).is_err());
}

#[test]
fn who_is_deleted_is_connected_to_nothing() {
    let mut rows = rows(&[
        (
            Source::Applications,
            r#"{"id":9,"name":"a","owner":1,"athlete_capacity":1}"#,
        ),
        (Source::Athletes, r#"{"id":5}"#),
    ]);
    let new = |id: i64| (201, json!({"id": id}));
    let deleted = (409, json!({}));
    assert!(rows.connect(9, 5, &new(1)).is_ok());
    rows.take(Source::Athletes, r#"{"id":5,"deleted":true}"#)
        .unwrap();
    assert_eq!(rows.connected(9), BTreeSet::new());
    assert!(rows.connect(9, 5, &(200, json!({}))).is_err());
    assert!(rows.connect(9, 5, &deleted).is_ok());
    assert!(rows.connect(9, 6, &new(2)).is_ok(), "there is room");
    rows.take(Source::Athletes, r#"{"id":5}"#).unwrap();
    assert_eq!(rows.connected(9), BTreeSet::from([5, 6]));
    assert!(rows.connect(9, 5, &(200, json!({}))).is_ok());
}
