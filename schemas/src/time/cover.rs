//! Covers a range exactly with the smallest number of stored buckets.
//!
//! This module chooses the widths. The widths of a view are a parameter; the result is runs of
//! buckets.

use super::bucket::{Range, Seconds, Width};
use super::format_instant;

/// A run of adjacent buckets of one width.
///
/// Both sides are present with two exceptions: [`Width::All`] has neither, and an unbounded run
/// lacks its open side.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Span {
    /// The width of each bucket.
    pub width: Width,
    /// The start of the first bucket; `None` if unbounded.
    pub from: Option<Seconds>,
    /// The start of the bucket after the last one; `None` if unbounded.
    pub to: Option<Seconds>,
}

/// The reason why buckets cannot cover a range.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CoverError {
    /// The view has no buckets of bounded width.
    #[error("the view has no buckets of bounded width: request all time, or add such buckets")]
    NoWidths,
    /// An edge is within a bucket of the finest width.
    #[error(
        "the range's {edge} {at} is not at the start of a bucket (finest width of the view: {width}): \
         choose an edge that is, in UTC"
    )]
    NotAligned {
        /// Which edge, `from` or `to`.
        edge: &'static str,
        /// The edge.
        at: String,
        /// The finest width of the view.
        width: Width,
    },
}

/// Returns the buckets that make up a range, as coarse as possible: finer ones at the left edge,
/// then coarse ones, then finer ones at the right edge.
///
/// Spans are in order of time, and adjacent buckets of one width form one span. An empty range has
/// no spans. All time is the bucket of [`Width::All`] if the view has it, else an unbounded run of
/// the coarsest width. A range with one absent side ends with an unbounded run of the coarsest
/// width.
///
/// # Errors
///
/// [`CoverError`] if there is no bounded width, or an edge is not the start of a bucket of the
/// finest width.
pub fn cover(range: Range, widths: &[Width]) -> Result<Vec<Span>, CoverError> {
    if range.is_empty() {
        return Ok(Vec::new());
    }
    if range == Range::ALL && widths.contains(&Width::All) {
        return Ok(vec![Span {
            width: Width::All,
            from: None,
            to: None,
        }]);
    }
    let mut coarsest_first: Vec<Width> = widths
        .iter()
        .copied()
        .filter(|width| *width != Width::All)
        .collect();
    coarsest_first.sort_unstable_by(|one, other| other.cmp(one));
    coarsest_first.dedup();

    let finest = *coarsest_first.last().ok_or(CoverError::NoWidths)?;
    for (edge, at) in [("from", range.from), ("to", range.to)] {
        if let Some(at) = at.filter(|at| !finest.is_aligned(*at)) {
            return Err(CoverError::NotAligned {
                edge,
                at: format_instant(at),
                width: finest,
            });
        }
    }
    let mut spans = Vec::new();
    push(&mut spans, range, &coarsest_first);
    Ok(spans)
}

/// Appends the spans of a range whose edges are aligned to the finest width. Widths nest, so the
/// rest on either side of the coarse run is shorter than a coarse bucket.
fn push(spans: &mut Vec<Span>, range: Range, coarsest_first: &[Width]) {
    let [width, finer @ ..] = coarsest_first else {
        return;
    };
    if range.is_empty() {
        return;
    }
    // There is no bucket start at or after an edge in the last bucket of the i64 range.
    let from = range.from.map(|from| width.ceil(from));
    let to = range.to.map(|to| width.floor(to));
    let run = match (from, to) {
        (Some(None), _) => None,
        (from, to) => {
            let run = Range {
                from: from.flatten(),
                to,
            };
            (!run.is_empty()).then_some(run)
        }
    };
    let Some(run) = run else {
        return push(spans, range, finer);
    };
    if run.from.is_some() {
        push(
            spans,
            Range {
                from: range.from,
                to: run.from,
            },
            finer,
        );
    }
    spans.push(Span {
        width: *width,
        from: run.from,
        to: run.to,
    });
    if run.to.is_some() {
        push(
            spans,
            Range {
                from: run.to,
                to: range.to,
            },
            finer,
        );
    }
}

#[cfg(test)]
#[path = "cover_tests.rs"]
mod tests;
