//! Queries to the statistics, independent of how a request expresses them.

use std::collections::BTreeMap;

use schemas::key::KeyValue;
use schemas::time::series::close_range;
use schemas::time::{Interval, Points, SeriesError, TimeRange, UnixSeconds, Zone, compute_points};

/// A query about one metric.
#[derive(Debug, Clone)]
pub(crate) struct StatsQuery {
    /// Required value by column.
    pub(crate) filters: BTreeMap<String, KeyValue>,
    /// The column to group by, if any.
    pub(crate) by: Option<String>,
    /// The column whose distinct values are counted instead of events, if any.
    pub(crate) distinct: Option<String>,
    /// True if the answer lists the rows that make up the amount.
    pub(crate) explains: bool,
    /// The preferred value.
    pub(crate) prefer: Prefer,
    /// The requested time.
    pub(crate) time: RequestedTime,
}

/// Which of several values of the same events an answer contains.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Prefer {
    /// Batch rows plus newer live deltas.
    Newest,
    /// Batch rows if there are any, else live counts.
    Batch,
    /// Live counts, also of events that batch rows hold now.
    Realtime,
}

/// The time ranges to count.
#[derive(Debug, Clone)]
pub(crate) enum RequestedTime {
    /// Fixed ranges.
    Segments(TimeSegments),
    /// Points of a series without beginning or end: it extends as far as there is data.
    Open(OpenSeries),
}

/// A series over a range without beginning, without end, or without both.
#[derive(Debug, Clone)]
pub(crate) struct OpenSeries {
    pub(crate) zone: Zone,
    pub(crate) interval: Interval,
    pub(crate) range: TimeRange,
}

impl OpenSeries {
    /// The points around the data between two instants, both inclusive; empty without data.
    pub(crate) fn close(
        &self,
        extent: Option<(UnixSeconds, UnixSeconds)>,
    ) -> Result<TimeSegments, SeriesError> {
        let Some((first, last)) = extent else {
            return Ok(TimeSegments::default());
        };
        let first = self.range.from.map_or(first, |from| first.max(from));
        let last = self.range.to.map_or(last, |to| last.min(to - 1));
        let (from, to) = close_range(&self.zone, self.interval, self.range, first, last)?;
        Ok(TimeSegments::from_points(&compute_points(
            &self.zone,
            self.interval,
            from,
            to,
        )?))
    }
}

/// Time ranges that are counted separately: ascending and disjoint.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct TimeSegments(Vec<TimeRange>);

impl TimeSegments {
    /// Sorts the ranges; empty ranges remain and count nothing.
    pub(crate) fn new(mut ranges: Vec<TimeRange>) -> Self {
        ranges.sort_by_key(|range| range.from);
        Self(ranges)
    }

    pub(crate) fn from_points(points: &Points) -> Self {
        let ranges = points.spans().map(|(from, to)| TimeRange::new(from, to));
        Self(ranges.collect())
    }

    pub(crate) fn ranges(&self) -> &[TimeRange] {
        &self.0
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// Index of the segment that holds a bucket's start. A row without a bucket covers all time and
    /// belongs to the only segment.
    pub(crate) fn index_of(&self, bucket: Option<UnixSeconds>) -> Option<usize> {
        let Some(start) = bucket else {
            return (!self.0.is_empty()).then_some(0);
        };
        let started_count = self
            .0
            .partition_point(|range| range.from.is_none_or(|from| from <= start));
        // An empty segment may begin where another one begins.
        (0..started_count).rev().take(2).find(|index| {
            self.0
                .get(*index)
                .is_some_and(|range| range.contains(start))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn index_of_finds_the_segment_of_a_bucket() {
        let segments = TimeSegments::new(vec![TimeRange::new(100, 200), TimeRange::new(0, 50)]);
        for (start, expected) in [
            (-1, None),
            (0, Some(0)),
            (49, Some(0)),
            (50, None),
            (100, Some(1)),
            (199, Some(1)),
            (200, None),
        ] {
            assert_eq!(segments.index_of(Some(start)), expected, "{start}");
        }
        assert_eq!(
            TimeSegments::new(vec![TimeRange::ALL]).index_of(None),
            Some(0)
        );
        assert_eq!(
            TimeSegments::new(vec![TimeRange::ALL]).index_of(Some(-9)),
            Some(0)
        );
        assert_eq!(TimeSegments::default().index_of(None), None);
        let open = TimeSegments::new(vec![TimeRange {
            from: Some(7),
            to: None,
        }]);
        assert_eq!(open.index_of(Some(7)), Some(0));
        assert_eq!(open.index_of(Some(6)), None);
        let empty = TimeSegments::new(vec![TimeRange::new(0, 0), TimeRange::new(0, 9)]);
        assert_eq!(empty.index_of(Some(3)), Some(1));
    }

    #[test]
    fn an_open_series_closes_around_the_data() {
        let open = OpenSeries {
            zone: Zone::parse("Europe/Berlin").unwrap(),
            interval: Interval::Day,
            range: TimeRange {
                from: None,
                to: Some(200_700),
            },
        };
        let segments = open.close(Some((90_000, 500_000))).unwrap();
        assert_eq!(segments.ranges()[0], TimeRange::new(82_800, 169_200));
        assert_eq!(segments.ranges()[1], TimeRange::new(169_200, 200_700));
        assert_eq!(segments.len(), 2);
        assert_eq!(open.close(None).unwrap().len(), 0);
    }
}
