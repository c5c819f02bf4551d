//! Rows of each kind as columns, which either server writes by one statement for many of them.

use schemas::entities::{Application, Athlete, Authorization, Effort, Follow, Gender, Membership};

/// A column of rows that are to be written.
#[derive(Debug)]
pub(crate) enum Column {
    Ints(Vec<i64>),
    IntsOrNull(Vec<Option<i64>>),
    FloatsOrNull(Vec<Option<f64>>),
    Texts(Vec<String>),
    TextsOrNull(Vec<Option<String>>),
    Booleans(Vec<bool>),
}

/// What becomes of a row whose key is stored already.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Conflict {
    /// It is an error: it was not there a moment ago.
    Fail,
    /// It is written over, unless its version is newer.
    Newer,
}

/// Rows that are to be written; the columns of the key come first, the version last.
#[derive(Debug)]
pub(crate) struct Sheet {
    pub(crate) table: &'static str,
    pub(crate) key: &'static [&'static str],
    pub(crate) columns: Vec<(&'static str, Column)>,
    pub(crate) rows: usize,
}

impl Sheet {
    fn new(
        table: &'static str,
        key: &'static [&'static str],
        columns: Vec<(&'static str, Column)>,
        rows: usize,
    ) -> Self {
        Self {
            table,
            key,
            columns,
            rows,
        }
    }

    /// The columns' names.
    pub(crate) fn names(&self) -> Vec<&'static str> {
        self.columns.iter().map(|(name, _)| *name).collect()
    }
}

fn ints<T>(rows: &[&T], of: impl Fn(&T) -> i64) -> Column {
    Column::Ints(rows.iter().map(|row| of(row)).collect())
}

fn booleans<T>(rows: &[&T], of: impl Fn(&T) -> bool) -> Column {
    Column::Booleans(rows.iter().map(|row| of(row)).collect())
}

fn texts<T>(rows: &[&T], of: impl Fn(&T) -> String) -> Column {
    Column::Texts(rows.iter().map(|row| of(row)).collect())
}

fn texts_or_null<T>(rows: &[&T], of: impl Fn(&T) -> Option<String>) -> Column {
    Column::TextsOrNull(rows.iter().map(|row| of(row)).collect())
}

pub(crate) fn efforts(rows: &[&Effort]) -> Sheet {
    let columns = vec![
        ("id", ints(rows, |row| row.id)),
        ("segment_id", ints(rows, |row| row.segment_id)),
        ("athlete_id", ints(rows, |row| row.athlete_id)),
        ("activity_id", ints(rows, |row| row.activity_id)),
        ("elapsed_time_s", ints(rows, |row| row.elapsed_time_s)),
        ("started_at_us", ints(rows, |row| row.started_at_us)),
        ("tz", texts(rows, |row| row.tz.clone())),
        ("is_hidden", booleans(rows, |row| row.is_hidden)),
        ("is_deleted", booleans(rows, |row| row.is_deleted)),
        ("version", ints(rows, |row| row.version)),
    ];
    Sheet::new("efforts", &["id"], columns, rows.len())
}

pub(crate) fn athletes(rows: &[&Athlete]) -> Sheet {
    let birth_years = rows.iter().map(|row| row.birth_year).collect();
    let weights = rows.iter().map(|row| row.weight_kg).collect();
    let gender = |row: &Athlete| row.gender.map(|gender: Gender| gender.letter().to_owned());
    let columns = vec![
        ("id", ints(rows, |row| row.id)),
        ("name", texts_or_null(rows, |row| row.name.clone())),
        ("gender", texts_or_null(rows, gender)),
        ("birth_year", Column::IntsOrNull(birth_years)),
        ("weight_kg", Column::FloatsOrNull(weights)),
        ("country", texts_or_null(rows, |row| row.country.clone())),
        ("is_deleted", booleans(rows, |row| row.is_deleted)),
        ("version", ints(rows, |row| row.version)),
    ];
    Sheet::new("athletes", &["id"], columns, rows.len())
}

/// The athletes who are disqualified: the table lists nobody else.
pub(crate) fn disqualified(rows: &[&Athlete]) -> Sheet {
    let columns = vec![("athlete_id", ints(rows, |row| row.id))];
    Sheet::new("disqualified", &["athlete_id"], columns, rows.len())
}

pub(crate) fn memberships(rows: &[&Membership]) -> Sheet {
    let columns = vec![
        ("club_id", ints(rows, |row| row.club_id)),
        ("athlete_id", ints(rows, |row| row.athlete_id)),
        ("is_deleted", booleans(rows, |row| row.is_deleted)),
        ("version", ints(rows, |row| row.version)),
    ];
    Sheet::new("clubs", &["club_id", "athlete_id"], columns, rows.len())
}

pub(crate) fn follows(rows: &[&Follow]) -> Sheet {
    let columns = vec![
        ("follower_id", ints(rows, |row| row.follower_id)),
        ("followed_id", ints(rows, |row| row.followed_id)),
        ("is_deleted", booleans(rows, |row| row.is_deleted)),
        ("version", ints(rows, |row| row.version)),
    ];
    Sheet::new(
        "follows",
        &["follower_id", "followed_id"],
        columns,
        rows.len(),
    )
}

pub(crate) fn authorizations(rows: &[&Authorization]) -> Sheet {
    let revoked = rows.iter().map(|row| row.revoked_at_us).collect();
    let columns = vec![
        ("id", ints(rows, |row| row.id)),
        ("application_id", ints(rows, |row| row.application_id)),
        ("athlete_id", ints(rows, |row| row.athlete_id)),
        ("created_at_us", ints(rows, |row| row.created_at_us)),
        ("revoked_at_us", Column::IntsOrNull(revoked)),
        ("version", ints(rows, |row| row.version)),
    ];
    Sheet::new("authorizations", &["id"], columns, rows.len())
}

pub(crate) fn applications(rows: &[&Application]) -> Sheet {
    let columns = vec![
        ("id", ints(rows, |row| row.id)),
        ("name", texts(rows, |row| row.name.clone())),
        ("owner", texts(rows, |row| row.owner.to_string())),
        ("athlete_capacity", ints(rows, |row| row.athlete_capacity)),
        ("version", ints(rows, |row| row.version)),
    ];
    Sheet::new("applications", &["id"], columns, rows.len())
}
