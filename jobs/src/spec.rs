//! Definitions as parsed from `job.toml`, before validation.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde::de::DeserializeOwned;
use toml::Spanned;

use crate::counting::{CountingClasses, CountingSection};
use crate::{Error, Result};

/// The fields of every `job.toml`.
#[derive(Debug, Deserialize)]
pub(crate) struct AnySpec {
    pub(crate) kind: Spanned<String>,
    pub(crate) over: Option<Spanned<String>>,
}

/// The fields of an aggregate view, with their positions in the file.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct AggregateSpec {
    #[serde(rename = "kind")]
    _kind: String,
    pub(crate) metric: Spanned<String>,
    pub(crate) source: Spanned<String>,
    pub(crate) over: Option<Spanned<String>>,
    pub(crate) layers: Spanned<String>,
    pub(crate) group: Spanned<Vec<Spanned<String>>>,
    pub(crate) bucket: Spanned<String>,
    pub(crate) partition: Spanned<String>,
    pub(crate) dimensions: Vec<Spanned<String>>,
    #[serde(default)]
    pub(crate) partial: bool,
}

/// The fields of a board.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct BoardSpec {
    #[serde(rename = "kind")]
    _kind: String,
    pub(crate) board: Spanned<String>,
    pub(crate) source: Spanned<String>,
    pub(crate) layers: Spanned<String>,
    pub(crate) key: Spanned<String>,
    pub(crate) member: Spanned<String>,
    #[serde(default)]
    pub(crate) boards: Vec<Spanned<String>>,
    #[serde(default)]
    pub(crate) score: Vec<Spanned<String>>,
    #[serde(default)]
    pub(crate) shown: Vec<Spanned<String>>,
    #[serde(default)]
    pub(crate) filters: Vec<Spanned<String>>,
    pub(crate) weight: Option<Spanned<String>>,
    /// By name: the values of the columns `boards`.
    #[serde(default)]
    pub(crate) achievements: BTreeMap<String, Spanned<Vec<i64>>>,
    pub(crate) history: Option<Spanned<HistorySpec>>,
    #[serde(default)]
    pub(crate) counting: Vec<Spanned<CountingSection>>,
}

/// The section `[history]`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct HistorySpec {
    /// The recording interval of counts: "day".
    pub(crate) counts: Spanned<String>,
}

/// Validates the classes of sections `[[counting]]`.
pub(crate) fn parse_counting_classes(
    file: &File<'_>,
    sections: &[Spanned<CountingSection>],
) -> Result<CountingClasses> {
    let values: Vec<CountingSection> = sections
        .iter()
        .map(|section| section.get_ref().clone())
        .collect();
    CountingClasses::parse(&values).map_err(|error| {
        let start = sections
            .get(error.section)
            .map_or(0, |section| section.span().start);
        let fields = file.parse::<CountingFields>().ok();
        let field_start = fields.and_then(|fields| {
            let field = fields.counting.get(error.section)?.get(error.field)?;
            Some(field.span().start)
        });
        file.error(field_start.unwrap_or(start), format!("counting: {error}"))
    })
}

/// The positions of the fields of sections `[[counting]]`.
#[derive(Debug, Deserialize)]
struct CountingFields {
    counting: Vec<BTreeMap<String, Spanned<toml::Value>>>,
}

/// The header of the section for daily counts.
pub(crate) const HISTORY: &str = "[history]";
/// The header of the sections for counting classes.
pub(crate) const COUNTING: &str = "[[counting]]";

/// A file of a definition, for messages with line numbers.
#[derive(Debug)]
pub(crate) struct File<'a> {
    pub(crate) name: String,
    pub(crate) text: &'a str,
}

impl File<'_> {
    /// Parses the definition.
    pub(crate) fn parse<S: DeserializeOwned>(&self) -> Result<S> {
        toml::from_str(self.text)
            .map_err(|error| self.error(error.span().map_or(0, |span| span.start), error.message()))
    }

    /// Creates an error at a byte of the file.
    pub(crate) fn error(&self, offset: usize, reason: impl Into<String>) -> Error {
        let before = self.text.as_bytes().iter().take(offset);
        Error::Definition {
            file: self.name.clone(),
            line: 1 + before.filter(|b| **b == b'\n').count(),
            reason: reason.into(),
        }
    }

    /// Creates an error at a field of the file.
    pub(crate) fn error_at<T>(&self, field: &Spanned<T>, reason: impl Into<String>) -> Error {
        self.error(field.span().start, reason)
    }
}
