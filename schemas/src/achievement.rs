//! Outbox messages about boards: board changes, and the achievements that follow from them.
//!
//! Messages wait in the outbox of their partition state. The id of a message follows from its
//! subject, so a consumer recognizes a repeated message.

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use serde_json::{Map, Value};
use xxhash_rust::xxh3::xxh3_128;

use crate::seam::Offset;
use crate::source::Source;
use crate::{json_error, named};

/// The topic of achievements.
pub const ACHIEVEMENTS_TOPIC: &str = "backstitch.achievements.v1";
/// The topic of changes of boards.
pub const BOARD_CHANGES_TOPIC: &str = "backstitch.board-changes.v1";

named! {
    /// A kind of achievement, or of its loss.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
    #[serde(rename_all = "snake_case")]
    pub enum AchievementKind {
        /// The first rank of a board.
        Crown = "crown",
        /// The athlete lost the first rank.
        CrownLost = "crown_lost",
        /// A rank from 2 to 10.
        TopTen = "top_ten",
        /// An effort that is faster than all earlier ones of the member.
        PersonalRecord = "personal_record",
    }
    else UnknownAchievementKind, UnknownAchievementKind;
}

/// A name that is not a kind of achievement.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} is not a kind of achievement; the kinds are: {all}",
    all = AchievementKind::ALL.map(AchievementKind::name).join(", ")
)]
pub struct UnknownAchievementKind(pub String);

/// The log position of the notification that caused a change.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct NotificationPosition {
    /// The source.
    pub source: Source,
    /// The log partition.
    pub partition: u32,
    /// The offset.
    pub offset: Offset,
}

/// The parts of an achievement that decide where its message is stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct AchievementKey {
    /// The kind of achievement.
    pub kind: AchievementKind,
    /// The athlete.
    pub member: i64,
    /// The activity of the effort, if there is one.
    pub activity: Option<i64>,
}

/// A message of an outbox.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct OutboxMessage {
    /// Identifies the change; equal for repeated messages.
    pub id: String,
    /// The key of the board: a segment or an application.
    pub key: i64,
    /// When the notification was logged, in milliseconds since the Unix epoch.
    pub at_ms: i64,
    /// The notification.
    pub position: NotificationPosition,
    /// The achievement; none for a board change.
    #[serde(default, rename = "achieved", skip_serializing_if = "Option::is_none")]
    pub achievement: Option<AchievementKey>,
    /// The message for consumers.
    pub message: Map<String, Value>,
}

/// A message of an outbox whose text is not decoded.
#[derive(Debug, Clone, Copy, Deserialize)]
pub struct OutboxMessageRef<'a> {
    /// The key of the board: a segment or an application.
    pub key: i64,
    /// The notification.
    pub position: NotificationPosition,
    /// The achievement; none for a board change.
    #[serde(default, rename = "achieved")]
    pub achievement: Option<AchievementKey>,
    /// The message for consumers, as JSON.
    #[serde(borrow)]
    pub message: &'a RawValue,
}

/// Returns the id of a message about a member under a key. It is equal for repeated messages.
///
/// `subject` names what the message is about, such as the kind and the board.
#[must_use]
pub fn message_id(
    position: &NotificationPosition,
    view: &str,
    key: i64,
    member: i64,
    subject: [&str; 2],
) -> String {
    let NotificationPosition {
        source,
        partition,
        offset,
    } = position;
    let name = source.name();
    let identity = (name, partition, offset, view, key, member, subject);
    let bytes = serde_json::to_vec(&identity).unwrap_or_default();
    format!("{:032x}", xxh3_128(&bytes))
}

impl<'a> OutboxMessageRef<'a> {
    /// Returns the topic of the message.
    #[must_use]
    pub const fn topic(&self) -> &'static str {
        match self.achievement {
            Some(_) => ACHIEVEMENTS_TOPIC,
            None => BOARD_CHANGES_TOPIC,
        }
    }

    /// Decodes a stored message.
    ///
    /// # Errors
    /// The reason why the bytes are not a message.
    pub fn decode(bytes: &'a [u8]) -> Result<Self, String> {
        json_error::decode(bytes).map_err(|reason| describe_unreadable(&reason))
    }
}

fn describe_unreadable(reason: &str) -> String {
    format!(
        "cannot read a message of an outbox ({reason}): use the version of Backstitch that wrote it"
    )
}

impl OutboxMessage {
    /// Encodes the message for storage in an outbox.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        // Encoding texts, numbers and maps of them cannot fail.
        serde_json::to_vec(self).unwrap_or_default()
    }

    /// Decodes a stored message.
    ///
    /// # Errors
    /// The reason why the bytes are not a message.
    pub fn decode(bytes: &[u8]) -> Result<Self, String> {
        json_error::decode(bytes).map_err(|reason| describe_unreadable(&reason))
    }

    /// Returns whether the message reports that this athlete took another one's crown.
    #[must_use]
    pub fn is_crown_taken_by(&self, athlete_id: i64) -> bool {
        self.message.get(TAKEN_BY).and_then(Value::as_i64) == Some(athlete_id)
    }

    /// Removes the athlete who took the crown from the message.
    #[must_use]
    pub fn without_taker(mut self) -> Self {
        if let Some(taken_by) = self.message.get_mut(TAKEN_BY) {
            *taken_by = Value::Null;
        }
        self
    }
}

/// Returns whether the message in a record mentions a requested athlete: as its subject, or as the
/// taker of a crown.
#[must_use]
pub fn mentions_athlete(message: &[u8], is_requested: impl Fn(i64) -> bool) -> bool {
    let Ok(message) = serde_json::from_slice::<Map<String, Value>>(message) else {
        return false;
    };
    let fields = ["athlete_id", TAKEN_BY].into_iter();
    fields
        .filter_map(|field| message.get(field).and_then(Value::as_i64))
        .any(is_requested)
}

/// The field with the athlete who took a crown.
const TAKEN_BY: &str = "taken_by";

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn kind_names_round_trip() {
        for kind in AchievementKind::ALL {
            assert_eq!(kind.name().parse(), Ok(kind));
            assert_eq!(serde_json::to_value(kind).unwrap(), json!(kind.name()));
        }
        let unknown = "kom".parse::<AchievementKind>().unwrap_err().to_string();
        assert!(unknown.contains("crown, crown_lost"), "{unknown}");
    }

    #[test]
    fn messages_round_trip() {
        let mut stored = OutboxMessage {
            id: "00ff".to_owned(),
            key: -3,
            at_ms: 5,
            position: NotificationPosition {
                source: Source::Efforts,
                partition: 1,
                offset: i64::MAX,
            },
            achievement: None,
            message: Map::from_iter([("x".to_owned(), json!([1, null]))]),
        };
        let check_round_trip = |stored: &OutboxMessage, topic: &str| {
            let bytes = stored.encode();
            assert_eq!(OutboxMessage::decode(&bytes), Ok(stored.clone()));
            let borrowed = OutboxMessageRef::decode(&bytes).unwrap();
            assert_eq!(
                (borrowed.key, borrowed.position),
                (stored.key, stored.position)
            );
            assert_eq!(
                (borrowed.achievement, borrowed.topic()),
                (stored.achievement, topic)
            );
            let message = serde_json::to_string(&stored.message).unwrap();
            assert_eq!(borrowed.message.get(), message);
        };
        check_round_trip(&stored, BOARD_CHANGES_TOPIC);
        stored.achievement = Some(AchievementKey {
            kind: AchievementKind::TopTen,
            member: 7,
            activity: None,
        });
        check_round_trip(&stored, ACHIEVEMENTS_TOPIC);
        assert!(OutboxMessageRef::decode(b"{}").is_err());
        assert!(OutboxMessage::decode(b"{}").is_err());
    }
}
