//! A definition as it stands in `job.toml`, not yet checked.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde::de::DeserializeOwned;
use toml::Spanned;

use crate::counting::{Counting, CountingSection};
use crate::{Error, Result};

/// What stands in every `job.toml`.
#[derive(Debug, Deserialize)]
pub(crate) struct AnySpec {
    pub(crate) kind: Spanned<String>,
    pub(crate) over: Option<Spanned<String>>,
}

/// The fields of a tally, each with its place in the file.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct TallySpec {
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
    pub(crate) counting: Vec<Spanned<CountingSpec>>,
}

/// What is kept of days that are over: the section `[history]`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct HistorySpec {
    /// How often the count of each key is kept: "day".
    pub(crate) counts: Spanned<String>,
}

/// A class of applications that are counted in one way: a section `[[counting]]`, as
/// [`CountingSection`], with the place of each field.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct CountingSpec {
    class: Spanned<String>,
    strategy: Spanned<String>,
    capacity_from: Option<Spanned<i64>>,
    applications: Option<Spanned<Vec<i64>>>,
    large_size: Option<Spanned<i64>>,
    events_per_athlete_per_day: Option<Spanned<f64>>,
    recounts_per_day: Option<Spanned<i64>>,
}

impl CountingSpec {
    /// The classes of some sections.
    pub(crate) fn classes(file: &File<'_>, specs: &[Spanned<Self>]) -> Result<Counting> {
        let sections: Vec<CountingSection> =
            specs.iter().map(|spec| spec.get_ref().section()).collect();
        Counting::of(&sections).map_err(|flaw| {
            let spec = specs.get(flaw.section);
            let place = spec.and_then(|spec| spec.get_ref().place(flaw.field));
            let start = spec.map_or(0, |spec| spec.span().start);
            file.error(place.unwrap_or(start), format!("counting: {flaw}"))
        })
    }

    fn section(&self) -> CountingSection {
        fn value<T: Clone>(field: &Option<Spanned<T>>) -> Option<T> {
            field.as_ref().map(|field| field.get_ref().clone())
        }
        CountingSection {
            class: self.class.get_ref().clone(),
            strategy: self.strategy.get_ref().clone(),
            capacity_from: value(&self.capacity_from),
            applications: value(&self.applications).unwrap_or_default(),
            large_size: value(&self.large_size),
            events_per_athlete_per_day: value(&self.events_per_athlete_per_day),
            recounts_per_day: value(&self.recounts_per_day),
        }
    }

    /// The byte of the file at which a field stands.
    fn place(&self, field: &str) -> Option<usize> {
        fn start<T>(field: &Option<Spanned<T>>) -> Option<usize> {
            field.as_ref().map(|field| field.span().start)
        }
        match field {
            "class" => Some(self.class.span().start),
            "strategy" => Some(self.strategy.span().start),
            "capacity_from" => start(&self.capacity_from),
            "applications" => start(&self.applications),
            "large_size" => start(&self.large_size),
            "events_per_athlete_per_day" => start(&self.events_per_athlete_per_day),
            "recounts_per_day" => start(&self.recounts_per_day),
            _ => None,
        }
    }
}

/// The head of the section that says what is kept of days that are over.
pub(crate) const HISTORY: &str = "[history]";
/// The head of the sections that say how applications are counted.
pub(crate) const COUNTING: &str = "[[counting]]";

/// A file of a definition, for messages that name the line.
#[derive(Debug)]
pub(crate) struct File<'a> {
    pub(crate) name: String,
    pub(crate) text: &'a str,
}

impl File<'_> {
    /// Reads the definition.
    pub(crate) fn spec<S: DeserializeOwned>(&self) -> Result<S> {
        toml::from_str(self.text)
            .map_err(|error| self.error(error.span().map_or(0, |span| span.start), error.message()))
    }

    /// An error at a byte of the file.
    pub(crate) fn error(&self, byte: usize, what: impl Into<String>) -> Error {
        let before = self.text.as_bytes().iter().take(byte);
        Error::Definition {
            file: self.name.clone(),
            line: 1 + before.filter(|b| **b == b'\n').count(),
            what: what.into(),
        }
    }

    /// An error at a field of the file.
    pub(crate) fn error_at<T>(&self, field: &Spanned<T>, what: impl Into<String>) -> Error {
        self.error(field.span().start, what)
    }
}
