//! Faults of malformed rows.

use std::collections::BTreeMap;

use schemas::source::Source;
use serde_json::value::RawValue;

use crate::ingest::fields::fields;

/// A fault of a row.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Fault {
    /// The line is truncated.
    Truncated,
    /// The line is not JSON, but comma-separated values.
    NotJson,
    /// The field is missing.
    Missing(&'static str),
    /// The field has a value of another type.
    WrongType(&'static str, &'static str),
    /// The field has an impossible value of its type.
    InvalidValue(&'static str, &'static str),
}

impl Fault {
    /// A text in place of a number.
    pub(super) const fn quoted(field: &'static str) -> Self {
        Self::WrongType(field, "\"17\"")
    }

    /// A fraction in place of an integer.
    pub(super) const fn fractional(field: &'static str) -> Self {
        Self::WrongType(field, "17.5")
    }

    /// An integer of more than 64 bits.
    pub(super) const fn huge(field: &'static str) -> Self {
        Self::WrongType(field, "99000000000000000000")
    }

    /// A date that does not exist.
    pub(super) const fn invalid_date(field: &'static str) -> Self {
        Self::WrongType(field, "\"2025-02-30T12:00:00Z\"")
    }

    /// Returns the most similar fault that typed columns can express.
    pub(super) fn for_typed_columns(self, source: Source) -> Self {
        match (self, fields(source)) {
            (Self::Truncated | Self::NotJson, [first, ..]) => Self::Missing(first.name),
            (Self::WrongType(field, _), _) => Self::Missing(field),
            (other, _) => other,
        }
    }

    /// Applies the fault to the line of a row.
    pub(super) fn corrupt(self, source: Source, line: &[u8]) -> Vec<u8> {
        if self == Self::Truncated {
            let length = line.len().saturating_sub(1) * 2 / 3;
            return line.get(..length).unwrap_or_default().to_vec();
        }
        let row: BTreeMap<&str, &RawValue> = serde_json::from_slice(line).unwrap_or_default();
        let value = |name: &str| match self {
            Self::Missing(field) if field == name => None,
            Self::WrongType(field, json) | Self::InvalidValue(field, json) if field == name => {
                Some(json)
            }
            _ => row.get(name).map(|value| value.get()),
        };
        let fields = fields(source).iter();
        let present = fields.filter_map(|field| Some((field.name, value(field.name)?)));
        if self == Self::NotJson {
            let values: Vec<&str> = present.map(|(_, value)| value).collect();
            return values.join(",").into_bytes();
        }
        let pairs: Vec<String> = present
            .map(|(name, value)| format!("\"{name}\":{value}"))
            .collect();
        format!("{{{}}}", pairs.join(",")).into_bytes()
    }
}
