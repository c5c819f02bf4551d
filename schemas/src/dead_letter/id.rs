//! By what a dead letter goes: its own place in the log.

use std::fmt;
use std::str::FromStr;

use serde::{Serialize, Serializer};

use super::Place;
use crate::seam::Offset;
use crate::source::Source;

/// The place of a dead letter in the log, written `TOPIC/PARTITION@OFFSET`, as in
/// `backstitch.plays.v1.dlq/0@17`. It stays the same as long as the topic is not made again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LetterId {
    /// The source whose dead letter it is.
    pub source: Source,
    /// The partition of the source's dead-letter topic.
    pub partition: u32,
    /// The offset there.
    pub offset: Offset,
}

impl fmt::Display for LetterId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let place = Place {
            topic: self.source.dead_letter_topic(),
            partition: self.partition,
            offset: self.offset,
        };
        place.fmt(f)
    }
}

impl Serialize for LetterId {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(self)
    }
}

/// A text that is no id of a dead letter.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} is no id of a dead letter: write TOPIC/PARTITION@OFFSET as lists show it, such as backstitch.plays.v1.dlq/0@17"
)]
pub struct NoLetterId(pub String);

impl FromStr for LetterId {
    type Err = NoLetterId;

    fn from_str(text: &str) -> Result<Self, NoLetterId> {
        let of = |place: Place<'_>| {
            let is_of = |source: &Source| source.dead_letter_topic() == place.topic;
            let id = Self {
                source: Source::ALL.into_iter().find(is_of)?,
                partition: place.partition,
                offset: place.offset,
            };
            // One letter has one id: no plus, no zeros in front.
            (id.offset >= 0 && id.to_string() == text).then_some(id)
        };
        Place::of(text)
            .and_then(of)
            .ok_or_else(|| NoLetterId(text.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_is_written_in_one_way() {
        for source in Source::ALL {
            let id = LetterId {
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
            let error = wrong.parse::<LetterId>().unwrap_err().to_string();
            assert!(error.starts_with(&format!("{wrong:?} is no id")), "{error}");
        }
    }
}
