//! The tables of an aggregate view: that of its rows, and that of its drift.

use jobs::tables::{TableGeneration, drift_row_shape, drift_table_name, table_name};
use jobs::{Job, Layers};
use schemas::time::BucketWidth;
use stores::views::{AggregateShape, ViewShape};

use super::compute::View;

/// The shape of the table of a view whose rows are of a generation.
pub(crate) fn shape(job: &Job, of: TableGeneration) -> ViewShape {
    ViewShape::Aggregate(AggregateShape {
        view: table_name(job.view(), of),
        group: job.group().clone(),
        partition: job.table_partition(),
        row: job.row().clone(),
    })
}

/// The table for what live state counted otherwise than the rows of a view say, where it is kept.
pub(crate) fn kept_shape(job: &Job, of: TableGeneration) -> Option<ViewShape> {
    is_compared(job).then(|| {
        ViewShape::Aggregate(AggregateShape {
            view: drift_table_name(job.view(), of),
            group: job.group().clone(),
            partition: BucketWidth::All,
            row: drift_row_shape(job.row()),
        })
    })
}

/// Views that read the events are compared with live state; the others follow from them.
pub(crate) fn compared(view: &View) -> bool {
    is_compared(&view.job)
}

fn is_compared(job: &Job) -> bool {
    job.input_job().is_none() && job.layers() == Layers::Both
}
