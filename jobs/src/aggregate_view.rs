//! Aggregate views: additive counts by group, time bucket and dimensions.

use schemas::key::KeyShape;
use schemas::time::BucketWidth;

use crate::sums::SumMapping;

/// The part of a definition that is specific to aggregate views.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AggregateView {
    pub(crate) metric: String,
    pub(crate) bucket: BucketWidth,
    pub(crate) partition: BucketWidth,
    pub(crate) group: KeyShape,
    pub(crate) row: KeyShape,
    pub(crate) is_rollup: bool,
    pub(crate) sum_mapping: Option<SumMapping>,
    pub(crate) is_partial: bool,
}
