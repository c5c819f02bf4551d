use jiff::civil::date;
use jobs::Catalog;

use super::*;

fn segments() -> std::sync::Arc<Job<Board>> {
    let catalog = Catalog::built_in().unwrap();
    std::sync::Arc::clone(&crate::board::from_catalog(&catalog)["segments"])
}

fn column_values(board: &RequestedBoard) -> Vec<i64> {
    let int = |value: &KeyValue| match value {
        KeyValue::Int(n) => *n,
        other => panic!("{other:?}"),
    };
    board.columns.iter().map(int).collect()
}

#[test]
fn parses_board_names() {
    for (text, expected) in [
        ("overall", Division::Overall),
        ("gender:F", Division::Gender("F")),
        ("gender:X", Division::Gender("X")),
        ("age:0-19", Division::Age(0, 19)),
        ("age:35-44", Division::Age(35, 44)),
        ("age:75+", Division::Age(75, i64::MAX)),
        ("age:75 ", Division::Age(75, i64::MAX)),
        ("weight:0-54", Division::Weight(0)),
        ("weight:115+", Division::Weight(115)),
        ("weight:115 ", Division::Weight(115)),
    ] {
        assert_eq!(parse_division(text), Ok(expected), "{text}");
    }
    for text in [
        "",
        "Overall",
        "overall ",
        "gender",
        "gender:",
        "gender:f",
        "gender:F ",
        "age:35",
        "age:20-29",
        "age:75",
        "weight:54",
        "weight:55-65",
        "height:1-2",
        "age:35-44:F",
    ] {
        let message = parse_division(text).unwrap_err();
        assert!(
            message.contains("board=") && message.contains("overall"),
            "{message}"
        );
    }
    assert!(parse_window("week").unwrap_err().contains("month"));
}

#[test]
fn windows_are_calendar_periods() {
    let job = segments();
    let day = date(2013, 5, 6);
    for (text, period) in [
        ("all", 0),
        ("year", 2013),
        ("month", 201_305),
        ("day", 20_130_506),
    ] {
        let board = resolve_board(&job, Division::Overall, parse_window(text).unwrap(), day);
        assert_eq!(column_values(&board), [0, period], "{text}");
        assert!(board.filters.is_empty());
    }
}

/// Without a first year, month 1 of the year 20 would equal the year 2001.
#[test]
fn windows_before_year_1000_match_no_row() {
    let job = segments();
    for day in [date(1, 1, 1), date(20, 1, 5), date(999, 12, 31)] {
        for window in [Window::Year, Window::Month, Window::Day] {
            let board = resolve_board(&job, Division::Overall, window, day);
            assert_eq!(column_values(&board), [0, -1], "{window:?} {day}");
        }
        let all = resolve_board(&job, Division::Overall, Window::All, day);
        assert_eq!(column_values(&all), [0, 0]);
    }
    let first = resolve_board(&job, Division::Overall, Window::Month, date(1000, 1, 1));
    assert_eq!(column_values(&first), [0, 100_001]);
}

/// A division of all time is a separate board; within a year it is a filter.
#[test]
fn divisions_are_boards_or_filters() {
    let job = segments();
    let day = date(2013, 5, 6);
    for (division, column_value) in [
        (Division::Gender("F"), 1),
        (Division::Gender("M"), 2),
        (Division::Gender("X"), 3),
        (Division::Age(0, 19), 100),
        (Division::Age(75, i64::MAX), 175),
        (Division::Weight(0), 1000),
        (Division::Weight(115), 1115),
    ] {
        let board = resolve_board(&job, division, Window::All, day);
        assert_eq!(
            (column_values(&board), board.filters),
            (vec![column_value, 0], vec![])
        );
    }
    let within_year = resolve_board(&job, Division::Age(35, 44), Window::Year, day);
    assert_eq!(column_values(&within_year), [0, 2013]);
    assert_eq!(
        within_year.filters,
        [("birth_year", ColumnFilter::Int(1969..=1978))]
    );
    let oldest = resolve_board(&job, Division::Age(75, i64::MAX), Window::Day, day);
    let Some((_, ColumnFilter::Int(born))) = oldest.filters.first() else {
        panic!("a test of the year of birth");
    };
    assert!(born.contains(&1938) && !born.contains(&1939) && born.contains(&1));
    let women = resolve_board(&job, Division::Gender("F"), Window::Year, day);
    assert_eq!(column_values(&women), [0, 2013]);
    assert_eq!(
        women.filters,
        [("gender", ColumnFilter::Text("F".to_owned()))]
    );
    let light = resolve_board(&job, Division::Weight(55), Window::Month, day);
    assert_eq!(
        light.filters,
        [("weight_class", ColumnFilter::Int(55..=55))]
    );
}
