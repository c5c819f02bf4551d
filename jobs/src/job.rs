//! A checked definition: what a view is made of, and what derives from it.

use std::sync::Arc;

use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use schemas::key::{KeyColumn, KeyKind, KeyShape};
use schemas::plays;
use schemas::source::Source;
use schemas::time::Width;
use toml::Spanned;
use xxhash_rust::xxh3::Xxh3;

use crate::Result;
use crate::spec::{File, JobSpec};

/// The column of a row's bucket.
pub const BUCKET: &str = "bucket";
/// The column of a row's count.
pub const COUNT: &str = "count";

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

/// A tally: counts by group, time bucket and dimensions that add up.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Job {
    pub(crate) name: String,
    pub(crate) view: String,
    pub(crate) metric: String,
    pub(crate) source: Source,
    pub(crate) over: Option<String>,
    pub(crate) layers: Layers,
    pub(crate) bucket: Width,
    pub(crate) partition: Width,
    pub(crate) group: KeyShape,
    pub(crate) row: KeyShape,
    pub(crate) schema: SchemaRef,
    pub(crate) sql: String,
    pub(crate) place: String,
}

impl Job {
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

    /// The metric under which it is served: the `NAME` of `/stats/NAME/…`.
    #[must_use]
    pub fn metric(&self) -> &str {
        &self.metric
    }

    /// The source whose events it counts.
    #[must_use]
    pub const fn source(&self) -> Source {
        self.source
    }

    /// The job whose rows the query reads, where it does not read the events.
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

    /// How much time one row holds.
    #[must_use]
    pub const fn bucket(&self) -> Width {
        self.bucket
    }

    /// How much time one partition of the table holds.
    #[must_use]
    pub const fn partition(&self) -> Width {
        self.partition
    }

    /// How much time is recomputed in one piece: what an incremental run chooses by.
    #[must_use]
    pub fn piece(&self) -> Width {
        self.bucket.max(Width::Day)
    }

    /// The columns by which it is asked for.
    #[must_use]
    pub const fn group(&self) -> &KeyShape {
        &self.group
    }

    /// The bucket, where rows have one, and the dimensions.
    #[must_use]
    pub const fn row(&self) -> &KeyShape {
        &self.row
    }

    /// The names of the dimensions.
    pub fn dimensions(&self) -> impl Iterator<Item = &str> {
        let skip = usize::from(self.bucket != Width::All);
        self.row
            .0
            .iter()
            .skip(skip)
            .map(|column| column.name.as_str())
    }

    /// The columns of its rows: group, bucket, dimensions, count.
    #[must_use]
    pub fn schema(&self) -> SchemaRef {
        Arc::clone(&self.schema)
    }

    /// The query.
    #[must_use]
    pub fn sql(&self) -> &str {
        &self.sql
    }

    /// Checks a definition; `over` finds a job that was read before.
    pub(crate) fn check<'a>(
        name: &str,
        file: &File<'_>,
        sql: &str,
        over: impl Fn(&str) -> Option<&'a Self>,
    ) -> Result<Self> {
        let spec = file.spec()?;
        if spec.kind.get_ref() != "tally" {
            return Err(file.error_at(&spec.kind, "kind: expected \"tally\""));
        }
        let source: Source = spec
            .source
            .get_ref()
            .parse()
            .map_err(|error| file.error_at(&spec.source, format!("source: {error}")))?;
        let layers = layers(file, &spec.layers)?;
        let bucket = width(file, "bucket", &spec.bucket)?;
        let partition = width(file, "partition", &spec.partition)?;
        if partition < bucket.max(Width::Day) {
            let what = "partition: must hold at least a day and at least one bucket";
            return Err(file.error_at(&spec.partition, what));
        }
        let under = match &spec.over {
            None => None,
            Some(field) => {
                let under = over(field.get_ref()).ok_or_else(|| {
                    let what = format!("over: there is no job {:?} to read from", field.get_ref());
                    file.error_at(field, what)
                })?;
                fits(under, source, layers, bucket)
                    .map_err(|what| file.error_at(field, format!("over: {what}")))?;
                Some(under)
            }
        };
        let input = under.map_or_else(plays::schema, |job| Arc::clone(&job.schema));
        let (group, row) = keys(file, &spec, &input, bucket)?;
        let fields: Vec<Field> = group
            .iter()
            .chain(&row)
            .map(KeyColumn::field)
            .chain([Field::new(COUNT, DataType::Int64, false)])
            .collect();
        Ok(Self {
            view: format!("{name}@{}", version(file.text, sql, under)),
            name: name.to_owned(),
            metric: spec.metric.into_inner(),
            source,
            over: under.map(|job| job.name.clone()),
            layers,
            bucket,
            partition,
            group: KeyShape(group),
            row: KeyShape(row),
            schema: Arc::new(Schema::new(fields)),
            sql: sql.to_owned(),
            place: file.name.clone(),
        })
    }
}

fn layers(file: &File<'_>, field: &Spanned<String>) -> Result<Layers> {
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

/// Whether a job can read the rows of the job `under`; else why not.
fn fits(under: &Job, source: Source, layers: Layers, bucket: Width) -> Result<(), &'static str> {
    if under.source != source {
        return Err("that job has another source");
    }
    if under.layers != Layers::Both && under.layers != layers {
        return Err("that job does not run in every layer that this one runs in");
    }
    if under.bucket > bucket {
        return Err("that job's buckets are coarser");
    }
    Ok(())
}

/// The columns of the group key and of the row key.
fn keys(
    file: &File<'_>,
    spec: &JobSpec,
    input: &Schema,
    bucket: Width,
) -> Result<(Vec<KeyColumn>, Vec<KeyColumn>)> {
    let mut seen = Vec::new();
    let mut column = |field: &Spanned<String>| key_column(file, input, field, &mut seen);
    let group = spec.group.get_ref().iter().map(&mut column);
    let group = group.collect::<Result<Vec<_>>>()?;
    if group.is_empty() {
        return Err(file.error_at(&spec.group, "group: at least one column is needed"));
    }
    let mut row = Vec::new();
    if bucket != Width::All {
        row.push(KeyColumn {
            name: BUCKET.to_owned(),
            kind: KeyKind::Time,
            nullable: false,
        });
    }
    for field in &spec.dimensions {
        row.push(column(field)?);
    }
    if row.is_empty() {
        let what = "dimensions: at least one, or a bucket other than \"all\"";
        return Err(file.error(0, what));
    }
    Ok((group, row))
}

fn width(file: &File<'_>, name: &str, field: &Spanned<String>) -> Result<Width> {
    match field.get_ref().as_str() {
        "quarter" => Ok(Width::Quarter),
        "hour" => Ok(Width::Hour),
        "day" => Ok(Width::Day),
        "month" => Ok(Width::Month),
        "all" => Ok(Width::All),
        _ => {
            let what =
                format!("{name}: expected \"quarter\", \"hour\", \"day\", \"month\" or \"all\"");
            Err(file.error_at(field, what))
        }
    }
}

fn key_column(
    file: &File<'_>,
    input: &Schema,
    field: &Spanned<String>,
    seen: &mut Vec<String>,
) -> Result<KeyColumn> {
    let name = field.get_ref();
    let found = input.field_with_name(name).map_err(|_| {
        let have: Vec<&str> = input.fields().iter().map(|f| f.name().as_str()).collect();
        let what = format!("there is no column {name:?}; there are {}", have.join(", "));
        file.error_at(field, what)
    })?;
    let kind = match found.data_type() {
        _ if name == BUCKET || name == COUNT => None,
        DataType::Int64 => Some(KeyKind::Int),
        DataType::Utf8 => Some(KeyKind::Text),
        _ => None,
    }
    .ok_or_else(|| file.error_at(field, format!("column {name:?} can't be part of a key")))?;
    if seen.contains(name) {
        return Err(file.error_at(field, format!("column {name:?} stands here twice")));
    }
    seen.push(name.clone());
    Ok(KeyColumn {
        name: name.clone(),
        kind,
        nullable: found.is_nullable(),
    })
}

/// The version of a definition: another text, query or job to read from is another view.
fn version(definition: &str, sql: &str, under: Option<&Job>) -> String {
    let mut hasher = Xxh3::new();
    for line in definition.lines().chain(["\0"]).chain(sql.lines()) {
        let line = line.trim();
        if !line.is_empty() && !line.starts_with('#') && !line.starts_with("--") {
            hasher.update(line.as_bytes());
            hasher.update(b"\n");
        }
    }
    if let Some(under) = under {
        hasher.update(under.view.as_bytes());
    }
    format!("{:08x}", hasher.digest() & 0xffff_ffff)
}
