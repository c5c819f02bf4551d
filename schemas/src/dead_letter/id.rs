//! The id of a dead letter: its position in the dead-letter topic.

use std::fmt;
use std::str::FromStr;

use serde::{Serialize, Serializer};

use super::LogPosition;
use crate::seam::Offset;
use crate::source::Source;

/// The position of a dead letter in the log, written `TOPIC/PARTITION@OFFSET`, as in
/// `backstitch.plays.v1.dlq/0@17`. It is stable as long as the topic is not recreated.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DeadLetterId {
    /// The source of the dead letter.
    pub source: Source,
    /// The partition of the source's dead-letter topic.
    pub partition: u32,
    /// The offset in that partition.
    pub offset: Offset,
}

impl fmt::Display for DeadLetterId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let position = LogPosition {
            topic: self.source.dead_letter_topic(),
            partition: self.partition,
            offset: self.offset,
        };
        position.fmt(f)
    }
}

impl Serialize for DeadLetterId {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// A text that is not the id of a dead letter.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} is not the id of a dead letter: write TOPIC/PARTITION@OFFSET as lists show it, such as backstitch.plays.v1.dlq/0@17"
)]
pub struct DeadLetterIdError(pub String);

impl FromStr for DeadLetterId {
    type Err = DeadLetterIdError;

    fn from_str(text: &str) -> Result<Self, DeadLetterIdError> {
        let from_position = |position: LogPosition<'_>| {
            let has_topic = |source: &Source| source.dead_letter_topic() == position.topic;
            let id = Self {
                source: Source::ALL.into_iter().find(has_topic)?,
                partition: position.partition,
                offset: position.offset,
            };
            // Each id has one spelling: no plus sign and no leading zeros.
            (id.offset >= 0 && id.to_string() == text).then_some(id)
        };
        LogPosition::parse(text)
            .and_then(from_position)
            .ok_or_else(|| DeadLetterIdError(text.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_has_one_spelling() {
        for source in Source::ALL {
            let id = DeadLetterId {
                source,
                partition: 3,
                offset: 17,
            };
            assert_eq!(id.to_string().parse(), Ok(id));
            assert_eq!(serde_json::to_value(id).unwrap(), id.to_string());
        }
        for wrong in [
            "",
            "17",
            "plays/0@1",
            "backstitch.plays.v1/0@1",
            "backstitch.plays.v1.dlq/0@-1",
            "backstitch.plays.v1.dlq/0@+1",
            "backstitch.plays.v1.dlq/0@01",
            "backstitch.plays.v1.dlq/-1@1",
            "backstitch.plays.v1.dlq/0",
            " backstitch.plays.v1.dlq/0@1",
            "backstitch.plays.v1.dlq/0@99999999999999999999",
        ] {
            let error = wrong.parse::<DeadLetterId>().unwrap_err().to_string();
            assert!(
                error.starts_with(&format!("{wrong:?} is not the id")),
                "{error}"
            );
        }
    }
}
