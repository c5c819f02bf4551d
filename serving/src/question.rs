//! What is asked, freed of how it was asked.

use std::collections::BTreeMap;

use schemas::key::KeyValue;
use schemas::time::series::close;
use schemas::time::{Interval, Points, Range, Seconds, SeriesError, Zone, points};

/// A question about one metric.
#[derive(Debug, Clone)]
pub(crate) struct Question {
    /// By column: the only value that counts.
    pub(crate) filters: BTreeMap<String, KeyValue>,
    /// The column whose values are counted apart, if any.
    pub(crate) by: Option<String>,
    /// The column of which different values are counted in place of amounts, if any.
    pub(crate) distinct: Option<String>,
    /// Whether the rows are asked for that the amount is made of.
    pub(crate) explains: bool,
    /// Which value is asked for.
    pub(crate) prefer: Prefer,
    /// The time that it is about.
    pub(crate) time: Time,
}

/// Which value is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Prefer {
    /// Batch rows and what is newer.
    Newest,
    /// What batch rows hold where there are any, else what was counted live.
    Batch,
    /// What was counted live, also of what batch rows hold now.
    Realtime,
}

/// The stretches of time that are counted apart.
#[derive(Debug, Clone)]
pub(crate) enum Time {
    /// These.
    Segments(Segments),
    /// The points of a series that is open to one side or both: it reaches as far as there is data.
    Open(Open),
}

/// A series over a range that has no beginning, no end, or neither.
#[derive(Debug, Clone)]
pub(crate) struct Open {
    pub(crate) zone: Zone,
    pub(crate) interval: Interval,
    pub(crate) range: Range,
}

impl Open {
    /// The points around the data that lies between two instants, both included; none if there is
    /// no data.
    pub(crate) fn close(
        &self,
        extent: Option<(Seconds, Seconds)>,
    ) -> Result<Segments, SeriesError> {
        let Some((first, last)) = extent else {
            return Ok(Segments::default());
        };
        let first = self.range.from.map_or(first, |from| first.max(from));
        let last = self.range.to.map_or(last, |to| last.min(to - 1));
        let (from, to) = close(&self.zone, self.interval, self.range, (first, last))?;
        Ok(Segments::of(&points(&self.zone, self.interval, from, to)?))
    }
}

/// Ranges that are counted apart: ascending, none overlapping another.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Segments(Vec<Range>);

impl Segments {
    /// The ranges, which are put in order; empty ones stay and count nothing.
    pub(crate) fn new(mut ranges: Vec<Range>) -> Self {
        ranges.sort_by_key(|range| range.from);
        Self(ranges)
    }

    pub(crate) fn of(points: &Points) -> Self {
        let ranges = points.spans().map(|(from, to)| Range::new(from, to));
        Self(ranges.collect())
    }

    pub(crate) fn ranges(&self) -> &[Range] {
        &self.0
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// The segment that holds a bucket's start. A row without bucket is of all time, and so of the
    /// only segment there is.
    pub(crate) fn index_of(&self, bucket: Option<Seconds>) -> Option<usize> {
        let Some(at) = bucket else {
            return (!self.0.is_empty()).then_some(0);
        };
        let begun = self
            .0
            .partition_point(|range| range.from.is_none_or(|from| from <= at));
        // An empty segment begins where another one may begin, too.
        (0..begun)
            .rev()
            .take(2)
            .find(|index| self.0.get(*index).is_some_and(|range| range.contains(at)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bucket_is_of_the_segment_that_holds_it() {
        let segments = Segments::new(vec![Range::new(100, 200), Range::new(0, 50)]);
        for (at, expected) in [
            (-1, None),
            (0, Some(0)),
            (49, Some(0)),
            (50, None),
            (100, Some(1)),
            (199, Some(1)),
            (200, None),
        ] {
            assert_eq!(segments.index_of(Some(at)), expected, "{at}");
        }
        assert_eq!(Segments::new(vec![Range::ALL]).index_of(None), Some(0));
        assert_eq!(Segments::new(vec![Range::ALL]).index_of(Some(-9)), Some(0));
        assert_eq!(Segments::default().index_of(None), None);
        let open = Segments::new(vec![Range {
            from: Some(7),
            to: None,
        }]);
        assert_eq!(open.index_of(Some(7)), Some(0));
        assert_eq!(open.index_of(Some(6)), None);
        let empty = Segments::new(vec![Range::new(0, 0), Range::new(0, 9)]);
        assert_eq!(empty.index_of(Some(3)), Some(1));
    }

    #[test]
    fn an_open_series_closes_around_the_data() {
        let open = Open {
            zone: Zone::parse("Europe/Berlin").unwrap(),
            interval: Interval::Day,
            range: Range {
                from: None,
                to: Some(200_700),
            },
        };
        let segments = open.close(Some((90_000, 500_000))).unwrap();
        assert_eq!(segments.ranges()[0], Range::new(82_800, 169_200));
        assert_eq!(segments.ranges()[1], Range::new(169_200, 200_700));
        assert_eq!(segments.len(), 2);
        assert_eq!(open.close(None).unwrap().len(), 0);
    }
}
