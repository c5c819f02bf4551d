//! A checked definition: what every view is made of, whatever its kind.

use std::fmt::Debug;
use std::sync::Arc;

use arrow::datatypes::SchemaRef;
use schemas::source::{Source, SourceKind};
use toml::Spanned;
use xxhash_rust::xxh3::Xxh3;

use crate::Result;
use crate::spec::{COUNTING, File, HISTORY};
use crate::tally::Tally;

/// Which layers run a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Layers {
    /// Both.
    Both,
    /// Only the batch layer.
    Batch,
    /// Only the speed layer.
    Speed,
}

impl Layers {
    /// Whether what runs in these layers runs in `layer` too.
    #[must_use]
    pub fn include(self, layer: Self) -> bool {
        self == Self::Both || self == layer
    }
}

/// A view: its name, source and query, and what its kind adds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Job<K = Tally> {
    pub(crate) name: String,
    pub(crate) view: String,
    pub(crate) source: Source,
    pub(crate) over: Option<String>,
    pub(crate) layers: Layers,
    pub(crate) schema: SchemaRef,
    pub(crate) sql: String,
    pub(crate) kind: K,
}

impl<K> Job<K> {
    /// The folder's name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Name and version of the definition, as `name@version`: what tables and live keys are called.
    #[must_use]
    pub fn view(&self) -> &str {
        &self.view
    }

    /// The source that it is made of.
    #[must_use]
    pub const fn source(&self) -> Source {
        self.source
    }

    /// The job whose rows the query reads, where it does not read the source.
    #[must_use]
    pub fn over(&self) -> Option<&str> {
        self.over.as_deref()
    }

    /// The name of the table that the query reads.
    #[must_use]
    pub fn table(&self) -> &str {
        self.over().unwrap_or(self.source.name())
    }

    /// Which layers run it.
    #[must_use]
    pub const fn layers(&self) -> Layers {
        self.layers
    }

    /// The columns of its rows.
    #[must_use]
    pub fn schema(&self) -> SchemaRef {
        Arc::clone(&self.schema)
    }

    /// The query.
    #[must_use]
    pub fn sql(&self) -> &str {
        &self.sql
    }
}

/// The source that a definition names, which must be of the kind that the view is made of.
pub(crate) fn source(
    file: &File<'_>,
    field: &Spanned<String>,
    view: &str,
    kind: SourceKind,
) -> Result<Source> {
    let fits = |source: &Source| source.kind() == kind && Source::LOGGED.contains(source);
    match field.get_ref().parse::<Source>() {
        Ok(source) if fits(&source) => Ok(source),
        Ok(source) => {
            let made_of: Vec<&str> = Source::LOGGED
                .iter()
                .filter(|source| fits(source))
                .map(|source| source.name())
                .collect();
            let what = format!(
                "source: a {view} is made of {}, not of {source}",
                made_of.join(" or ")
            );
            Err(file.error_at(field, what))
        }
        Err(error) => Err(file.error_at(field, format!("source: {error}"))),
    }
}

/// The layers that a definition names.
pub(crate) fn layers(file: &File<'_>, field: &Spanned<String>) -> Result<Layers> {
    match field.get_ref().as_str() {
        "both" => Ok(Layers::Both),
        "batch" => Ok(Layers::Batch),
        "speed" => Ok(Layers::Speed),
        _ => {
            let what = "layers: expected \"both\", \"batch\" or \"speed\"";
            Err(file.error_at(field, what))
        }
    }
}

/// The version of a definition: another text or query is another view, and so is one that rests on
/// something else (`rests_on`: the view that it reads from, the columns that were found). What is kept of
/// its past, and what is counted otherwise than by it, is none of it.
pub(crate) fn version(definition: &str, sql: &str, rests_on: Option<&str>) -> String {
    let mut hasher = Xxh3::new();
    let definition = outside(definition, &[HISTORY, COUNTING]);
    for line in definition.chain(["\0"]).chain(sql.lines()) {
        let line = line.trim();
        if !line.is_empty() && !line.starts_with('#') && !line.starts_with("--") {
            hasher.update(line.as_bytes());
            hasher.update(b"\n");
        }
    }
    if let Some(rests_on) = rests_on {
        hasher.update(rests_on.as_bytes());
    }
    format!("{:08x}", hasher.digest() & 0xffff_ffff)
}

/// The lines of a definition that do not stand in sections with these heads.
pub(crate) fn outside<'a>(definition: &'a str, heads: &[&str]) -> impl Iterator<Item = &'a str> {
    let mut is_inside = false;
    definition.lines().filter(move |line| {
        let line = line.trim();
        if line.starts_with('[') {
            let (before, _) = line.split_once('#').unwrap_or((line, ""));
            is_inside = heads.contains(&before.trim());
        }
        !is_inside
    })
}
