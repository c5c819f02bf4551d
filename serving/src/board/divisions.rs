//! Divisions and windows of boards.
//!
//! Pure functions that convert the parameters of a request (board, window, date) to the board
//! columns and row filters. Windows, and divisions of all time, are separate boards. A division
//! within a calendar year, month or day filters the rows of that window's board.

use jiff::civil::Date;
use jobs::board::ColumnFilter;
use jobs::{Board, Job};
use schemas::key::KeyValue;

/// Column that identifies the division of a board.
const DIVISION_COLUMN: &str = "division";
/// Column that identifies the window of a board.
const PERIOD_COLUMN: &str = "period";
/// Value of the division of all athletes; offsets of the values of age groups and weight classes.
const OVERALL: i64 = 0;
const AGE_OFFSET: i64 = 100;
const WEIGHT_OFFSET: i64 = 1000;
/// Value of the period of all time.
const ALL_TIME: i64 = 0;
/// A period without rows.
const EMPTY_PERIOD: i64 = -1;
/// First supported year: earlier years would have as many digits as other periods. Month 1 of the
/// year 20 would equal the year 2001.
const YEAR_MIN: i64 = 1000;

/// Values of `board=` with their titles.
pub(crate) const DIVISIONS: [(&str, &str, Division); 21] = [
    ("overall", "Overall", Division::Overall),
    ("gender:F", "Women", Division::Gender("F")),
    ("gender:M", "Men", Division::Gender("M")),
    ("gender:X", "Another gender", Division::Gender("X")),
    ("age:0-19", "Age 0 to 19", Division::Age(0, 19)),
    ("age:20-24", "Age 20 to 24", Division::Age(20, 24)),
    ("age:25-34", "Age 25 to 34", Division::Age(25, 34)),
    ("age:35-44", "Age 35 to 44", Division::Age(35, 44)),
    ("age:45-54", "Age 45 to 54", Division::Age(45, 54)),
    ("age:55-64", "Age 55 to 64", Division::Age(55, 64)),
    ("age:65-69", "Age 65 to 69", Division::Age(65, 69)),
    ("age:70-74", "Age 70 to 74", Division::Age(70, 74)),
    ("age:75+", "Age 75 and older", Division::Age(75, i64::MAX)),
    ("weight:0-54", "To 54 kg", Division::Weight(0)),
    ("weight:55-64", "55 to 64 kg", Division::Weight(55)),
    ("weight:65-74", "65 to 74 kg", Division::Weight(65)),
    ("weight:75-84", "75 to 84 kg", Division::Weight(75)),
    ("weight:85-94", "85 to 94 kg", Division::Weight(85)),
    ("weight:95-104", "95 to 104 kg", Division::Weight(95)),
    ("weight:105-114", "105 to 114 kg", Division::Weight(105)),
    ("weight:115+", "From 115 kg", Division::Weight(115)),
];

/// Values of `window=` with their titles.
pub(crate) const WINDOWS: [(&str, &str, Window); 4] = [
    ("all", "All time", Window::All),
    ("year", "The year", Window::Year),
    ("month", "The month", Window::Month),
    ("day", "The day", Window::Day),
];

/// Accepted values of `board=`, for messages.
const ACCEPTED_BOARDS: &str = "overall, gender:F, gender:M, gender:X, age:GROUP (0-19, 20-24, 25-34, 35-44, 45-54, 55-64, 65-69, 70-74, 75+) or weight:CLASS (0-54, 55-64, 65-74, 75-84, 85-94, 95-104, 105-114, 115+)";

/// Value of `board=`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Division {
    /// All athletes.
    Overall,
    /// Athletes of a gender.
    Gender(&'static str),
    /// Athletes by lowest and highest age on the day of the effort.
    Age(i64, i64),
    /// Athletes of a weight class, by its lowest weight in kg.
    Weight(i64),
}

/// The calendar period that a board covers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Window {
    All,
    Year,
    Month,
    Day,
}

/// A requested board of a key, and the filters on its rows.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct RequestedBoard {
    /// Values of the board columns.
    pub(crate) columns: Vec<KeyValue>,
    /// Filters by column of the payload.
    pub(crate) filters: Vec<(&'static str, ColumnFilter)>,
}

/// True if a view has divisions and windows.
pub(crate) fn has_divisions(job: &Job<Board>) -> bool {
    !job.board_columns().0.is_empty()
}

/// Parses a value of `board=`.
pub(crate) fn parse_division(text: &str) -> Result<Division, String> {
    // A plus sign that was not percent-encoded arrives as a space.
    let open_end = text.strip_suffix(' ').map(|lowest| format!("{lowest}+"));
    let name = open_end.as_deref().unwrap_or(text);
    let named = DIVISIONS.into_iter().find(|(value, ..)| *value == name);
    named
        .map(|(.., division)| division)
        .ok_or_else(|| format!("board={text:?} is unknown: write {ACCEPTED_BOARDS}"))
}

/// Parses a value of `window=`.
pub(crate) fn parse_window(text: &str) -> Result<Window, String> {
    let named = WINDOWS.into_iter().find(|(value, ..)| *value == text);
    named
        .map(|(.., window)| window)
        .ok_or_else(|| format!("window={text:?} is unknown: write all, year, month or day"))
}

/// Value of the column `division` for a board of all time.
fn division_column_value(division: Division) -> i64 {
    match division {
        Division::Overall => OVERALL,
        Division::Gender("F") => 1,
        Division::Gender("M") => 2,
        Division::Gender(_) => 3,
        Division::Age(lowest, _) => AGE_OFFSET + lowest,
        Division::Weight(lowest) => WEIGHT_OFFSET + lowest,
    }
}

/// Resolves a division and the window that contains a date to the board of a view. Windows before
/// the year 1000 are empty.
pub(crate) fn resolve_board(
    job: &Job<Board>,
    requested: Division,
    window: Window,
    date: Date,
) -> RequestedBoard {
    let year = i64::from(date.year());
    let month = year * 100 + i64::from(date.month());
    let period = match window {
        Window::All => ALL_TIME,
        _ if year < YEAR_MIN => EMPTY_PERIOD,
        Window::Year => year,
        Window::Month => month,
        Window::Day => month * 100 + i64::from(date.day()),
    };
    let filter = match requested {
        Division::Overall => None,
        Division::Gender(letter) => Some(("gender", ColumnFilter::Text(letter.to_owned()))),
        Division::Weight(lowest) => Some(("weight_class", ColumnFilter::Int(lowest..=lowest))),
        // Within a calendar year, the year of birth determines the age.
        Division::Age(lowest, highest) => {
            let birth_years = year.saturating_sub(highest)..=year - lowest;
            Some(("birth_year", ColumnFilter::Int(birth_years)))
        }
    };
    let (division, filters) = match window {
        Window::All => (division_column_value(requested), Vec::new()),
        _ => (OVERALL, filter.into_iter().collect()),
    };
    let columns = job.board_columns().0.iter().map(|column| {
        KeyValue::Int(match column.name.as_str() {
            DIVISION_COLUMN => division,
            PERIOD_COLUMN => period,
            _ => 0,
        })
    });
    RequestedBoard {
        columns: columns.collect(),
        filters,
    }
}

#[cfg(test)]
#[path = "divisions_tests.rs"]
mod tests;
