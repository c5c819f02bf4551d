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

/// A view: name, source, query, and the part that is specific to its kind.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Job<K = AggregateView> {
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
    /// The name of the view's folder.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Name and version of the definition, as `name@version`. Tables and live keys use it.
    #[must_use]
    pub fn view(&self) -> &str {
        &self.view
    }

    /// The source of the view.
    #[must_use]
    pub const fn source(&self) -> Source {
        self.source
    }

    /// The job whose rows the query reads. `None` if it reads the source.
    #[must_use]
    pub fn over(&self) -> Option<&str> {
        self.over.as_deref()
    }

    /// The name of the table that the query reads.
    #[must_use]
    pub fn table(&self) -> &str {
        self.over().unwrap_or(self.source.name())
    }

    /// The layers that run the job.
    #[must_use]
    pub const fn layers(&self) -> Layers {
        self.layers
    }

    /// The columns of the rows.
    #[must_use]
    pub fn schema(&self) -> SchemaRef {
        Arc::clone(&self.schema)
    }

    /// The SQL query.
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
    let fits = |source: &Source| source.kind() == kind && Source::LOGGED.contains(source);
    match field.get_ref().parse::<Source>() {
        Ok(source) if fits(&source) => Ok(source),
        Ok(source) => {
            let expected: Vec<&str> = Source::LOGGED
                .iter()
                .filter(|source| fits(source))
                .map(|source| source.name())
                .collect();
            let what = format!(
                "source: kind = {kind_name:?} needs {}, not {source}",
                expected.join(" or ")
            );
            Err(file.error_at(field, what))
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
            let what = "layers: expected \"both\", \"batch\" or \"speed\"";
            Err(file.error_at(field, what))
        }
    }
}

/// Hashes a definition to its version. A change of the text, the query or the dependency changes
/// the version. The dependency is the view that is read, or the column types. Comment lines, blank
/// lines, indentation, and the sections for daily counts and counting classes are excluded.
/// `kind = "aggregate"` hashes as its earlier name, so that no view is recomputed because of the
/// name.
pub(crate) fn definition_hash(definition: &str, sql: &str, dependency: Option<&str>) -> String {
    let mut hasher = Xxh3::new();
    let definition = lines_outside(definition, &[HISTORY, COUNTING]).map(former_kind_line);
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
fn former_kind_line(line: &str) -> Cow<'_, str> {
    let value = line.trim_start().strip_prefix("kind").map(str::trim_start);
    match value.is_some_and(|value| value.starts_with('=')) {
        true => {
            let line = line.replacen("\"aggregate\"", "\"tally\"", 1);
            Cow::Owned(line.replacen("'aggregate'", "'tally'", 1))
        }
        false => Cow::Borrowed(line),
    }
}

/// The lines of a definition outside the sections with these headers.
pub(crate) fn lines_outside<'a>(
    definition: &'a str,
    heads: &[&str],
) -> impl Iterator<Item = &'a str> {
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
