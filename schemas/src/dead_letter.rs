//! Dead letters: rejected inputs with their bytes, their origin, and the reason.

mod id;
mod kind;

use std::fmt;

use serde::{Deserialize, Serialize};

pub use id::{DeadLetterId, DeadLetterIdError};
pub use kind::reason_kind;

/// A rejected input. Its bytes are stored unchanged.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeadLetter {
    /// The source that the input was addressed to.
    pub source: String,
    /// The reason for the rejection in one line: field, fault and expectation.
    pub reason: String,
    /// The origin: `FILE:LINE` at ingest, `TOPIC/PARTITION@OFFSET` in the log. Dead letters with
    /// the same origin in the log are the same.
    pub origin: String,
    /// When the input was rejected, in milliseconds since the Unix epoch.
    pub at_ms: i64,
    /// The input, truncated to [`RAW_BYTES_MAX`].
    #[serde(with = "raw_bytes")]
    pub raw: Vec<u8>,
}

/// The maximum number of stored bytes of an input, so that any dead letter fits into the log. It is
/// one more than a line may have: a truncated input is still rejected when it is reprocessed.
pub const RAW_BYTES_MAX: usize = crate::plays::LINE_BYTES_MAX + 1;

impl DeadLetter {
    /// Returns record headers with the reason and, if the origin is in the log, the position. Kafka
    /// Connect uses the same names for its dead letters.
    #[must_use]
    pub fn headers(&self) -> Vec<(&'static str, Vec<u8>)> {
        let mut headers = vec![("__connect.errors.exception.message", self.reason.clone())];
        if let Some(position) = LogPosition::parse(&self.origin) {
            headers.extend([
                ("__connect.errors.topic", position.topic.to_owned()),
                ("__connect.errors.partition", position.partition.to_string()),
                ("__connect.errors.offset", position.offset.to_string()),
            ]);
        }
        let bytes = |(name, text): (&'static str, String)| (name, text.into_bytes());
        headers.into_iter().map(bytes).collect()
    }

    /// Returns at most `max_bytes` bytes from the beginning of the input. Text ends at a character
    /// boundary.
    #[must_use]
    pub fn raw_prefix(&self, max_bytes: usize) -> &[u8] {
        let end = match std::str::from_utf8(&self.raw) {
            Ok(text) => text.floor_char_boundary(max_bytes),
            Err(_) => max_bytes.min(self.raw.len()),
        };
        self.raw.get(..end).unwrap_or(&self.raw)
    }
}

/// A position in the log, written `TOPIC/PARTITION@OFFSET`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LogPosition<'a> {
    /// The topic.
    pub topic: &'a str,
    /// The partition.
    pub partition: u32,
    /// The offset.
    pub offset: i64,
}

impl<'a> LogPosition<'a> {
    /// Parses the origin of a dead letter. Returns `None` if it is not in the log.
    #[must_use]
    pub fn parse(origin: &'a str) -> Option<Self> {
        let (topic_and_partition, offset) = origin.rsplit_once('@')?;
        let (topic, partition) = topic_and_partition.rsplit_once('/')?;
        Some(Self {
            topic,
            partition: partition.parse().ok()?,
            offset: offset.parse().ok()?,
        })
    }
}

impl fmt::Display for LogPosition<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}@{}", self.topic, self.partition, self.offset)
    }
}

/// Serializes bytes as text if they are UTF-8, else as hexadecimal, so that dead letters are
/// readable. Neither form is more than twice as long as the bytes.
mod raw_bytes {
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    #[derive(Serialize, Deserialize)]
    enum Raw {
        #[serde(rename = "text")]
        Text(String),
        #[serde(rename = "hex")]
        Hex(#[serde(with = "hex::serde")] Vec<u8>),
    }

    pub(super) fn serialize<S: Serializer>(bytes: &[u8], serializer: S) -> Result<S::Ok, S::Error> {
        let escaped_len = |byte: &u8| match byte {
            0..0x20 => 6,
            b'"' | b'\\' => 2,
            _ => 1,
        };
        match std::str::from_utf8(bytes) {
            Ok(text) if bytes.iter().map(escaped_len).sum::<usize>() <= 2 * bytes.len() => {
                Raw::Text(text.to_owned())
            }
            _ => Raw::Hex(bytes.to_vec()),
        }
        .serialize(serializer)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Vec<u8>, D::Error> {
        Ok(match Raw::deserialize(deserializer)? {
            Raw::Text(text) => text.into_bytes(),
            Raw::Hex(bytes) => bytes,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_have_the_log_position() {
        let dead_letter = |origin: &str| DeadLetter {
            source: "plays".into(),
            reason: "kind: missing".into(),
            origin: origin.into(),
            at_ms: 1,
            raw: Vec::new(),
        };
        let reason = (
            "__connect.errors.exception.message",
            b"kind: missing".to_vec(),
        );
        let headers = dead_letter("backstitch.plays.v1/3@17").headers();
        let position = [
            ("__connect.errors.topic", b"backstitch.plays.v1".to_vec()),
            ("__connect.errors.partition", b"3".to_vec()),
            ("__connect.errors.offset", b"17".to_vec()),
        ];
        assert_eq!(headers[0], reason);
        assert_eq!(headers[1..], position);
        for origin in ["plays.jsonl:17", "me@home/plays.jsonl:17", "a/b@c"] {
            let headers = dead_letter(origin).headers();
            assert_eq!(headers, std::slice::from_ref(&reason), "{origin}");
        }
    }

    #[test]
    fn a_prefix_of_text_ends_at_a_character() {
        let dead_letter = |raw: &[u8]| DeadLetter {
            source: "plays".into(),
            reason: "r".into(),
            origin: "f:1".into(),
            at_ms: 1,
            raw: raw.to_vec(),
        };
        assert_eq!(dead_letter("aöb".as_bytes()).raw_prefix(2), b"a");
        assert_eq!(dead_letter("aöb".as_bytes()).raw_prefix(3), "aö".as_bytes());
        assert_eq!(
            dead_letter("aöb".as_bytes()).raw_prefix(9),
            "aöb".as_bytes()
        );
        assert_eq!(dead_letter(&[0xff, 0xfe]).raw_prefix(1), [0xff]);
        assert_eq!(dead_letter(&[0xff, 0xfe]).raw_prefix(9), [0xff, 0xfe]);
    }

    #[test]
    fn raw_bytes_round_trip() {
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
