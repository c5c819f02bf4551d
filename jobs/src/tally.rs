//! Tallies: counts by group, time bucket and dimensions that add up.

use std::sync::Arc;

use arrow::datatypes::{DataType, Field, Schema};
use datafusion::logical_expr::LogicalPlan;
use schemas::key::{KeyColumn, KeyKind, KeyShape};
use schemas::plays;
use schemas::source::{Source, SourceKind};
use schemas::time::Width;
use toml::Spanned;

use crate::Result;
use crate::job::{Job, Layers, layers, source, version};
use crate::plan::output;
use crate::rollup::is_rollup;
use crate::spec::{File, TallySpec};
use crate::sums::Adding;

/// The column of a row's bucket.
pub const BUCKET: &str = "bucket";
/// The column of a row's count.
pub const COUNT: &str = "count";

/// What makes a view a tally.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tally {
    metric: String,
    bucket: Width,
    partition: Width,
    group: KeyShape,
    row: KeyShape,
    is_rollup: bool,
    adding: Option<Adding>,
    is_partial: bool,
}

impl Job<Tally> {
    /// The metric under which it is served: the `NAME` of `/stats/NAME/…`.
    #[must_use]
    pub fn metric(&self) -> &str {
        &self.kind.metric
    }

    /// How much time one row holds.
    #[must_use]
    pub const fn bucket(&self) -> Width {
        self.kind.bucket
    }

    /// How much time one partition of the table holds.
    #[must_use]
    pub const fn partition(&self) -> Width {
        self.kind.partition
    }

    /// How much time is recomputed in one piece: what an incremental run chooses by.
    #[must_use]
    pub fn piece(&self) -> Width {
        self.kind.bucket.max(Width::Day)
    }

    /// The columns by which it is asked for.
    #[must_use]
    pub const fn group(&self) -> &KeyShape {
        &self.kind.group
    }

    /// The bucket, where rows have one, and the dimensions.
    #[must_use]
    pub const fn row(&self) -> &KeyShape {
        &self.kind.row
    }

    /// Whether its query does nothing but make the rows of another job coarser and add them up.
    pub(crate) const fn is_rollup(&self) -> bool {
        self.kind.is_rollup
    }

    /// Whether a piece of it is the sum of pieces of the job that it reads from, row by row: each of these is one bucket
    /// of the same groups and dimensions, so their rows come in the order in which they are added up.
    #[must_use]
    pub fn adds_up_pieces_of(&self, under: &Self) -> bool {
        let dimensions = |job: &Self| -> Vec<KeyColumn> {
            let columns = job.row().0.iter();
            columns
                .filter(|column| column.name != BUCKET)
                .cloned()
                .collect()
        };
        let fits = self.is_rollup()
            && self.over() == Some(under.name())
            && under.bucket() == under.piece()
            && under.bucket() < self.bucket()
            && self.group() == under.group()
            && dimensions(self) == dimensions(under);
        // What a cast or another function makes of a column is another value.
        let input = under.schema();
        let is_of_its_name = |name: &str, place: usize| {
            let field = input.fields().get(place);
            field.is_some_and(|field| field.name() == name)
        };
        let takes_them_as_they_are = |adding: &Adding| {
            let fields = self.schema.fields().iter().zip(&adding.takes);
            let mut takes = fields.map(|(field, take)| {
                let width = (field.name() == BUCKET).then_some(self.bucket());
                take.width == width && is_of_its_name(field.name(), take.column)
            });
            takes.all(|fits| fits) && is_of_its_name(COUNT, adding.summed)
        };
        fits && self.adding().is_some_and(takes_them_as_they_are)
    }

    /// How its rows come from what it reads, where its query does nothing but add up.
    pub(crate) const fn adding(&self) -> Option<&Adding> {
        self.kind.adding.as_ref()
    }

    /// Whether it counts only a part of what it reads: else its counts must add up to those.
    #[must_use]
    pub const fn is_partial(&self) -> bool {
        self.kind.is_partial
    }

    /// The names of the dimensions.
    pub fn dimensions(&self) -> impl Iterator<Item = &str> {
        let skip = usize::from(self.bucket() != Width::All);
        self.row()
            .0
            .iter()
            .skip(skip)
            .map(|column| column.name.as_str())
    }

    /// Checks a definition; `over` finds a job that was read before.
    pub(crate) fn check<'a>(
        name: &str,
        file: &File<'_>,
        (sql, query_file): (&str, &str),
        over: impl Fn(&str) -> Option<&'a Self>,
    ) -> Result<Self> {
        let spec: TallySpec = file.spec()?;
        let source = source(file, &spec.source, "tally", SourceKind::Facts)?;
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
        let input = under.map_or_else(plays::schema, Self::schema);
        let table = under.map_or(source.name(), |job| job.name.as_str());
        let plan = output(table, &input, sql, query_file);
        let (group, row) = keys(file, &spec, (&input, plan.as_ref().ok()), bucket)?;
        let plan = plan?;
        let is_rollup = under.is_some() && is_rollup(&plan, bucket);
        let fields: Vec<Field> = group
            .iter()
            .chain(&row)
            .map(KeyColumn::field)
            .chain([Field::new(COUNT, DataType::Int64, false)])
            .collect();
        let adding = Adding::of(&plan, &input, &fields);
        let rests_on = under.map(Self::view);
        Ok(Self {
            view: format!("{name}@{}", version(file.text, sql, rests_on)),
            name: name.to_owned(),
            source,
            over: under.map(|job| job.name.clone()),
            layers,
            schema: Arc::new(Schema::new(fields)),
            sql: sql.to_owned(),
            kind: Tally {
                metric: spec.metric.into_inner(),
                bucket,
                partition,
                group: KeyShape(group),
                row: KeyShape(row),
                is_rollup,
                adding,
                is_partial: spec.partial,
            },
        })
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
    if under.bucket() > bucket {
        return Err("that job's buckets are coarser");
    }
    Ok(())
}

/// The columns of the group key and of the row key.
fn keys(
    file: &File<'_>,
    spec: &TallySpec,
    columns: (&Schema, Option<&LogicalPlan>),
    bucket: Width,
) -> Result<(Vec<KeyColumn>, Vec<KeyColumn>)> {
    let mut seen = Vec::new();
    let mut column = |field: &Spanned<String>| key_column(file, columns, field, &mut seen);
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
    let mut all = Width::ALL.into_iter();
    let width = all.find(|width| width.name() == field.get_ref());
    width.ok_or_else(|| {
        let what = format!("{name}: expected \"quarter\", \"hour\", \"day\", \"month\" or \"all\"");
        file.error_at(field, what)
    })
}

/// A column of the input, or one that the query makes.
fn key_column(
    file: &File<'_>,
    (input, output): (&Schema, Option<&LogicalPlan>),
    field: &Spanned<String>,
    seen: &mut Vec<String>,
) -> Result<KeyColumn> {
    let name = field.get_ref();
    let made = |plan: &LogicalPlan| {
        let fields = plan.schema().fields().iter();
        fields.clone().find(|made| made.name() == name).cloned()
    };
    let found = input.field_with_name(name).ok().cloned();
    let made = || output.and_then(made).map(|field| field.as_ref().clone());
    let found = found.or_else(made).ok_or_else(|| {
        let have: Vec<&str> = input.fields().iter().map(|f| f.name().as_str()).collect();
        let what = format!(
            "there is no column {name:?}; there are {}, and those that the query makes",
            have.join(", ")
        );
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
