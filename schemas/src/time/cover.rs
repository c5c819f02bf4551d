//! Covers a range exactly with the smallest number of stored buckets.
//!
//! This module chooses the widths. The widths of a view are a parameter; the result is spans of
//! buckets.

use super::bucket::{BucketWidth, TimeRange, UnixSeconds};
use super::format_instant_seconds;

/// Adjacent buckets of one width.
///
/// Both sides are present with two exceptions: [`BucketWidth::All`] has neither, and an unbounded
/// span lacks its open side.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct BucketSpan {
    /// The width of each bucket.
    pub width: BucketWidth,
    /// The start of the first bucket; `None` if unbounded.
    pub from: Option<UnixSeconds>,
    /// The start of the bucket after the last one; `None` if unbounded.
    pub to: Option<UnixSeconds>,
}

/// The reason why buckets cannot cover a range.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CoverError {
    /// The view has no buckets of bounded width.
    #[error("the view has no buckets of bounded width: request all time, or add such buckets")]
    NoWidths,
    /// An edge is within a bucket of the finest width.
    #[error(
        "the range's {edge} {instant} is not at the start of a bucket (finest width of the view: {width}): \
         choose an edge that is, in UTC"
    )]
    NotAligned {
        /// Which edge, `from` or `to`.
        edge: &'static str,
        /// The edge in UTC.
        instant: String,
        /// The finest width of the view.
        width: BucketWidth,
    },
}

/// Returns the buckets that make up a range, as coarse as possible: finer ones at the left edge,
/// then coarse ones, then finer ones at the right edge.
///
/// Spans are in order of time, and adjacent buckets of one width form one span. An empty range has
/// no spans. All time is the bucket of [`BucketWidth::All`] if the view has it, else an unbounded
/// span of the coarsest width. A range with one absent side ends with an unbounded span of that
/// width.
///
/// # Errors
///
/// [`CoverError`] if there is no bounded width, or an edge is not the start of a bucket of the
/// finest width.
pub fn cover(range: TimeRange, widths: &[BucketWidth]) -> Result<Vec<BucketSpan>, CoverError> {
    if range.is_empty() {
        return Ok(Vec::new());
    }
    if range == TimeRange::ALL && widths.contains(&BucketWidth::All) {
        return Ok(vec![BucketSpan {
            width: BucketWidth::All,
            from: None,
            to: None,
        }]);
    }
    let mut coarsest_first: Vec<BucketWidth> = widths
        .iter()
        .copied()
        .filter(|width| *width != BucketWidth::All)
        .collect();
    coarsest_first.sort_unstable_by(|a, b| b.cmp(a));
    coarsest_first.dedup();

    let finest = *coarsest_first.last().ok_or(CoverError::NoWidths)?;
    for (edge, instant) in [("from", range.from), ("to", range.to)] {
        if let Some(instant) = instant.filter(|instant| !finest.is_aligned(*instant)) {
            return Err(CoverError::NotAligned {
                edge,
                instant: format_instant_seconds(instant),
                width: finest,
            });
        }
    }
    let mut spans = Vec::new();
    push_spans(&mut spans, range, &coarsest_first);
    Ok(spans)
}

/// Appends the spans of a range whose edges are aligned to the finest width. Widths nest, so the
/// rest on either side of the coarse span is shorter than a coarse bucket.
fn push_spans(spans: &mut Vec<BucketSpan>, range: TimeRange, coarsest_first: &[BucketWidth]) {
    let [width, finer @ ..] = coarsest_first else {
        return;
    };
    if range.is_empty() {
        return;
    }
    // There is no bucket start at or after an edge in the last bucket of the i64 range.
    let from = range.from.map(|from| width.ceil(from));
    let to = range.to.map(|to| width.floor(to));
    let coarse = match (from, to) {
        (Some(None), _) => None,
        (from, to) => {
            let coarse = TimeRange {
                from: from.flatten(),
                to,
            };
            (!coarse.is_empty()).then_some(coarse)
        }
    };
    let Some(coarse) = coarse else {
        return push_spans(spans, range, finer);
    };
    if coarse.from.is_some() {
        push_spans(
            spans,
            TimeRange {
                from: range.from,
                to: coarse.from,
            },
            finer,
        );
    }
    spans.push(BucketSpan {
        width: *width,
        from: coarse.from,
        to: coarse.to,
    });
    if coarse.to.is_some() {
        push_spans(
            spans,
            TimeRange {
                from: coarse.to,
                to: range.to,
            },
            finer,
        );
    }
}

#[cfg(test)]
#[path = "cover_tests.rs"]
mod tests;
