//! Jobs of aggregate views: their properties, and the check of their definitions.

use std::sync::Arc;

use arrow::datatypes::{DataType, Field, Schema};
use datafusion::logical_expr::LogicalPlan;
use schemas::key::{KeyColumn, KeyKind, KeyShape};
use schemas::plays;
use schemas::source::{Source, SourceKind};
use schemas::time::Width;
use toml::Spanned;

use crate::Result;
use crate::aggregate_view::AggregateView;
use crate::columns::{BUCKET, COUNT};
use crate::job::{Job, Layers, definition_hash, parse_layers, parse_source};
use crate::plan::{QueryText, query_plan};
use crate::spec::{AggregateSpec, File};
use crate::sums::{SumMapping, is_rollup};

impl Job<AggregateView> {
    /// The metric that serves this view: the `NAME` of `/stats/NAME/…`.
    #[must_use]
    pub fn metric(&self) -> &str {
        &self.kind.metric
    }

    /// The time span of one row.
    #[must_use]
    pub const fn bucket(&self) -> Width {
        self.kind.bucket
    }

    /// The time span of one partition of the table.
    #[must_use]
    pub const fn table_partition(&self) -> Width {
        self.kind.partition
    }

    /// The time span that is recomputed as a whole. An incremental run selects time partitions.
    #[must_use]
    pub fn time_partition(&self) -> Width {
        self.kind.bucket.max(Width::Day)
    }

    /// The columns of the group key, by which requests look up rows.
    #[must_use]
    pub const fn group(&self) -> &KeyShape {
        &self.kind.group
    }

    /// The columns of the row key: the bucket, unless the view covers all time, and the dimensions.
    #[must_use]
    pub const fn row(&self) -> &KeyShape {
        &self.kind.row
    }

    /// Returns whether the query only coarsens the rows of another job and sums them.
    pub(crate) const fn is_rollup(&self) -> bool {
        self.kind.is_rollup
    }

    /// Returns whether a time partition of this job is the row-by-row sum of time partitions of
    /// `base`, the job that it reads.
    ///
    /// Each of those time partitions is one bucket with the same groups and dimensions. So its rows
    /// already have the order in which they are summed.
    #[must_use]
    pub fn sums_time_partitions_of(&self, base: &Self) -> bool {
        let dimensions = |job: &Self| -> Vec<KeyColumn> {
            let columns = job.row().0.iter();
            columns
                .filter(|column| column.name != BUCKET)
                .cloned()
                .collect()
        };
        let fits = self.is_rollup()
            && self.over() == Some(base.name())
            && base.bucket() == base.time_partition()
            && base.bucket() < self.bucket()
            && self.group() == base.group()
            && dimensions(self) == dimensions(base);
        // A cast or another function changes the value of a column.
        let input = base.schema();
        let has_name = |name: &str, index: usize| {
            let field = input.fields().get(index);
            field.is_some_and(|field| field.name() == name)
        };
        let keeps_columns = |mapping: &SumMapping| {
            let fields = self.schema.fields().iter().zip(&mapping.keys);
            let mut matches = fields.map(|(field, source)| {
                let width = (field.name() == BUCKET).then_some(self.bucket());
                source.width == width && has_name(field.name(), source.column)
            });
            matches.all(|matches| matches) && has_name(COUNT, mapping.summed)
        };
        fits && self.sum_mapping().is_some_and(keeps_columns)
    }

    /// The source of each row column, if the query only sums.
    pub(crate) const fn sum_mapping(&self) -> Option<&SumMapping> {
        self.kind.sum_mapping.as_ref()
    }

    /// Returns whether the view counts only a part of its input. Otherwise its counts must add up
    /// to those of the input.
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

    /// Checks a definition. `over` finds a job that was read before.
    pub(crate) fn check<'a>(
        name: &str,
        file: &File<'_>,
        query: &QueryText<'_>,
        over: impl Fn(&str) -> Option<&'a Self>,
    ) -> Result<Self> {
        let spec: AggregateSpec = file.spec()?;
        let source = parse_source(file, &spec.source, "aggregate", SourceKind::Events)?;
        let layers = parse_layers(file, &spec.layers)?;
        let bucket = parse_width(file, "bucket", &spec.bucket)?;
        let partition = parse_width(file, "partition", &spec.partition)?;
        if partition < bucket.max(Width::Day) {
            let what = "partition: must span at least one day and at least one bucket";
            return Err(file.error_at(&spec.partition, what));
        }
        let base = match &spec.over {
            None => None,
            Some(field) => {
                let base = over(field.get_ref()).ok_or_else(|| {
                    let what = format!("over: there is no job {:?} to read from", field.get_ref());
                    file.error_at(field, what)
                })?;
                check_base(base, source, layers, bucket)
                    .map_err(|what| file.error_at(field, format!("over: {what}")))?;
                Some(base)
            }
        };
        let input = base.map_or_else(plays::schema, Self::schema);
        let table = base.map_or(source.name(), |job| job.name.as_str());
        let plan = query_plan(table, &input, query);
        let (group, row) = {
            let columns = AvailableColumns {
                input: &input,
                output: plan.as_ref().ok(),
            };
            key_columns(file, &spec, columns, bucket)?
        };
        let plan = plan?;
        let is_rollup = base.is_some() && is_rollup(&plan, bucket);
        let fields: Vec<Field> = group
            .iter()
            .chain(&row)
            .map(KeyColumn::field)
            .chain([Field::new(COUNT, DataType::Int64, false)])
            .collect();
        let sum_mapping = SumMapping::from_plan(&plan, &input, &fields);
        let dependency = base.map(Self::view);
        Ok(Self {
            view: format!(
                "{name}@{}",
                definition_hash(file.text, query.sql, dependency)
            ),
            name: name.to_owned(),
            source,
            over: base.map(|job| job.name.clone()),
            layers,
            schema: Arc::new(Schema::new(fields)),
            sql: query.sql.to_owned(),
            kind: AggregateView {
                metric: spec.metric.into_inner(),
                bucket,
                partition,
                group: KeyShape(group),
                row: KeyShape(row),
                is_rollup,
                sum_mapping,
                is_partial: spec.partial,
            },
        })
    }
}

/// Checks that a job can read the rows of the job `base`. The error says why it cannot.
fn check_base(
    base: &Job,
    source: Source,
    layers: Layers,
    bucket: Width,
) -> Result<(), &'static str> {
    if base.source != source {
        return Err("that job has another source");
    }
    if base.layers != Layers::Both && base.layers != layers {
        return Err("that job must run in every layer of this job");
    }
    if base.bucket() > bucket {
        return Err("that job has coarser buckets");
    }
    Ok(())
}

/// The columns that can be part of a key.
#[derive(Clone, Copy)]
struct AvailableColumns<'a> {
    /// Columns of the query's input.
    input: &'a Schema,
    /// Columns of the query, if it could be planned.
    output: Option<&'a LogicalPlan>,
}

/// Resolves the columns of the group key and of the row key.
fn key_columns(
    file: &File<'_>,
    spec: &AggregateSpec,
    columns: AvailableColumns<'_>,
    bucket: Width,
) -> Result<(Vec<KeyColumn>, Vec<KeyColumn>)> {
    let mut used = Vec::new();
    let mut column = |field: &Spanned<String>| key_column(file, columns, field, &mut used);
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
        let what = "dimensions: needs at least one, or a bucket other than \"all\"";
        return Err(file.error(0, what));
    }
    Ok((group, row))
}

fn parse_width(file: &File<'_>, name: &str, field: &Spanned<String>) -> Result<Width> {
    let mut all = Width::ALL.into_iter();
    let width = all.find(|width| width.name() == field.get_ref());
    width.ok_or_else(|| {
        let what = format!("{name}: expected \"quarter\", \"hour\", \"day\", \"month\" or \"all\"");
        file.error_at(field, what)
    })
}

/// Resolves a column of the input, or one that the query computes.
fn key_column(
    file: &File<'_>,
    available: AvailableColumns<'_>,
    field: &Spanned<String>,
    used: &mut Vec<String>,
) -> Result<KeyColumn> {
    let AvailableColumns { input, output } = available;
    let name = field.get_ref();
    let computed = |plan: &LogicalPlan| {
        let fields = plan.schema().fields().iter();
        fields.clone().find(|field| field.name() == name).cloned()
    };
    let input_field = input.field_with_name(name).ok().cloned();
    let output_field = || {
        output
            .and_then(computed)
            .map(|field| field.as_ref().clone())
    };
    let found = input_field.or_else(output_field).ok_or_else(|| {
        let names: Vec<&str> = input.fields().iter().map(|f| f.name().as_str()).collect();
        let what = format!(
            "there is no column {name:?}; the input has {}, and the query may compute others",
            names.join(", ")
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
    if used.contains(name) {
        return Err(file.error_at(field, format!("column {name:?} is listed twice")));
    }
    used.push(name.clone());
    Ok(KeyColumn {
        name: name.clone(),
        kind,
        nullable: found.is_nullable(),
    })
}
