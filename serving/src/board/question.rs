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

/// The age groups: lowest and highest age.
const AGES: [(&str, i64, i64); 9] = [
    ("0-19", 0, 19),
    ("20-24", 20, 24),
    ("25-34", 25, 34),
    ("35-44", 35, 44),
    ("45-54", 45, 54),
    ("55-64", 55, 64),
    ("65-69", 65, 69),
    ("70-74", 70, 74),
    ("75+", 75, i64::MAX),
];

/// The genders, with their divisions.
const GENDERS: [(&str, i64); 3] = [("F", 1), ("M", 2), ("X", 3)];

/// The weight classes by their lowest kg.
const WEIGHTS: [(&str, i64); 8] = [
    ("0-54", 0),
    ("55-64", 55),
    ("65-74", 65),
    ("75-84", 75),
    ("85-94", 85),
    ("95-104", 95),
    ("105-114", 105),
    ("115+", 115),
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
    let unknown = || format!("board={text:?} is unknown: write {BOARDS}");
    let Some((kind, which)) = text.split_once(':') else {
        return (text == "overall")
            .then_some(Named::Overall)
            .ok_or_else(unknown);
    };
    // A plus that was not percent-encoded arrives as a blank.
    let open_end = which.strip_suffix(' ').map(|lowest| format!("{lowest}+"));
    let which = open_end.as_deref().unwrap_or(which);
    let found = match kind {
        "gender" => GENDERS
            .into_iter()
            .find(|(gender, _)| *gender == which)
            .map(|(gender, _)| Named::Gender(gender)),
        "age" => AGES
            .into_iter()
            .find(|(name, ..)| *name == which)
            .map(|(_, lowest, highest)| Named::Age(lowest, highest)),
        "weight" => WEIGHTS
            .into_iter()
            .find(|(name, _)| *name == which)
            .map(|(_, lowest)| Named::Weight(lowest)),
        _ => None,
    };
    found.ok_or_else(unknown)
}

/// The window that a text names.
pub(crate) fn window(text: &str) -> Result<Window, String> {
    match text {
        "all" => Ok(Window::All),
        "year" => Ok(Window::Year),
        "month" => Ok(Window::Month),
        "day" => Ok(Window::Day),
        _ => Err(format!(
            "window={text:?} is unknown: write all, year, month or day"
        )),
    }
}

/// The value of the column `division` for a board of all time.
fn division(named: Named) -> i64 {
    match named {
        Named::Overall => OVERALL,
        Named::Gender(letter) => {
            let mut genders = GENDERS.into_iter();
            let found = genders.find(|(gender, _)| *gender == letter);
            found.map_or(NEVER, |(_, division)| division)
        }
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
