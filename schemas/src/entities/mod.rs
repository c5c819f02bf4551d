//! Entities: rows of the canonical store, as JSON lines bring them and as the columns that views
//! read.
//!
//! A line is the whole row: an optional field that is absent takes its default. Every row has a
//! version; an older one than the stored is ignored, an equal one is applied.

mod columns;
mod decode;
mod group;
mod miss;
mod raw;

pub use columns::{AuthorizationColumns, AuthorizationRow, EffortColumns, EffortRow, schema};
pub use decode::parse;
pub use group::{Group, Notifications, key_column, parse_notification};
pub use miss::Miss;

use serde::Deserialize;

use raw::or_default;

/// An effort of an athlete on a segment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Effort {
    /// Its id.
    pub id: i64,
    /// The segment; it never changes.
    pub segment_id: i64,
    /// The athlete; never changes either.
    pub athlete_id: i64,
    /// The activity that it is a part of.
    pub activity_id: i64,
    /// How long it took, in whole seconds: more than 0.
    pub elapsed_time_s: i64,
    /// When it began, in microseconds since the Unix epoch; finer digits are cut off.
    pub started_at_us: i64,
    /// The IANA name of the zone of the place.
    pub tz: String,
    /// Whether only the athlete may see it: then it is on no board.
    pub is_hidden: bool,
    /// Whether it was deleted.
    pub is_deleted: bool,
    /// The version of the row.
    pub version: i64,
}

/// What an athlete may be of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Gender {
    /// Women.
    F,
    /// Men.
    M,
    /// Others.
    X,
}

impl Gender {
    /// The letter in lines and answers.
    #[must_use]
    pub const fn letter(self) -> &'static str {
        match self {
            Self::F => "F",
            Self::M => "M",
            Self::X => "X",
        }
    }
}

/// An athlete.
#[derive(Debug, Clone, PartialEq)]
pub struct Athlete {
    /// The athlete's id.
    pub id: i64,
    /// A name to show.
    pub name: Option<String>,
    /// The gender, where it is told.
    pub gender: Option<Gender>,
    /// The year of birth, where it is told.
    pub birth_year: Option<i64>,
    /// The weight in kg, where it is told.
    pub weight_kg: Option<f64>,
    /// The country (ISO 3166 alpha-2), where it is told.
    pub country: Option<String>,
    /// Whether the athlete is disqualified: then none of the athlete's efforts is on a board, until
    /// a row says otherwise.
    pub is_disqualified: bool,
    /// Whether the athlete was deleted: then none of the athlete's efforts is on a board.
    pub is_deleted: bool,
    /// The version of the row.
    pub version: i64,
}

/// That an athlete is in a club.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Membership {
    /// The club.
    pub club_id: i64,
    /// The athlete.
    pub athlete_id: i64,
    /// Whether the athlete is in it no more.
    #[serde(default, rename = "deleted", deserialize_with = "or_default")]
    pub is_deleted: bool,
    /// The version of the row.
    #[serde(default, deserialize_with = "or_default")]
    pub version: i64,
}

/// That an athlete follows another.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Follow {
    /// Who follows.
    pub follower_id: i64,
    /// Who is followed.
    pub followed_id: i64,
    /// Whether it has ended.
    #[serde(default, rename = "deleted", deserialize_with = "or_default")]
    pub is_deleted: bool,
    /// The version of the row.
    #[serde(default, deserialize_with = "or_default")]
    pub version: i64,
}

/// A permission that an athlete gave to an application.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Authorization {
    /// Its id.
    pub id: i64,
    /// The application; it never changes.
    pub application_id: i64,
    /// The athlete; never changes either.
    pub athlete_id: i64,
    /// When it was given, in microseconds since the Unix epoch.
    pub created_at_us: i64,
    /// When it was taken back, if it was: whatever the time, it counts no more.
    pub revoked_at_us: Option<i64>,
    /// The version of the row.
    pub version: i64,
}

/// An application that athletes connect to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Application {
    /// Its id.
    pub id: i64,
    /// A name to show.
    pub name: String,
    /// Whose it is, as it was given: a JSON text or number.
    pub owner: serde_json::Value,
    /// How many different athletes may be connected at once.
    pub athlete_capacity: i64,
    /// The version of the row.
    pub version: i64,
}

/// A row of any source of entities.
#[derive(Debug, Clone, PartialEq)]
pub enum Entity {
    /// Of `efforts`.
    Effort(Effort),
    /// Of `athletes`.
    Athlete(Athlete),
    /// Of `clubs`.
    Membership(Membership),
    /// Of `follows`.
    Follow(Follow),
    /// Of `authorizations`.
    Authorization(Authorization),
    /// Of `applications`.
    Application(Application),
}

impl Entity {
    /// What tells the row from others of its source; the second number is 0 where the first one does.
    #[must_use]
    pub const fn id(&self) -> (i64, i64) {
        match self {
            Self::Effort(row) => (row.id, 0),
            Self::Athlete(row) => (row.id, 0),
            Self::Membership(row) => (row.club_id, row.athlete_id),
            Self::Follow(row) => (row.follower_id, row.followed_id),
            Self::Authorization(row) => (row.id, 0),
            Self::Application(row) => (row.id, 0),
        }
    }

    /// The version of the row.
    #[must_use]
    pub const fn version(&self) -> i64 {
        match self {
            Self::Effort(row) => row.version,
            Self::Athlete(row) => row.version,
            Self::Membership(row) => row.version,
            Self::Follow(row) => row.version,
            Self::Authorization(row) => row.version,
            Self::Application(row) => row.version,
        }
    }
}
