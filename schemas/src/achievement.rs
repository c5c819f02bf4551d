//! What is told of boards: that one changed, and what an athlete achieved by it.
//!
//! Both are messages. They wait in the outbox of the slot that they were made in, and each is told
//! under an id that says what it is about: so one that comes twice is known.

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use serde_json::{Map, Value};
use xxhash_rust::xxh3::xxh3_128;

use crate::named;
use crate::seam::Offset;
use crate::source::Source;

/// The topic of achievements.
pub const ACHIEVEMENTS: &str = "backstitch.achievements.v1";
/// The topic of changes of boards.
pub const BOARD_CHANGES: &str = "backstitch.board-changes.v1";

named! {
    /// What was achieved, or lost.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
    #[serde(rename_all = "snake_case")]
    pub enum Kind {
        /// The first place of a board.
        Crown = "crown",
        /// The first place is somebody else's now, or nobody's.
        CrownLost = "crown_lost",
        /// A place from the second to the tenth.
        TopTen = "top_ten",
        /// An effort that is faster than all the member's before.
        PersonalRecord = "personal_record",
    }
    else UnknownKind, UnknownKind;
}

/// A name that is no kind of achievement.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} is no kind of achievement; the kinds are: {all}",
    all = Kind::ALL.map(Kind::name).join(", ")
)]
pub struct UnknownKind(pub String);

/// The notification that brought a change: its place in the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Position {
    /// The source.
    pub source: Source,
    /// The log partition.
    pub partition: u32,
    /// The offset.
    pub offset: Offset,
}

/// What somebody achieved, as far as it decides where the message is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Achieved {
    /// What it is.
    pub kind: Kind,
    /// The athlete.
    pub member: i64,
    /// The activity of the effort, where there is one.
    pub activity: Option<i64>,
}

/// A message of an outbox.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Told {
    /// Names what is told: the same for the same change.
    pub id: String,
    /// The key of the board: the segment, the application.
    pub key: i64,
    /// When the notification was logged, in milliseconds since the Unix epoch.
    pub at_ms: i64,
    /// The notification.
    pub position: Position,
    /// What was achieved; nothing for a change of boards.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub achieved: Option<Achieved>,
    /// What others are told.
    pub message: Map<String, Value>,
}

/// A message as it waits in an outbox: its text is not looked at.
#[derive(Debug, Clone, Copy, Deserialize)]
pub struct Waiting<'a> {
    /// The key of the board: the segment, the application.
    pub key: i64,
    /// The notification.
    pub position: Position,
    /// What was achieved; nothing for a change of boards.
    #[serde(default)]
    pub achieved: Option<Achieved>,
    /// What others are told, as JSON.
    #[serde(borrow)]
    pub message: &'a RawValue,
}

/// The id of what is told of a member under a key: the same whenever it is told.
#[must_use]
pub fn id(
    position: &Position,
    view: &str,
    (key, member): (i64, i64),
    what: (&str, &str),
) -> String {
    let Position {
        source,
        partition,
        offset,
    } = position;
    let of = (source.name(), partition, offset, view, key, member, what);
    let bytes = serde_json::to_vec(&of).unwrap_or_default();
    format!("{:032x}", xxh3_128(&bytes))
}

impl<'a> Waiting<'a> {
    /// The topic that it goes to.
    #[must_use]
    pub const fn topic(&self) -> &'static str {
        match self.achieved {
            Some(_) => ACHIEVEMENTS,
            None => BOARD_CHANGES,
        }
    }

    /// What waits in an outbox as these bytes.
    ///
    /// # Errors
    /// What is wrong with them.
    pub fn decode(bytes: &'a [u8]) -> Result<Self, String> {
        serde_json::from_slice(bytes).map_err(unreadable)
    }
}

fn unreadable(error: serde_json::Error) -> String {
    format!(
        "an entry of an outbox can't be read ({error}): use the version of Backstitch that wrote it"
    )
}

impl Told {
    /// The bytes of it as they wait in an outbox.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        // Texts, numbers and maps of them can always be written.
        serde_json::to_vec(self).unwrap_or_default()
    }

    /// What waits in an outbox as these bytes.
    ///
    /// # Errors
    /// What is wrong with them.
    pub fn decode(bytes: &[u8]) -> Result<Self, String> {
        serde_json::from_slice(bytes).map_err(unreadable)
    }

    /// Whether it is an achievement of another athlete, who lost a crown to this one.
    #[must_use]
    pub fn was_taken_by(&self, athlete_id: i64) -> bool {
        self.message.get(TAKEN_BY).and_then(Value::as_i64) == Some(athlete_id)
    }

    /// The same without who took the crown.
    #[must_use]
    pub fn taken_by_nobody(mut self) -> Self {
        if let Some(taken_by) = self.message.get_mut(TAKEN_BY) {
            *taken_by = Value::Null;
        }
        self
    }
}

/// Whether what others are told, as bytes of a record, names an athlete: as the one whom it is about, or who took a
/// crown.
#[must_use]
pub fn names_athlete(message: &[u8], has: impl Fn(i64) -> bool) -> bool {
    let Ok(message) = serde_json::from_slice::<Map<String, Value>>(message) else {
        return false;
    };
    let named = ["athlete_id", TAKEN_BY].into_iter();
    named
        .filter_map(|field| message.get(field).and_then(Value::as_i64))
        .any(has)
}

/// The field that says who took a crown.
const TAKEN_BY: &str = "taken_by";

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn every_kind_goes_by_one_name() {
        for kind in Kind::ALL {
            assert_eq!(kind.name().parse(), Ok(kind));
            assert_eq!(serde_json::to_value(kind).unwrap(), json!(kind.name()));
        }
        let unknown = "kom".parse::<Kind>().unwrap_err().to_string();
        assert!(unknown.contains("crown, crown_lost"), "{unknown}");
    }

    #[test]
    fn entries_come_back() {
        let mut told = Told {
            id: "00ff".to_owned(),
            key: -3,
            at_ms: 5,
            position: Position {
                source: Source::Efforts,
                partition: 1,
                offset: i64::MAX,
            },
            achieved: None,
            message: Map::from_iter([("x".to_owned(), json!([1, null]))]),
        };
        let comes_back = |told: &Told, topic: &str| {
            let bytes = told.encode();
            assert_eq!(Told::decode(&bytes), Ok(told.clone()));
            let waiting = Waiting::decode(&bytes).unwrap();
            assert_eq!((waiting.key, waiting.position), (told.key, told.position));
            assert_eq!((waiting.achieved, waiting.topic()), (told.achieved, topic));
            let message = serde_json::to_string(&told.message).unwrap();
            assert_eq!(waiting.message.get(), message);
        };
        comes_back(&told, BOARD_CHANGES);
        told.achieved = Some(Achieved {
            kind: Kind::TopTen,
            member: 7,
            activity: None,
        });
        comes_back(&told, ACHIEVEMENTS);
        assert!(Waiting::decode(b"{}").is_err());
        assert!(Told::decode(b"{}").is_err());
    }
}
