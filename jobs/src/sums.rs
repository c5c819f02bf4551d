//! Recognizes queries that only group rows and sum a column, from their plans.
//!
//! These queries need no engine. Their rows follow from the columns of the input, some of them
//! coarsened. [`crate::Rollup`] derives deltas of coarser views this way, and
//! [`crate::AggregateFold`] counts micro-batches.

use arrow::datatypes::{DataType, Field, Schema, TimeUnit};
use datafusion::common::{Column, ScalarValue};
use datafusion::logical_expr::{Aggregate, Expr, LogicalPlan};
use schemas::key::KeyKind;
use schemas::time::BucketWidth;

use crate::columns::{BUCKET, COUNT};
use crate::sketch::{self, cell_column, is_cell_column};
use crate::truncate;

/// The parts of a plan that only groups and sums.
struct SumQuery<'a> {
    /// The output columns with their names.
    columns: Vec<(&'a Expr, &'a str)>,
    aggregate: &'a Aggregate,
}

impl<'a> SumQuery<'a> {
    /// Parses a plan. Returns `None` if it filters rows, or if a count is not the plain sum of a
    /// column.
    fn from_plan(plan: &'a LogicalPlan) -> Option<Self> {
        let LogicalPlan::Projection(projection) = plan else {
            return None;
        };
        let LogicalPlan::Aggregate(aggregate) = projection.input.as_ref() else {
            return None;
        };
        let table = match aggregate.input.as_ref() {
            LogicalPlan::SubqueryAlias(alias) => alias.input.as_ref(),
            table => table,
        };
        let reads_all = matches!(
            table,
            LogicalPlan::TableScan(scan) if scan.filters.is_empty() && scan.fetch.is_none()
        );
        let fields = projection.schema.fields().iter();
        let names = fields.map(|field| field.name().as_str());
        let columns: Vec<(&Expr, &str)> = projection.expr.iter().zip(names).collect();
        let is_plain = |(expr, name): &(&Expr, &str)| {
            *name != COUNT || matches!(strip_casts(expr), Expr::Column(_))
        };
        let all_are_sums = || {
            let mut exprs = aggregate.aggr_expr.iter();
            exprs.all(|expr| summed_column(expr).is_some())
        };
        (reads_all && all_are_sums() && columns.iter().all(is_plain))
            .then_some(Self { columns, aggregate })
    }

    /// Returns the expressions of the grouping.
    fn groups(&self) -> &'a [Expr] {
        &self.aggregate.group_expr
    }

    /// Iterates over the summed columns.
    fn summed(&self) -> impl Iterator<Item = &'a Column> {
        self.aggregate.aggr_expr.iter().filter_map(summed_column)
    }

    /// Returns the index of an output column among the groups and the sums after them.
    fn output_index(&self, name: &str) -> Option<usize> {
        let mut outputs = self.columns.iter();
        let (expr, _) = outputs.find(|(_, output)| *output == name)?;
        match strip_aliases(expr) {
            Expr::Column(column) => self.aggregate.schema.maybe_index_of_column(column),
            _ => None,
        }
    }
}

/// Returns the column of which an expression is the plain sum. A sum over a cast is not plain.
fn summed_column(expr: &Expr) -> Option<&Column> {
    let Expr::AggregateFunction(call) = strip_aliases(expr) else {
        return None;
    };
    let is_plain = call.params.filter.is_none() && !call.params.distinct;
    match call.params.args.as_slice() {
        [Expr::Column(column)] if is_plain && call.func.name() == "sum" => Some(column),
        _ => None,
    }
}

/// The source of a row column.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct SourceColumn {
    /// The index of the input column.
    pub(crate) column: usize,
    /// For a timestamp, the width of the bucket to which it is rounded down.
    pub(crate) width: Option<BucketWidth>,
}

/// The sources of all row columns of a query that only sums.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SumMapping {
    /// By row column, without the count.
    pub(crate) keys: Vec<SourceColumn>,
    /// The index of the summed input column.
    pub(crate) summed: usize,
}

impl SumMapping {
    /// Derives the sources of the columns `rows`, the last of which is the count. Returns `None` if
    /// the plan does more than sum.
    pub(crate) fn from_plan(plan: &LogicalPlan, input: &Schema, rows: &[Field]) -> Option<Self> {
        let sums = SumQuery::from_plan(plan)?;
        let (_, keys) = rows.split_last()?;
        let groups = sums.groups();
        let find_source = |field: &Field| {
            let group = strip_aliases(groups.get(sums.output_index(field.name())?)?);
            let (column, width) = match group {
                Expr::Column(column) => (column, None),
                group => parse_bucket(group).map(|(width, column)| (column, Some(width)))?,
            };
            let index = input.index_of(&column.name).ok()?;
            let data_type = input.field(index).data_type();
            let is_same_type = match width {
                None => data_type == field.data_type(),
                Some(_) => is_instant(data_type) && *field.data_type() == KeyKind::Time.data_type(),
            };
            is_same_type.then_some(SourceColumn {
                column: index,
                width,
            })
        };
        let keys = keys.iter().map(find_source).collect::<Option<_>>()?;
        let sum = sums.output_index(COUNT)?.checked_sub(groups.len())?;
        let summed = summed_column(sums.aggregate.aggr_expr.get(sum)?)?;
        let summed = input.index_of(&summed.name).ok()?;
        let field = input.field(summed);
        let is_count = *field.data_type() == DataType::Int64 && !field.is_nullable();
        is_count.then_some(Self { keys, summed })
    }
}

/// Returns whether a query over another job's rows only coarsens buckets, drops columns or maps one
/// to cells, and sums the counts.
pub(crate) fn is_rollup(plan: &LogicalPlan, bucket: BucketWidth) -> bool {
    let Some(sums) = SumQuery::from_plan(plan) else {
        return false;
    };
    let is_group = |expr: &Expr| match strip_casts(expr) {
        Expr::Column(_) => true,
        Expr::ScalarFunction(call) if call.func.name() == sketch::FUNCTION => true,
        expr => parse_bucket(expr)
            .is_some_and(|(width, column)| width == bucket && column.name == BUCKET),
    };
    let has_cells = |name: &str| {
        sums.groups().iter().any(|expr| match strip_casts(expr) {
            Expr::ScalarFunction(call) => call.args.iter().any(
                |arg| matches!(strip_casts(arg), Expr::Column(column) if cell_column(&column.name) == name),
            ),
            _ => false,
        })
    };
    // Every column must keep its name, except computed ones.
    let keeps_name = |(expr, name): &(&Expr, &str)| {
        let is_computed = [BUCKET, COUNT].contains(name) || is_cell_column(name) && has_cells(name);
        matches!(strip_casts(expr), Expr::Column(column) if is_computed || column.name == *name)
    };
    sums.summed().all(|column| column.name == COUNT)
        && sums.columns.iter().all(keeps_name)
        && sums.groups().iter().all(is_group)
}

fn is_instant(data_type: &DataType) -> bool {
    matches!(
        data_type,
        DataType::Timestamp(TimeUnit::Millisecond | TimeUnit::Microsecond, Some(zone)) if **zone == *"UTC"
    )
}

/// Parses a bucket expression to its width and column. A cast of the column gives other
/// buckets, for example to another time zone (`AT TIME ZONE`) or to a date.
fn parse_bucket(expr: &Expr) -> Option<(BucketWidth, &Column)> {
    let Expr::ScalarFunction(call) = strip_aliases(expr) else {
        return None;
    };
    let [width, argument] = call.args.as_slice() else {
        return None;
    };
    let Expr::Column(column) = argument else {
        return None;
    };
    let Expr::Literal(width, _) = strip_casts(width) else {
        return None;
    };
    let width = match (call.func.name(), width) {
        ("date_bin", ScalarValue::IntervalMonthDayNano(Some(interval))) => {
            let nanoseconds =
                i128::from(interval.days) * 86_400_000_000_000 + i128::from(interval.nanoseconds);
            match (interval.months, nanoseconds) {
                (0, 900_000_000_000) => BucketWidth::QuarterHour,
                (0, 3_600_000_000_000) => BucketWidth::Hour,
                (0, 86_400_000_000_000) => BucketWidth::Day,
                _ => return None,
            }
        }
        ("date_trunc", ScalarValue::Utf8(Some(unit))) => truncate::width_of_unit(unit)?,
        _ => return None,
    };
    Some((width, column))
}

/// Returns the expression below aliases and casts.
fn strip_casts(expr: &Expr) -> &Expr {
    match expr {
        Expr::Alias(alias) => strip_casts(&alias.expr),
        Expr::Cast(cast) => strip_casts(&cast.expr),
        expr => expr,
    }
}

fn strip_aliases(expr: &Expr) -> &Expr {
    match expr {
        Expr::Alias(alias) => strip_aliases(&alias.expr),
        expr => expr,
    }
}
