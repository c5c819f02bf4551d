use jiff::civil::date;
use jobs::Catalog;

use super::*;

fn segments() -> std::sync::Arc<Job<Board>> {
    let catalog = Catalog::built_in().unwrap();
    std::sync::Arc::clone(&crate::board::all(&catalog)["segments"])
}

fn ints(section: &Section) -> Vec<i64> {
    let int = |value: &KeyValue| match value {
        KeyValue::Int(n) => *n,
        other => panic!("{other:?}"),
    };
    section.board.iter().map(int).collect()
}

#[test]
fn boards_are_named() {
    for (text, expected) in [
        ("overall", Named::Overall),
        ("gender:F", Named::Gender("F")),
        ("gender:X", Named::Gender("X")),
        ("age:0-19", Named::Age(0, 19)),
        ("age:35-44", Named::Age(35, 44)),
        ("age:75+", Named::Age(75, i64::MAX)),
        ("age:75 ", Named::Age(75, i64::MAX)),
        ("weight:0-54", Named::Weight(0)),
        ("weight:115+", Named::Weight(115)),
        ("weight:115 ", Named::Weight(115)),
    ] {
        assert_eq!(named(text), Ok(expected), "{text}");
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
        let said = named(text).unwrap_err();
        assert!(
            said.contains("board=") && said.contains("overall"),
            "{said}"
        );
    }
    assert!(window("week").unwrap_err().contains("month"));
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
        let section = section(&job, Named::Overall, window(text).unwrap(), day);
        assert_eq!(ints(&section), [0, period], "{text}");
        assert!(section.tests.is_empty());
    }
}

/// A period is a bare number: month 1 of the year 20 must not be the year 2001.
#[test]
fn windows_of_early_years_are_those_of_no_row() {
    let job = segments();
    for day in [date(1, 1, 1), date(20, 1, 5), date(999, 12, 31)] {
        for window in [Window::Year, Window::Month, Window::Day] {
            let section = section(&job, Named::Overall, window, day);
            assert_eq!(ints(&section), [0, -1], "{window:?} {day}");
        }
        let all = section(&job, Named::Overall, Window::All, day);
        assert_eq!(ints(&all), [0, 0]);
    }
    let first = section(&job, Named::Overall, Window::Month, date(1000, 1, 1));
    assert_eq!(ints(&first), [0, 100_001]);
}

/// A division of all time is a board of its own; within a year it is a filter.
#[test]
fn divisions_are_boards_or_filters() {
    let job = segments();
    let day = date(2013, 5, 6);
    for (named, division) in [
        (Named::Gender("F"), 1),
        (Named::Gender("M"), 2),
        (Named::Gender("X"), 3),
        (Named::Age(0, 19), 100),
        (Named::Age(75, i64::MAX), 175),
        (Named::Weight(0), 1000),
        (Named::Weight(115), 1115),
    ] {
        let section = section(&job, named, Window::All, day);
        assert_eq!((ints(&section), section.tests), (vec![division, 0], vec![]));
    }
    let of_year = section(&job, Named::Age(35, 44), Window::Year, day);
    assert_eq!(ints(&of_year), [0, 2013]);
    assert_eq!(of_year.tests, [("birth_year", Test::Int(1969..=1978))]);
    let oldest = section(&job, Named::Age(75, i64::MAX), Window::Day, day);
    let Some((_, Test::Int(born))) = oldest.tests.first() else {
        panic!("a test of the year of birth");
    };
    assert!(born.contains(&1938) && !born.contains(&1939) && born.contains(&1));
    let women = section(&job, Named::Gender("F"), Window::Year, day);
    assert_eq!(ints(&women), [0, 2013]);
    assert_eq!(women.tests, [("gender", Test::Text("F".to_owned()))]);
    let light = section(&job, Named::Weight(55), Window::Month, day);
    assert_eq!(light.tests, [("weight_class", Test::Int(55..=55))]);
}
