//! What is kept of an input that could not be taken: its bytes, where it came from and why.

mod id;
mod kind;

use std::fmt;

use serde::{Deserialize, Serialize};

pub use id::{LetterId, NoLetterId};
pub use kind::kind_of;

/// An input that could not be taken. Nothing is lost: the bytes are kept as they came.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeadLetter {
    /// The source that the input was meant for.
    pub source: String,
    /// Why it was not taken: field, fault and what is expected, in one line.
    pub reason: String,
    /// Where it came from: `FILE:LINE` at ingest, `TOPIC/PARTITION@OFFSET` in the log. The same
    /// origin in the log means the same dead letter, however often it was met.
    pub origin: String,
    /// When it was set aside, in milliseconds since the Unix epoch.
    pub at_ms: i64,
    /// The raw bytes; of more than [`RAW_BYTES_MAX`] only the first.
    #[serde(with = "raw_bytes")]
    pub raw: Vec<u8>,
}

/// So many bytes of an input are kept, so that any letter fits into the log: one more than a line may
/// have, so that what was clipped is never taken for a whole one.
pub const RAW_BYTES_MAX: usize = crate::plays::LINE_BYTES_MAX + 1;

impl DeadLetter {
    /// What tools of the log show beside it, under the names that Kafka Connect gives its dead
    /// letters: why, and where it stood if that was in the log.
    #[must_use]
    pub fn headers(&self) -> Vec<(&'static str, Vec<u8>)> {
        let mut headers = vec![("__connect.errors.exception.message", self.reason.clone())];
        if let Some(place) = Place::of(&self.origin) {
            headers.extend([
                ("__connect.errors.topic", place.topic.to_owned()),
                ("__connect.errors.partition", place.partition.to_string()),
                ("__connect.errors.offset", place.offset.to_string()),
            ]);
        }
        let bytes = |(name, text): (&'static str, String)| (name, text.into_bytes());
        headers.into_iter().map(bytes).collect()
    }

    /// The first bytes of the input, at most `max` of them; of a text no half characters.
    #[must_use]
    pub fn beginning(&self, max: usize) -> &[u8] {
        let end = match std::str::from_utf8(&self.raw) {
            Ok(text) => text.floor_char_boundary(max),
            Err(_) => max.min(self.raw.len()),
        };
        self.raw.get(..end).unwrap_or(&self.raw)
    }
}

/// A place in the log, as the origin of a dead letter names it: `TOPIC/PARTITION@OFFSET`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place<'a> {
    /// The topic.
    pub topic: &'a str,
    /// The partition.
    pub partition: u32,
    /// The offset.
    pub offset: i64,
}

impl<'a> Place<'a> {
    /// The place that an origin names, if that is in the log.
    #[must_use]
    pub fn of(origin: &'a str) -> Option<Self> {
        let (partition, offset) = origin.rsplit_once('@')?;
        let (topic, partition) = partition.rsplit_once('/')?;
        Some(Self {
            topic,
            partition: partition.parse().ok()?,
            offset: offset.parse().ok()?,
        })
    }
}

impl fmt::Display for Place<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}@{}", self.topic, self.partition, self.offset)
    }
}

/// Bytes as text where they are UTF-8, else as hexadecimal, so that dead letters can be read. Neither
/// makes them more than twice as long.
mod raw_bytes {
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    #[derive(Serialize, Deserialize)]
    enum Raw {
        #[serde(rename = "text")]
        Text(String),
        #[serde(rename = "hex")]
        Hex(#[serde(with = "hex::serde")] Vec<u8>),
    }

    pub(super) fn serialize<S: Serializer>(bytes: &[u8], to: S) -> Result<S::Ok, S::Error> {
        let escaped = |byte: &u8| match byte {
            0..0x20 => 6,
            b'"' | b'\\' => 2,
            _ => 1,
        };
        match std::str::from_utf8(bytes) {
            Ok(text) if bytes.iter().map(escaped).sum::<usize>() <= 2 * bytes.len() => {
                Raw::Text(text.to_owned())
            }
            _ => Raw::Hex(bytes.to_vec()),
        }
        .serialize(to)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<u8>, D::Error> {
        Ok(match Raw::deserialize(from)? {
            Raw::Text(text) => text.into_bytes(),
            Raw::Hex(bytes) => bytes,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_say_where_it_stood() {
        let letter = |origin: &str| DeadLetter {
            source: "plays".into(),
            reason: "kind: missing".into(),
            origin: origin.into(),
            at_ms: 1,
            raw: Vec::new(),
        };
        let why = (
            "__connect.errors.exception.message",
            b"kind: missing".to_vec(),
        );
        let headers = letter("backstitch.plays.v1/3@17").headers();
        let place = [
            ("__connect.errors.topic", b"backstitch.plays.v1".to_vec()),
            ("__connect.errors.partition", b"3".to_vec()),
            ("__connect.errors.offset", b"17".to_vec()),
        ];
        assert_eq!(headers[0], why);
        assert_eq!(headers[1..], place);
        for origin in ["plays.jsonl:17", "me@home/plays.jsonl:17", "a/b@c"] {
            let headers = letter(origin).headers();
            assert_eq!(headers, std::slice::from_ref(&why), "{origin}");
        }
    }

    #[test]
    fn the_beginning_of_a_text_is_a_text() {
        let letter = |raw: &[u8]| DeadLetter {
            source: "plays".into(),
            reason: "r".into(),
            origin: "f:1".into(),
            at_ms: 1,
            raw: raw.to_vec(),
        };
        assert_eq!(letter("aöb".as_bytes()).beginning(2), b"a");
        assert_eq!(letter("aöb".as_bytes()).beginning(3), "aö".as_bytes());
        assert_eq!(letter("aöb".as_bytes()).beginning(9), "aöb".as_bytes());
        assert_eq!(letter(&[0xff, 0xfe]).beginning(1), [0xff]);
        assert_eq!(letter(&[0xff, 0xfe]).beginning(9), [0xff, 0xfe]);
    }

    #[test]
    fn bytes_survive_whether_text_or_not() {
        for raw in [
            b"{\"a\":1".to_vec(),
            vec![0xff, 0x00, 0x7b],
            Vec::new(),
            vec![0; 1000],
            b"\\\"".repeat(500),
        ] {
            let letter = DeadLetter {
                source: "plays".into(),
                reason: "r".into(),
                origin: "f:1".into(),
                at_ms: 1,
                raw: raw.clone(),
            };
            let json = serde_json::to_vec(&letter).unwrap();
            assert!(json.len() <= 2 * raw.len() + 100, "{}", json.len());
            assert_eq!(
                serde_json::from_slice::<DeadLetter>(&json).unwrap().raw,
                raw
            );
        }
    }
}
