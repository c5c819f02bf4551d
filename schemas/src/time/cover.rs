//! Which stored buckets make up a range: exactly, and with as few as there can be.
//!
//! It owns the choice of widths. It must not know which view has which widths, nor how buckets are
//! read: it is given widths and answers with runs of buckets.

use super::bucket::{Range, Seconds, Width};
use super::shown;

/// A run of whole neighbouring buckets of one width.
///
/// Both sides are there, but for the one bucket of [`Width::All`], which has neither, and for runs
/// that reach as far as there are buckets, whose far side is absent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Span {
    /// The width of each bucket.
    pub width: Width,
    /// The start of the first bucket, or nothing if there is no first.
    pub from: Option<Seconds>,
    /// The start of the bucket after the last, or nothing if there is no last.
    pub to: Option<Seconds>,
}

/// Why no buckets make up a range.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CoverError {
    /// There are no buckets that a bounded range could be made of.
    #[error("the view has no buckets of bounded width: ask for all time, or give it such buckets")]
    NoWidths,
    /// An edge lies within a bucket of the finest width.
    #[error(
        "the range's {edge} {at} is not at the start of a bucket (the view's finest: {width}): choose \
         an edge that is, in UTC"
    )]
    Within {
        /// Which edge, `from` or `to`.
        edge: &'static str,
        /// The edge.
        at: String,
        /// The finest width at hand.
        width: Width,
    },
}

/// The buckets that make up a range, coarsest where they fit: at the left edge finer ones up to the
/// first coarse one, then coarse ones, then finer ones again. Spans come in order of time and
/// neighbouring buckets of one width are one span. An empty range has none.
///
/// All time is the one bucket of [`Width::All`] if there is such a width, else a run of the coarsest
/// width without ends. A range with one absent side ends in a run of the coarsest bounded width
/// that is open to that side.
///
/// # Errors
///
/// [`CoverError`] if no bounded width is at hand or an edge is not the start of a bucket of the
/// finest one.
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
            return Err(CoverError::Within {
                edge,
                at: shown(at),
                width: finest,
            });
        }
    }
    let mut spans = Vec::new();
    push(&mut spans, range, &coarsest_first);
    Ok(spans)
}

/// Appends the spans of a range whose edges are on the finest of the widths. Widths nest, so the
/// rest to the left and right of the coarse run is shorter than a coarse bucket on either side.
fn push(spans: &mut Vec<Span>, range: Range, coarsest_first: &[Width]) {
    let [width, finer @ ..] = coarsest_first else {
        return;
    };
    if range.is_empty() {
        return;
    }
    // The first start at or after the left edge does not exist within the last bucket of an i64.
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
