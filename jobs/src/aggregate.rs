//! Jobs of aggregate views: their properties, and the check of their definitions.

use std::sync::Arc;

use arrow::datatypes::{DataType, Field, Schema};
use datafusion::logical_expr::LogicalPlan;
use schemas::key::{KeyColumn, KeyKind, KeyShape};
use schemas::plays;
use schemas::source::{Source, SourceKind};
use schemas::time::BucketWidth;
use toml::Spanned;

use crate::Result;
use crate::aggregate_view::AggregateView;
use crate::columns::{BUCKET, COUNT};
use crate::job::{Job, Layers, hash_definition, parse_layers, parse_source};
use crate::plan::{QueryText, plan_over_empty_table};
use crate::spec::{AggregateSpec, File};
use crate::sums::{SumMapping, is_rollup};

impl Job<AggregateView> {
    /// Returns the metric that serves this view: the `NAME` of `/stats/NAME/…`.
    #[must_use]
    pub fn metric(&self) -> &str {
        &self.kind.metric
    }

    /// Returns the bucket width of the rows.
    #[must_use]
    pub const fn bucket(&self) -> BucketWidth {
        self.kind.bucket
    }

    /// Returns the time span of one partition of the table.
    #[must_use]
    pub const fn table_partition(&self) -> BucketWidth {
        self.kind.partition
    }

    /// Returns the time span that is recomputed as a whole. An incremental run selects time
    /// partitions.
    #[must_use]
    pub fn time_partition(&self) -> BucketWidth {
        self.kind.bucket.max(BucketWidth::Day)
    }

    /// Returns the columns of the group key, by which requests look up rows.
    #[must_use]
    pub const fn group(&self) -> &KeyShape {
        &self.kind.group
    }

    /// Returns the columns of the row key: the bucket, unless the view covers all time, and the
    /// dimensions.
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
        let is_plain_sum = self.is_rollup()
            && self.input_job() == Some(base.name())
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
        is_plain_sum && self.sum_mapping().is_some_and(keeps_columns)
    }

    /// Returns the source of each row column, if the query only sums.
    pub(crate) const fn sum_mapping(&self) -> Option<&SumMapping> {
        self.kind.sum_mapping.as_ref()
    }

    /// Returns whether the view counts only a part of its input. Otherwise its counts must add up
    /// to those of the input.
    #[must_use]
    pub const fn is_partial(&self) -> bool {
        self.kind.is_partial
    }

    /// Iterates over the names of the dimensions.
    pub fn dimensions(&self) -> impl Iterator<Item = &str> {
        let bucket_columns = usize::from(self.bucket() != BucketWidth::All);
        self.row()
            .0
            .iter()
            .skip(bucket_columns)
            .map(|column| column.name.as_str())
    }

    /// Parses and checks a definition. `find_job` finds a job that was parsed before.
    pub(crate) fn parse<'a>(
        name: &str,
        file: &File<'_>,
        query: &QueryText<'_>,
        find_job: impl Fn(&str) -> Option<&'a Self>,
    ) -> Result<Self> {
        let spec: AggregateSpec = file.parse()?;
        let source = parse_source(file, &spec.source, "aggregate", SourceKind::Events)?;
        let layers = parse_layers(file, &spec.layers)?;
        let bucket = parse_width(file, "bucket", &spec.bucket)?;
        let partition = parse_width(file, "partition", &spec.partition)?;
        if partition < bucket.max(BucketWidth::Day) {
            let reason = "partition: must span at least one day and at least one bucket";
            return Err(file.error_at(&spec.partition, reason));
        }
        let base = match &spec.over {
            None => None,
            Some(field) => {
                let base = find_job(field.get_ref()).ok_or_else(|| {
                    let reason =
                        format!("over: there is no job {:?} to read from", field.get_ref());
                    file.error_at(field, reason)
                })?;
                check_base(base, source, layers, bucket)
                    .map_err(|reason| file.error_at(field, format!("over: {reason}")))?;
                Some(base)
            }
        };
        let input = base.map_or_else(plays::schema, Self::schema);
        let table = base.map_or(source.name(), |job| job.name.as_str());
        let plan = plan_over_empty_table(table, &input, query);
        let (group, row) = {
            let columns = AvailableColumns {
                input: &input,
                output: plan.as_ref().ok(),
            };
            resolve_key_columns(file, &spec, columns, bucket)?
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
                hash_definition(file.text, query.sql, dependency)
            ),
            name: name.to_owned(),
            source,
            input_job: base.map(|job| job.name.clone()),
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
    bucket: BucketWidth,
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
fn resolve_key_columns(
    file: &File<'_>,
    spec: &AggregateSpec,
    columns: AvailableColumns<'_>,
    bucket: BucketWidth,
) -> Result<(Vec<KeyColumn>, Vec<KeyColumn>)> {
    let mut used = Vec::new();
    let mut resolve = |field: &Spanned<String>| resolve_key_column(file, columns, field, &mut used);
    let group = spec.group.get_ref().iter().map(&mut resolve);
    let group = group.collect::<Result<Vec<_>>>()?;
    if group.is_empty() {
        return Err(file.error_at(&spec.group, "group: at least one column is needed"));
    }
    let mut row = Vec::new();
    if bucket != BucketWidth::All {
        row.push(KeyColumn {
            name: BUCKET.to_owned(),
            kind: KeyKind::Time,
            nullable: false,
        });
    }
    for field in &spec.dimensions {
        row.push(resolve(field)?);
    }
    if row.is_empty() {
        let reason = "dimensions: needs at least one, or a bucket other than \"all\"";
        return Err(file.error(0, reason));
    }
    Ok((group, row))
}

fn parse_width(file: &File<'_>, name: &str, field: &Spanned<String>) -> Result<BucketWidth> {
    let mut all = BucketWidth::ALL.into_iter();
    let width = all.find(|width| width.name() == field.get_ref());
    width.ok_or_else(|| {
        let reason =
            format!("{name}: expected \"quarter\", \"hour\", \"day\", \"month\" or \"all\"");
        file.error_at(field, reason)
    })
}

/// Resolves a column of the input, or one that the query computes.
fn resolve_key_column(
    file: &File<'_>,
    available: AvailableColumns<'_>,
    field: &Spanned<String>,
    used: &mut Vec<String>,
) -> Result<KeyColumn> {
    let AvailableColumns { input, output } = available;
    let name = field.get_ref();
    let find_output = |plan: &LogicalPlan| {
        let fields = plan.schema().fields().iter();
        fields.clone().find(|field| field.name() == name).cloned()
    };
    let input_field = input.field_with_name(name).ok().cloned();
    let output_field = || {
        output
            .and_then(find_output)
            .map(|field| field.as_ref().clone())
    };
    let column = input_field.or_else(output_field).ok_or_else(|| {
        let names: Vec<&str> = input.fields().iter().map(|f| f.name().as_str()).collect();
        let reason = format!(
            "there is no column {name:?}; the input has {}, and the query may compute others",
            names.join(", ")
        );
        file.error_at(field, reason)
    })?;
    let kind = match column.data_type() {
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
        nullable: column.is_nullable(),
    })
}
