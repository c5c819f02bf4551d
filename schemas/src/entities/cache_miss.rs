//! Cache misses: a reader asks a worker, through the log, to cache a board.
//!
//! A cache miss is a record in the topic of the notifications, in the partition of its key, so the
//! worker reads it in the order of the changes. It is only a hint and changes no data.

use serde::{Deserialize, Serialize};

use super::group::key_column;
use crate::source::Source;

/// A board that was requested and is not in the cache.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct CacheMiss {
    /// The view, with its version.
    pub view: String,
    /// The key: a segment or an application.
    pub key: i64,
    /// The encoded board of the key with its filters.
    pub filtered_board: Vec<u8>,
    /// True if the reader needed only the number of rows and no live count was available. Only the
    /// live count is cached then.
    pub wants_live_count: bool,
}

/// The stored form. Its fields keep their earlier names.
#[derive(Serialize, Deserialize)]
struct Body {
    view: String,
    #[serde(with = "hex::serde")]
    section: Vec<u8>,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    sum: bool,
}

impl CacheMiss {
    /// Encodes the log record: a JSON object with the source's key column and `miss`.
    #[must_use]
    pub fn encode(&self, source: Source) -> Vec<u8> {
        let body = Body {
            view: self.view.clone(),
            section: self.filtered_board.clone(),
            sum: self.wants_live_count,
        };
        serde_json::json!({ key_column(source): self.key, "miss": body })
            .to_string()
            .into_bytes()
    }

    /// Decodes a record; `None` if it is not a cache miss.
    #[must_use]
    pub fn decode(source: Source, bytes: &[u8]) -> Option<Self> {
        // Most records are notifications.
        if !bytes.windows(6).any(|window| window == b"\"miss\"") {
            return None;
        }
        let record: serde_json::Value = serde_json::from_slice(bytes).ok()?;
        let key = record.get(key_column(source))?.as_i64()?;
        let body: Body = serde_json::from_value(record.get("miss")?.clone()).ok()?;
        Some(Self {
            view: body.view,
            key,
            filtered_board: body.section,
            wants_live_count: body.sum,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::entities::Group;

    #[test]
    fn misses_round_trip_and_are_not_notifications() {
        for source in [Source::Efforts, Source::Authorizations] {
            let miss = CacheMiss {
                view: "a@1".to_owned(),
                key: -7,
                filtered_board: vec![0, 255, 16],
                wants_live_count: source == Source::Authorizations,
            };
            let record = miss.encode(source);
            assert_eq!(CacheMiss::decode(source, &record), Some(miss));
            assert!(crate::entities::parse_notification(source, &record).is_err());
            let group = Group { key: 1, member: 2 };
            assert_eq!(CacheMiss::decode(source, &group.notification(source)), None);
        }
        for invalid in [
            r#"{"segment_id":1,"miss":{}}"#,
            r#"{"miss":{"view":"a","section":"00"}}"#,
            r#"{"segment_id":1,"miss":{"view":"a","section":"0"}}"#,
            r#"{"segment_id":1,"miss":{"view":"a","section":"zz"}}"#,
            r#""miss""#,
        ] {
            assert_eq!(
                CacheMiss::decode(Source::Efforts, invalid.as_bytes()),
                None,
                "{invalid}"
            );
        }
    }
}
