//! Entities: rows of the entity store, their JSON lines, and the columns that views read.
//!
//! A line is the whole row: an absent optional field takes its default. Every row has a version. A
//! row that is older than the stored one is ignored; one of equal version is applied.

mod cache_miss;
mod columns;
mod decode;
mod group;
mod raw;

pub use cache_miss::CacheMiss;
pub use columns::{
    AuthorizationBatchBuilder, AuthorizationRow, EffortBatchBuilder, EffortRow, schema,
};
pub use decode::parse;
pub use group::{Group, Notifications, key_column, parse_notification};

use serde::Deserialize;

use raw::or_default;

/// An effort of an athlete on a segment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Effort {
    /// Its id.
    pub id: i64,
    /// The segment. It never changes.
    pub segment_id: i64,
    /// The athlete. It never changes.
    pub athlete_id: i64,
    /// The activity of the effort.
    pub activity_id: i64,
    /// The duration in whole seconds, more than 0.
    pub elapsed_time_s: i64,
    /// The start, in microseconds since the Unix epoch; finer digits are truncated.
    pub started_at_us: i64,
    /// The IANA time zone of the location.
    pub tz: String,
    /// True if only the athlete may see the effort. It is on no board then.
    pub is_hidden: bool,
    /// True if the effort was deleted.
    pub is_deleted: bool,
    /// The version of the row.
    pub version: i64,
}

/// The gender of an athlete, by which boards are divided.
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
    /// Returns the letter that lines and answers use.
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
    /// The display name.
    pub name: Option<String>,
    /// The gender, if known.
    pub gender: Option<Gender>,
    /// The year of birth, if known.
    pub birth_year: Option<i64>,
    /// The weight in kg, if known.
    pub weight_kg: Option<f64>,
    /// The country (ISO 3166 alpha-2), if known.
    pub country: Option<String>,
    /// True if the athlete is disqualified. No effort of the athlete is on a board while this is
    /// set.
    pub is_disqualified: bool,
    /// True if the athlete was deleted. No effort of the athlete is on a board then.
    pub is_deleted: bool,
    /// The version of the row.
    pub version: i64,
}

/// The membership of an athlete in a club.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Membership {
    /// The club.
    pub club_id: i64,
    /// The athlete.
    pub athlete_id: i64,
    /// True if the membership ended.
    #[serde(default, rename = "deleted", deserialize_with = "or_default")]
    pub is_deleted: bool,
    /// The version of the row.
    #[serde(default, deserialize_with = "or_default")]
    pub version: i64,
}

/// The relation of an athlete who follows another one.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Follow {
    /// The athlete who follows.
    pub follower_id: i64,
    /// The athlete who is followed.
    pub followed_id: i64,
    /// True if the relation ended.
    #[serde(default, rename = "deleted", deserialize_with = "or_default")]
    pub is_deleted: bool,
    /// The version of the row.
    #[serde(default, deserialize_with = "or_default")]
    pub version: i64,
}

/// The permission of an athlete for an application.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Authorization {
    /// Its id.
    pub id: i64,
    /// The application. It never changes.
    pub application_id: i64,
    /// The athlete. It never changes.
    pub athlete_id: i64,
    /// When it was granted, in microseconds since the Unix epoch.
    pub created_at_us: i64,
    /// When it was revoked. If set, the authorization does not count, even for a time in the
    /// future.
    pub revoked_at_us: Option<i64>,
    /// The version of the row.
    pub version: i64,
}

/// An application that athletes connect to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Application {
    /// Its id.
    pub id: i64,
    /// The display name.
    pub name: String,
    /// The owner as the line gave it: a JSON string or number.
    pub owner: serde_json::Value,
    /// The maximum number of distinct athletes that are connected at the same time.
    pub athlete_capacity: i64,
    /// The version of the row.
    pub version: i64,
}

/// A row of any entity source.
#[derive(Debug, Clone, PartialEq)]
pub enum Entity {
    /// A row of `efforts`.
    Effort(Effort),
    /// A row of `athletes`.
    Athlete(Athlete),
    /// A row of `clubs`.
    Membership(Membership),
    /// A row of `follows`.
    Follow(Follow),
    /// A row of `authorizations`.
    Authorization(Authorization),
    /// A row of `applications`.
    Application(Application),
}

impl Entity {
    /// Returns the id of the row within its source. The second number is 0 if the id has one part.
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

    /// Returns the version of the row.
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
