//! Misses: a reader tells the worker of a partition, through the log, that a board is in demand.
//!
//! A miss stands in the topic of the notifications, in the partition of its key, so the worker meets it
//! in the order of the changes. It changes nothing, and nobody trusts it: it names what could be cached.

use serde::{Deserialize, Serialize};

use super::group::key_column;
use crate::source::Source;

/// A board that was asked for and is not in the cache.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Miss {
    /// The view, with its version.
    pub view: String,
    /// The segment, the application.
    pub key: i64,
    /// The bytes that name the section of the key's boards.
    pub section: Vec<u8>,
    /// Whether it was asked how many rows there are, and no sum of live states told it: then no more is
    /// wanted than that sum.
    pub is_sum: bool,
}

#[derive(Serialize, Deserialize)]
struct Body {
    view: String,
    #[serde(with = "hex::serde")]
    section: Vec<u8>,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    sum: bool,
}

impl Miss {
    /// The record of the log: a JSON object with the source's key column, and `miss`.
    #[must_use]
    pub fn record(&self, source: Source) -> Vec<u8> {
        let body = Body {
            view: self.view.clone(),
            section: self.section.clone(),
            sum: self.is_sum,
        };
        serde_json::json!({ key_column(source): self.key, "miss": body })
            .to_string()
            .into_bytes()
    }

    /// The miss that a record holds; nothing if it is something else.
    #[must_use]
    pub fn read(source: Source, bytes: &[u8]) -> Option<Self> {
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
            section: body.section,
            is_sum: body.sum,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::entities::Group;

    #[test]
    fn misses_come_back_and_are_no_notifications() {
        for source in [Source::Efforts, Source::Authorizations] {
            let miss = Miss {
                view: "a@1".to_owned(),
                key: -7,
                section: vec![0, 255, 16],
                is_sum: source == Source::Authorizations,
            };
            let record = miss.record(source);
            assert_eq!(Miss::read(source, &record), Some(miss));
            assert!(crate::entities::parse_notification(source, &record).is_err());
            let group = Group { key: 1, member: 2 };
            assert_eq!(Miss::read(source, &group.notification(source)), None);
        }
        for bad in [
            r#"{"segment_id":1,"miss":{}}"#,
            r#"{"miss":{"view":"a","section":"00"}}"#,
            r#"{"segment_id":1,"miss":{"view":"a","section":"0"}}"#,
            r#"{"segment_id":1,"miss":{"view":"a","section":"zz"}}"#,
            r#""miss""#,
        ] {
            assert_eq!(Miss::read(Source::Efforts, bad.as_bytes()), None, "{bad}");
        }
    }
}
