//! Questions about boards, as a client asks them.

use jiff::civil::Date;
use rand::Rng;
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;

use super::Ids;
use super::rows::Rows;
use crate::demo::client::Parameters;

/// Every board.
pub(super) const BOARDS: [&str; 21] = [
    "overall",
    "gender:F",
    "gender:M",
    "gender:X",
    "age:0-19",
    "age:20-24",
    "age:25-34",
    "age:35-44",
    "age:45-54",
    "age:55-64",
    "age:65-69",
    "age:70-74",
    "age:75+",
    "weight:0-54",
    "weight:55-64",
    "weight:65-74",
    "weight:75-84",
    "weight:85-94",
    "weight:95-104",
    "weight:105-114",
    "weight:115+",
];

/// The calendar time that a board is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Window {
    All,
    Year,
    Month,
    Day,
}

impl Window {
    pub(super) const EVERY: [Self; 4] = [Self::All, Self::Year, Self::Month, Self::Day];

    /// Whether the year, month or day that holds `date` holds `day` as well.
    pub(super) fn holds(self, date: Date, day: Date) -> bool {
        match self {
            Self::All => true,
            Self::Year => day.year() == date.year(),
            Self::Month => (day.year(), day.month()) == (date.year(), date.month()),
            Self::Day => day == date,
        }
    }
}

/// A board.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Asked {
    pub(super) segment: i64,
    pub(super) board: &'static str,
    pub(super) window: Window,
    /// The day whose year, month or day it is.
    pub(super) date: Date,
    /// Only athletes of this club.
    pub(super) club: Option<i64>,
    /// Only this athlete and those that this athlete follows.
    pub(super) following: Option<i64>,
}

impl Asked {
    /// Everybody on a segment, at all times.
    pub(super) const fn overall(segment: i64) -> Self {
        Self {
            segment,
            board: "overall",
            window: Window::All,
            date: Date::ZERO,
            club: None,
            following: None,
        }
    }

    /// A board that is not empty, most of the time.
    pub(super) fn any(ids: Ids, rows: &Rows, today: Date, rng: &mut StdRng) -> Self {
        let mut asked = Self::overall(ids.segments().choose(rng));
        asked.board = BOARDS.choose(rng).copied().unwrap_or("overall");
        asked.window = Window::EVERY.choose(rng).copied().unwrap_or(Window::All);
        asked.date = today;
        if rng.random_bool(0.3) {
            asked.date = asked.some_day(rows, rng).unwrap_or(today);
        }
        asked.club = rng.random_bool(0.2).then(|| ids.clubs().choose(rng));
        asked.following = rng.random_bool(0.2).then(|| ids.followers().choose(rng));
        asked
    }

    /// The day of some effort on the segment.
    pub(super) fn some_day(&self, rows: &Rows, rng: &mut StdRng) -> Option<Date> {
        let of_segment = rows.efforts.values();
        let days: Vec<Date> = of_segment
            .filter(|effort| effort.segment == self.segment)
            .map(|effort| effort.day)
            .collect();
        days.choose(rng).copied()
    }

    /// The path of the board's pages.
    pub(super) fn path(&self) -> String {
        format!("/api/v1/boards/segments/{}", self.segment)
    }

    /// The parameters that say which rows of which board.
    pub(super) fn parameters(&self) -> Parameters {
        let mut all = Vec::new();
        if self.board != "overall" {
            all.push(("board", self.board.to_owned()));
        }
        if self.window != Window::All {
            all.push(("window", format!("{:?}", self.window).to_lowercase()));
            all.push(("date", self.date.to_string()));
        }
        all.extend(self.club.map(|club| ("club_id", club.to_string())));
        all.extend(
            self.following
                .map(|athlete| ("following", athlete.to_string())),
        );
        all
    }
}
