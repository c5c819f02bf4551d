//! Tests of bucket edges against a calendar library, and at the ends of the i64 range.

use jiff::Timestamp;
use jiff::tz::TimeZone;
use proptest::prelude::*;

use super::*;

fn seconds_at(text: &str) -> UnixSeconds {
    text.parse::<Timestamp>().unwrap().as_second()
}

#[test]
fn buckets_hold_their_first_instant_and_not_their_last() {
    let cases = [
        (
            BucketWidth::QuarterHour,
            "2026-07-01T09:14:59Z",
            "2026-07-01T09:00:00Z",
            "2026-07-01T09:15:00Z",
        ),
        (
            BucketWidth::Hour,
            "2026-07-01T09:00:00Z",
            "2026-07-01T09:00:00Z",
            "2026-07-01T10:00:00Z",
        ),
        (
            BucketWidth::Day,
            "1969-12-31T23:59:59Z",
            "1969-12-31T00:00:00Z",
            "1970-01-01T00:00:00Z",
        ),
        (
            BucketWidth::Month,
            "2024-02-29T12:00:00Z",
            "2024-02-01T00:00:00Z",
            "2024-03-01T00:00:00Z",
        ),
        (
            BucketWidth::Month,
            "1900-02-28T12:00:00Z",
            "1900-02-01T00:00:00Z",
            "1900-03-01T00:00:00Z",
        ),
        (
            BucketWidth::Month,
            "1969-12-31T23:59:59Z",
            "1969-12-01T00:00:00Z",
            "1970-01-01T00:00:00Z",
        ),
    ];
    for (width, inside, start, next) in cases {
        assert_eq!(
            width.floor(seconds_at(inside)),
            seconds_at(start),
            "{width} of {inside}"
        );
        assert_eq!(
            width.next(seconds_at(inside)),
            Some(seconds_at(next)),
            "{width} after {inside}"
        );
    }
}

#[test]
fn all_time_is_one_bucket() {
    assert_eq!(BucketWidth::All.floor(-12_345), 0);
    assert_eq!(BucketWidth::All.next(12_345), None);
    assert!(BucketWidth::All.is_aligned(0));
    assert!(!BucketWidth::All.is_aligned(900));
}

#[test]
fn days_and_months_are_counted_from_the_epoch() {
    assert_eq!((utc_day(0), utc_month(0)), (0, 0));
    assert_eq!((utc_day(-1), utc_month(-1)), (-1, -1));
    assert_eq!(
        utc_month(seconds_at("2026-07-31T23:59:59Z")),
        (2026 - 1970) * 12 + 6
    );
}

#[test]
fn the_ends_of_the_i64_range_do_not_panic() {
    for width in BucketWidth::ALL {
        for seconds in [i64::MIN, i64::MIN + 1, -1, 0, i64::MAX - 1, i64::MAX] {
            let floor = width.floor(seconds);
            assert!(width == BucketWidth::All || floor <= seconds);
            assert!(width.next(seconds).is_none_or(|next| next > seconds));
        }
    }
    assert_eq!(BucketWidth::Day.next(i64::MAX), None);
    assert_eq!(BucketWidth::Month.next(i64::MAX), None);
}

#[test]
fn widths_are_ordered_and_named() {
    assert!(BucketWidth::ALL.is_sorted());
    let names: Vec<_> = BucketWidth::ALL.iter().map(ToString::to_string).collect();
    assert_eq!(names, ["quarter", "hour", "day", "month", "all"]);
}

#[test]
fn ranges_are_half_open() {
    let range = TimeRange::new(0, 900);
    assert!(range.contains(0) && range.contains(899));
    assert!(!range.contains(-1) && !range.contains(900));
    assert!(TimeRange::ALL.contains(i64::MIN) && !TimeRange::ALL.is_empty());
    assert!(TimeRange::new(5, 5).is_empty() && TimeRange::new(6, 5).is_empty());
    assert!(
        !TimeRange {
            from: None,
            to: Some(i64::MIN)
        }
        .is_empty()
    );
}

proptest! {
    #[test]
    fn floors_agree_with_the_calendar(seconds in -377_705_023_201_i64..=253_402_207_200) {
        let instant = Timestamp::from_second(seconds).unwrap();
        let civil = TimeZone::UTC.to_datetime(instant);
        let start = |civil: jiff::civil::DateTime| {
            TimeZone::UTC.to_timestamp(civil).map(Timestamp::as_second)
        };
        let day = civil.date().at(0, 0, 0, 0);
        let month = civil.date().first_of_month().at(0, 0, 0, 0);
        let hour = civil.date().at(civil.hour(), 0, 0, 0);
        let quarter = civil.date().at(civil.hour(), civil.minute() / 15 * 15, 0, 0);
        for (width, expected) in [
            (BucketWidth::QuarterHour, quarter), (BucketWidth::Hour, hour), (BucketWidth::Day, day), (BucketWidth::Month, month),
        ] {
            // The library's first instants have no midnight.
            if let Ok(expected) = start(expected) {
                prop_assert_eq!(width.floor(seconds), expected);
            }
        }
        let months = (i64::from(civil.year()) - 1970) * 12 + i64::from(civil.month()) - 1;
        prop_assert_eq!(utc_month(seconds), months);
    }

    #[test]
    fn buckets_partition_and_nest(seconds in i64::MIN / 2..i64::MAX / 2) {
        for (finer, coarser) in BucketWidth::ALL.into_iter().zip(&BucketWidth::ALL[1..4]) {
            for width in [finer, *coarser] {
                let (start, next) = (width.floor(seconds), width.next(seconds).unwrap());
                prop_assert!(start <= seconds && seconds < next);
                prop_assert!(width.is_aligned(start) && width.is_aligned(next));
                prop_assert_eq!(width.floor(next - 1), start);
                prop_assert_eq!(width.ceil(start), Some(start));
                prop_assert_eq!(width.ceil(start + 1), Some(next));
            }
            prop_assert!(finer.is_aligned(coarser.floor(seconds)));
        }
    }
}
