//! What can be asked of a board.
//!
//! Pure: the words of a request (a board, a window, a date) become the board's columns and filters
//! on its rows. Windows, and divisions of all time, are boards of their own; a division within a calendar
//! year, month or day only leaves rows of that board out.

use jiff::civil::Date;
use jobs::board::Test;
use jobs::{Board, Job};
use schemas::key::KeyValue;

/// The column that tells the boards of divisions apart.
const DIVISION: &str = "division";
/// The column that tells windows apart.
const PERIOD: &str = "period";
/// The division of everybody, and where those of age groups and weight classes begin.
const OVERALL: i64 = 0;
const OF_AGES: i64 = 100;
const OF_WEIGHTS: i64 = 1000;
/// The period of all time.
const ALL_TIME: i64 = 0;
/// A period that no row has.
const NEVER: i64 = -1;
/// Periods of earlier years have as many digits as later ones of another length: month 1 of the year
/// 20 would be the year 2001.
const FIRST_YEAR: i64 = 1000;

/// What a request may name by `board=`, and its title.
pub(crate) const DIVISIONS: [(&str, &str, Named); 21] = [
    ("overall", "Overall", Named::Overall),
    ("gender:F", "Women", Named::Gender("F")),
    ("gender:M", "Men", Named::Gender("M")),
    ("gender:X", "Another gender", Named::Gender("X")),
    ("age:0-19", "Age 0 to 19", Named::Age(0, 19)),
    ("age:20-24", "Age 20 to 24", Named::Age(20, 24)),
    ("age:25-34", "Age 25 to 34", Named::Age(25, 34)),
    ("age:35-44", "Age 35 to 44", Named::Age(35, 44)),
    ("age:45-54", "Age 45 to 54", Named::Age(45, 54)),
    ("age:55-64", "Age 55 to 64", Named::Age(55, 64)),
    ("age:65-69", "Age 65 to 69", Named::Age(65, 69)),
    ("age:70-74", "Age 70 to 74", Named::Age(70, 74)),
    ("age:75+", "Age 75 and older", Named::Age(75, i64::MAX)),
    ("weight:0-54", "To 54 kg", Named::Weight(0)),
    ("weight:55-64", "55 to 64 kg", Named::Weight(55)),
    ("weight:65-74", "65 to 74 kg", Named::Weight(65)),
    ("weight:75-84", "75 to 84 kg", Named::Weight(75)),
    ("weight:85-94", "85 to 94 kg", Named::Weight(85)),
    ("weight:95-104", "95 to 104 kg", Named::Weight(95)),
    ("weight:105-114", "105 to 114 kg", Named::Weight(105)),
    ("weight:115+", "From 115 kg", Named::Weight(115)),
];

/// The same by `window=`.
pub(crate) const WINDOWS: [(&str, &str, Window); 4] = [
    ("all", "All time", Window::All),
    ("year", "The year", Window::Year),
    ("month", "The month", Window::Month),
    ("day", "The day", Window::Day),
];

/// What is expected of `board=`.
const BOARDS: &str = "overall, gender:F, gender:M, gender:X, age:GROUP (0-19, 20-24, 25-34, 35-44, 45-54, 55-64, 65-69, 70-74, 75+) or weight:CLASS (0-54, 55-64, 65-74, 75-84, 85-94, 95-104, 105-114, 115+)";

/// A board as a request names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Named {
    /// All athletes.
    Overall,
    /// Those of a gender.
    Gender(&'static str),
    /// Those of an age on the effort's day: lowest and highest.
    Age(i64, i64),
    /// Those of a weight class, by its lowest kg.
    Weight(i64),
}

/// The stretch of calendar time that a board is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Window {
    All,
    Year,
    Month,
    Day,
}

/// Which rows of which board: the columns that tell boards apart, and what the rows must hold.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Section {
    pub(crate) board: Vec<KeyValue>,
    /// By column of the payload.
    pub(crate) tests: Vec<(&'static str, Test)>,
}

/// Whether a view can be asked for boards and windows.
pub(crate) fn has_sections(job: &Job<Board>) -> bool {
    !job.boards().0.is_empty()
}

/// The board that a text names.
pub(crate) fn named(text: &str) -> Result<Named, String> {
    // A plus that was not percent-encoded arrives as a blank.
    let open_end = text.strip_suffix(' ').map(|lowest| format!("{lowest}+"));
    let name = open_end.as_deref().unwrap_or(text);
    let found = DIVISIONS.into_iter().find(|(of, ..)| *of == name);
    found
        .map(|(.., named)| named)
        .ok_or_else(|| format!("board={text:?} is unknown: write {BOARDS}"))
}

/// The window that a text names.
pub(crate) fn window(text: &str) -> Result<Window, String> {
    let found = WINDOWS.into_iter().find(|(of, ..)| *of == text);
    found
        .map(|(.., window)| window)
        .ok_or_else(|| format!("window={text:?} is unknown: write all, year, month or day"))
}

/// The value of the column `division` for a board of all time.
fn division(named: Named) -> i64 {
    match named {
        Named::Overall => OVERALL,
        Named::Gender("F") => 1,
        Named::Gender("M") => 2,
        Named::Gender(_) => 3,
        Named::Age(lowest, _) => OF_AGES + lowest,
        Named::Weight(lowest) => OF_WEIGHTS + lowest,
    }
}

/// The section of a view for a board in the window that holds a date. Windows before the year 1000 are
/// empty.
pub(crate) fn section(job: &Job<Board>, named: Named, window: Window, date: Date) -> Section {
    let year = i64::from(date.year());
    let month = year * 100 + i64::from(date.month());
    let period = match window {
        Window::All => ALL_TIME,
        _ if year < FIRST_YEAR => NEVER,
        Window::Year => year,
        Window::Month => month,
        Window::Day => month * 100 + i64::from(date.day()),
    };
    let test = match named {
        Named::Overall => None,
        Named::Gender(letter) => Some(("gender", Test::Text(letter.to_owned()))),
        Named::Weight(lowest) => Some(("weight_class", Test::Int(lowest..=lowest))),
        // Within a calendar year the year of birth decides.
        Named::Age(lowest, highest) => {
            let born = year.saturating_sub(highest)..=year - lowest;
            Some(("birth_year", Test::Int(born)))
        }
    };
    let (division, tests) = match window {
        Window::All => (division(named), Vec::new()),
        _ => (OVERALL, test.into_iter().collect()),
    };
    let board = job.boards().0.iter().map(|column| {
        KeyValue::Int(match column.name.as_str() {
            DIVISION => division,
            PERIOD => period,
            _ => 0,
        })
    });
    Section {
        board: board.collect(),
        tests,
    }
}

#[cfg(test)]
#[path = "question_tests.rs"]
mod tests;
