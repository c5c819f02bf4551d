//! Validated definitions: the common part of all kinds of views.

use std::borrow::Cow;
use std::fmt::Debug;
use std::sync::Arc;

use arrow::datatypes::SchemaRef;
use schemas::source::{Source, SourceKind};
use toml::Spanned;
use xxhash_rust::xxh3::Xxh3;

use crate::Result;
use crate::aggregate_view::AggregateView;
use crate::spec::{COUNTING, File, HISTORY};

/// The layers that run a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Layers {
    /// Both layers.
    Both,
    /// Only the batch layer.
    Batch,
    /// Only the speed layer.
    Speed,
}

impl Layers {
    /// Returns whether `layer` is one of these layers.
    #[must_use]
    pub fn include(self, layer: Self) -> bool {
        self == Self::Both || self == layer
    }
}

/// A job: the definition of a view. `kind` is the part that is specific to its kind of view.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Job<K = AggregateView> {
    pub(crate) name: String,
    pub(crate) view: String,
    pub(crate) source: Source,
    pub(crate) input_job: Option<String>,
    pub(crate) layers: Layers,
    pub(crate) schema: SchemaRef,
    pub(crate) sql: String,
    pub(crate) kind: K,
}

impl<K> Job<K> {
    /// Returns the name of the view, which is the name of its folder.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns name and version of the view, as `name@version`. Tables and live keys use it.
    #[must_use]
    pub fn view(&self) -> &str {
        &self.view
    }

    /// Returns the source of the view.
    #[must_use]
    pub const fn source(&self) -> Source {
        self.source
    }

    /// Returns the job whose rows the query reads; `None` if it reads the source.
    #[must_use]
    pub fn input_job(&self) -> Option<&str> {
        self.input_job.as_deref()
    }

    /// Returns the name of the table that the query reads.
    #[must_use]
    pub fn input_table(&self) -> &str {
        self.input_job().unwrap_or(self.source.name())
    }

    /// Returns the layers that run the job.
    #[must_use]
    pub const fn layers(&self) -> Layers {
        self.layers
    }

    /// Returns the columns of the rows.
    #[must_use]
    pub fn schema(&self) -> SchemaRef {
        Arc::clone(&self.schema)
    }

    /// Returns the SQL query.
    #[must_use]
    pub fn sql(&self) -> &str {
        &self.sql
    }
}

/// Parses the source of a definition, which must have the kind that the view needs.
pub(crate) fn parse_source(
    file: &File<'_>,
    field: &Spanned<String>,
    kind_name: &str,
    kind: SourceKind,
) -> Result<Source> {
    let is_usable = |source: &Source| source.kind() == kind && Source::LOGGED.contains(source);
    match field.get_ref().parse::<Source>() {
        Ok(source) if is_usable(&source) => Ok(source),
        Ok(source) => {
            let expected: Vec<&str> = Source::LOGGED
                .iter()
                .filter(|source| is_usable(source))
                .map(|source| source.name())
                .collect();
            let reason = format!(
                "source: kind = {kind_name:?} needs {}, not {source}",
                expected.join(" or ")
            );
            Err(file.error_at(field, reason))
        }
        Err(error) => Err(file.error_at(field, format!("source: {error}"))),
    }
}

/// Parses the layers of a definition.
pub(crate) fn parse_layers(file: &File<'_>, field: &Spanned<String>) -> Result<Layers> {
    match field.get_ref().as_str() {
        "both" => Ok(Layers::Both),
        "batch" => Ok(Layers::Batch),
        "speed" => Ok(Layers::Speed),
        _ => {
            let reason = "layers: expected \"both\", \"batch\" or \"speed\"";
            Err(file.error_at(field, reason))
        }
    }
}

/// Hashes a definition to its version. A change of the text, the query or the dependency changes
/// the version. The dependency is the view that is read, or the column types. Comment lines, blank
/// lines, indentation, and the sections for daily counts and counting classes are excluded.
/// `kind = "aggregate"` hashes as its earlier name, so that no view is recomputed because of the
/// name.
pub(crate) fn hash_definition(definition: &str, sql: &str, dependency: Option<&str>) -> String {
    let mut hasher = Xxh3::new();
    let definition = lines_outside(definition, &[HISTORY, COUNTING]).map(restore_former_kind);
    let sql = sql.lines().map(Cow::Borrowed);
    for line in definition.chain([Cow::Borrowed("\0")]).chain(sql) {
        let line = line.trim();
        if !line.is_empty() && !line.starts_with('#') && !line.starts_with("--") {
            hasher.update(line.as_bytes());
            hasher.update(b"\n");
        }
    }
    if let Some(dependency) = dependency {
        hasher.update(dependency.as_bytes());
    }
    format!("{:08x}", hasher.digest() & 0xffff_ffff)
}

/// Replaces the kind of view with its earlier name if the line sets the kind.
fn restore_former_kind(line: &str) -> Cow<'_, str> {
    let value = line.trim_start().strip_prefix("kind").map(str::trim_start);
    match value.is_some_and(|value| value.starts_with('=')) {
        true => {
            let line = line.replacen("\"aggregate\"", "\"tally\"", 1);
            Cow::Owned(line.replacen("'aggregate'", "'tally'", 1))
        }
        false => Cow::Borrowed(line),
    }
}

/// Returns the lines of a definition outside the sections with these headers.
pub(crate) fn lines_outside<'a>(
    definition: &'a str,
    headers: &[&str],
) -> impl Iterator<Item = &'a str> {
    let mut is_inside = false;
    definition.lines().filter(move |line| {
        let line = line.trim();
        if line.starts_with('[') {
            let (header, _) = line.split_once('#').unwrap_or((line, ""));
            is_inside = headers.contains(&header.trim());
        }
        !is_inside
    })
}
