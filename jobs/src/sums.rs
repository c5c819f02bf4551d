//! Queries that add a column up by some groups, and do nothing else: read from their plans.
//!
//! Such a query needs no engine. Its rows follow from columns of what it reads, some of them made coarser: that is how
//! live parts of a coarser view are made of those of a finer one ([`crate::Rollup`]), and how micro-batches are counted
//! ([`crate::TallyFold`]).

use arrow::datatypes::{DataType, Field, Schema, TimeUnit};
use datafusion::common::{Column, ScalarValue};
use datafusion::logical_expr::{Aggregate, Expr, LogicalPlan};
use schemas::key::KeyKind;
use schemas::time::Width;

use crate::{COUNT, truncate};

/// What a plan that only adds up is made of.
pub(crate) struct Sums<'a> {
    /// What is given, with its names.
    pub(crate) columns: Vec<(&'a Expr, &'a str)>,
    aggregate: &'a Aggregate,
}

impl<'a> Sums<'a> {
    /// What a plan is; nothing if it leaves rows out or makes other counts of them than sums of a column.
    pub(crate) fn of(plan: &'a LogicalPlan) -> Option<Self> {
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
        let given =
            |(expr, name): &(&Expr, &str)| *name != COUNT || matches!(bare(expr), Expr::Column(_));
        let all_are_sums = || {
            let mut exprs = aggregate.aggr_expr.iter();
            exprs.all(|expr| summed(expr).is_some())
        };
        (reads_all && all_are_sums() && columns.iter().all(given))
            .then_some(Self { columns, aggregate })
    }

    /// What the sums are by.
    pub(crate) fn groups(&self) -> &'a [Expr] {
        &self.aggregate.group_expr
    }

    /// The columns that are summed.
    pub(crate) fn summed(&self) -> impl Iterator<Item = &'a Column> {
        self.aggregate.aggr_expr.iter().filter_map(summed)
    }

    /// What stands behind a column that is given: by its place, groups and then sums.
    fn place(&self, name: &str) -> Option<usize> {
        let mut given = self.columns.iter();
        let (expr, _) = given.find(|(_, given)| *given == name)?;
        match without_alias(expr) {
            Expr::Column(column) => self.aggregate.schema.maybe_index_of_column(column),
            _ => None,
        }
    }
}

/// The column of which an expression is the plain sum. That of what a cast makes of a column is none.
fn summed(expr: &Expr) -> Option<&Column> {
    let Expr::AggregateFunction(call) = without_alias(expr) else {
        return None;
    };
    let is_plain = call.params.filter.is_none() && !call.params.distinct;
    match call.params.args.as_slice() {
        [Expr::Column(column)] if is_plain && call.func.name() == "sum" => Some(column),
        _ => None,
    }
}

/// How a column of a row comes from what is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Take {
    /// Which of its columns, by its place.
    pub(crate) column: usize,
    /// Where that is an instant: the start of the bucket of this width that holds it.
    pub(crate) width: Option<Width>,
}

/// How the rows of a query that only adds up come from what it reads.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Adding {
    /// By column of the rows, but for the count.
    pub(crate) takes: Vec<Take>,
    /// The column that is summed, by its place.
    pub(crate) summed: usize,
}

impl Adding {
    /// How a plan over `input` makes rows of these columns, the last of which is the count; nothing if it does anything
    /// else than adding up.
    pub(crate) fn of(plan: &LogicalPlan, input: &Schema, rows: &[Field]) -> Option<Self> {
        let sums = Sums::of(plan)?;
        let (_, keys) = rows.split_last()?;
        let groups = sums.groups();
        let take = |field: &Field| {
            let group = without_alias(groups.get(sums.place(field.name())?)?);
            let (column, width) = match group {
                Expr::Column(column) => (column, None),
                group => bucket_of(group).map(|(width, column)| (column, Some(width)))?,
            };
            let place = input.index_of(&column.name).ok()?;
            let found = input.field(place).data_type();
            let fits = match width {
                None => found == field.data_type(),
                Some(_) => is_instant(found) && *field.data_type() == KeyKind::Time.data_type(),
            };
            fits.then_some(Take {
                column: place,
                width,
            })
        };
        let takes = keys.iter().map(take).collect::<Option<_>>()?;
        let sum = sums.place(COUNT)?.checked_sub(groups.len())?;
        let summed = summed(sums.aggregate.aggr_expr.get(sum)?)?;
        let summed = input.index_of(&summed.name).ok()?;
        let field = input.field(summed);
        let is_count = *field.data_type() == DataType::Int64 && !field.is_nullable();
        is_count.then_some(Self { takes, summed })
    }
}

fn is_instant(data_type: &DataType) -> bool {
    matches!(
        data_type,
        DataType::Timestamp(TimeUnit::Millisecond | TimeUnit::Microsecond, Some(zone)) if **zone == *"UTC"
    )
}

/// The width of the buckets that an expression makes of a column, and the column. A cast makes other buckets: one to another
/// time zone, as `AT TIME ZONE` is, or to a date.
pub(crate) fn bucket_of(expr: &Expr) -> Option<(Width, &Column)> {
    let Expr::ScalarFunction(call) = without_alias(expr) else {
        return None;
    };
    let [width, of] = call.args.as_slice() else {
        return None;
    };
    let Expr::Column(column) = of else {
        return None;
    };
    let Expr::Literal(width, _) = bare(width) else {
        return None;
    };
    let width = match (call.func.name(), width) {
        ("date_bin", ScalarValue::IntervalMonthDayNano(Some(interval))) => {
            let nanoseconds =
                i128::from(interval.days) * 86_400_000_000_000 + i128::from(interval.nanoseconds);
            match (interval.months, nanoseconds) {
                (0, 900_000_000_000) => Width::Quarter,
                (0, 3_600_000_000_000) => Width::Hour,
                (0, 86_400_000_000_000) => Width::Day,
                _ => return None,
            }
        }
        ("date_trunc", ScalarValue::Utf8(Some(unit))) => truncate::width(unit)?,
        _ => return None,
    };
    Some((width, column))
}

/// What stands below names and casts.
pub(crate) fn bare(expr: &Expr) -> &Expr {
    match expr {
        Expr::Alias(alias) => bare(&alias.expr),
        Expr::Cast(cast) => bare(&cast.expr),
        expr => expr,
    }
}

fn without_alias(expr: &Expr) -> &Expr {
    match expr {
        Expr::Alias(alias) => without_alias(&alias.expr),
        expr => expr,
    }
}
