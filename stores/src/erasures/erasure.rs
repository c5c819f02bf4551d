//! An erasure, the erased person, and the keyed hash that stands for the person.

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// The key of the hashes, random in each installation.
pub type Key = [u8; 32];
/// The keyed hash of a person.
pub type PersonHash = [u8; 16];

/// The role of a person in the events or rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PersonKind {
    /// The `listener_id` of plays.
    Listener,
    /// The athlete of efforts, clubs, follows and authorizations.
    Athlete,
}

impl PersonKind {
    /// The name of the kind.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Listener => "listener",
            Self::Athlete => "athlete",
        }
    }
}

/// A person to erase, or an erased person.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Person {
    /// The role that the id belongs to.
    pub kind: PersonKind,
    /// The id.
    pub id: i64,
}

/// One erasure.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Erasure {
    /// Its number, from 1; the name of its record.
    #[serde(skip)]
    pub number: u64,
    /// The role of the person.
    pub kind: PersonKind,
    /// The hash of the person.
    #[serde(with = "hex")]
    pub person: PersonHash,
    /// When it began, in milliseconds since the Unix epoch.
    pub begun_at_ms: i64,
    /// The requester, as entered.
    pub by: String,
    /// The reason, as entered.
    pub reason: String,
    /// When it was finished; `None` while anything is left.
    pub finished_at_ms: Option<i64>,
    /// The progress, as the eraser reports it. It must not name the person.
    pub receipt: Value,
}

/// Bytes as hexadecimal digits.
pub(super) mod hex {
    use serde::de::Error;
    use serde::{Deserialize, Deserializer, Serializer};

    pub(in super::super) fn serialize<S: Serializer, const N: usize>(
        bytes: &[u8; N],
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        let digits = bytes.iter().map(|byte| format!("{byte:02x}"));
        serializer.serialize_str(&digits.collect::<String>())
    }

    pub(in super::super) fn deserialize<'de, D: Deserializer<'de>, const N: usize>(
        deserializer: D,
    ) -> Result<[u8; N], D::Error> {
        let digits = String::deserialize(deserializer)?;
        let byte = |index: usize| u8::from_str_radix(digits.get(index..index + 2)?, 16).ok();
        let bytes: Option<Vec<u8>> = (0..digits.len()).step_by(2).map(byte).collect();
        let bytes = bytes.and_then(|bytes| bytes.try_into().ok());
        bytes.ok_or_else(|| D::Error::custom(format!("expected {} hexadecimal digits", 2 * N)))
    }
}
