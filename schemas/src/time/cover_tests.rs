//! Tests of covers: exact and minimal.

use jiff::Timestamp;
use proptest::prelude::*;

use super::*;

const FOUR: [BucketWidth; 4] = [
    BucketWidth::QuarterHour,
    BucketWidth::Hour,
    BucketWidth::Day,
    BucketWidth::Month,
];

fn seconds_at(text: &str) -> UnixSeconds {
    text.parse::<Timestamp>().unwrap().as_second()
}

fn span(width: BucketWidth, from: &str, to: &str) -> BucketSpan {
    BucketSpan {
        width,
        from: Some(seconds_at(from)),
        to: Some(seconds_at(to)),
    }
}

#[test]
fn covers_from_fine_to_coarse_and_back() {
    let range = TimeRange::new(
        seconds_at("2026-01-30T22:45:00Z"),
        seconds_at("2026-04-02T01:30:00Z"),
    );
    let expected = [
        span(
            BucketWidth::QuarterHour,
            "2026-01-30T22:45:00Z",
            "2026-01-30T23:00:00Z",
        ),
        span(
            BucketWidth::Hour,
            "2026-01-30T23:00:00Z",
            "2026-01-31T00:00:00Z",
        ),
        span(
            BucketWidth::Day,
            "2026-01-31T00:00:00Z",
            "2026-02-01T00:00:00Z",
        ),
        span(
            BucketWidth::Month,
            "2026-02-01T00:00:00Z",
            "2026-04-01T00:00:00Z",
        ),
        span(
            BucketWidth::Day,
            "2026-04-01T00:00:00Z",
            "2026-04-02T00:00:00Z",
        ),
        span(
            BucketWidth::Hour,
            "2026-04-02T00:00:00Z",
            "2026-04-02T01:00:00Z",
        ),
        span(
            BucketWidth::QuarterHour,
            "2026-04-02T01:00:00Z",
            "2026-04-02T01:30:00Z",
        ),
    ];
    assert_eq!(cover(range, &FOUR).unwrap(), expected);
    let shuffled = [
        BucketWidth::Month,
        BucketWidth::QuarterHour,
        BucketWidth::All,
        BucketWidth::Day,
        BucketWidth::Hour,
        BucketWidth::Day,
    ];
    assert_eq!(cover(range, &shuffled).unwrap(), expected);
}

#[test]
fn finer_buckets_fill_gaps() {
    let range = TimeRange::new(
        seconds_at("2026-01-15T00:00:00Z"),
        seconds_at("2026-02-20T00:00:00Z"),
    );
    let days = [span(
        BucketWidth::Day,
        "2026-01-15T00:00:00Z",
        "2026-02-20T00:00:00Z",
    )];
    assert_eq!(cover(range, &FOUR).unwrap(), days);
    let hours = [span(
        BucketWidth::Hour,
        "2026-01-15T00:00:00Z",
        "2026-02-20T00:00:00Z",
    )];
    assert_eq!(cover(range, &[BucketWidth::Hour]).unwrap(), hours);
}

#[test]
fn all_time_is_one_bucket_or_an_unbounded_run() {
    let endless = |width| {
        vec![BucketSpan {
            width,
            from: None,
            to: None,
        }]
    };
    assert_eq!(
        cover(TimeRange::ALL, &[BucketWidth::Day, BucketWidth::All]).unwrap(),
        endless(BucketWidth::All)
    );
    assert_eq!(
        cover(TimeRange::ALL, &[BucketWidth::All]).unwrap(),
        endless(BucketWidth::All)
    );
    assert_eq!(
        cover(TimeRange::ALL, &[BucketWidth::Hour, BucketWidth::Day]).unwrap(),
        endless(BucketWidth::Day)
    );
}

#[test]
fn an_open_side_ends_in_a_run_of_the_coarsest_width() {
    let edge = seconds_at("2026-01-31T23:00:00Z");
    let widths = [BucketWidth::Hour, BucketWidth::Month, BucketWidth::All];
    assert_eq!(
        cover(
            TimeRange {
                from: Some(edge),
                to: None
            },
            &widths
        )
        .unwrap(),
        [
            span(
                BucketWidth::Hour,
                "2026-01-31T23:00:00Z",
                "2026-02-01T00:00:00Z"
            ),
            BucketSpan {
                width: BucketWidth::Month,
                from: Some(seconds_at("2026-02-01T00:00:00Z")),
                to: None
            },
        ],
    );
    let spans = cover(
        TimeRange {
            from: None,
            to: Some(edge),
        },
        &widths,
    )
    .unwrap();
    let january = Some(seconds_at("2026-01-01T00:00:00Z"));
    assert_eq!(
        spans[0],
        BucketSpan {
            width: BucketWidth::Month,
            from: None,
            to: january
        }
    );
    assert_eq!(
        spans[1],
        BucketSpan {
            width: BucketWidth::Hour,
            from: january,
            to: Some(edge)
        }
    );
    assert_eq!(spans.len(), 2);
}

#[test]
fn an_empty_range_needs_no_buckets() {
    assert_eq!(cover(TimeRange::new(7, 7), &FOUR), Ok(vec![]));
    assert_eq!(cover(TimeRange::new(900, 0), &[]), Ok(vec![]));
}

#[test]
fn errors_explain_what_to_do() {
    let message = |range, widths: &[BucketWidth]| cover(range, widths).unwrap_err().to_string();
    assert_eq!(
        message(
            TimeRange::new(
                seconds_at("2026-01-01T00:15:00Z"),
                seconds_at("2026-01-02T00:00:00Z")
            ),
            &[BucketWidth::Hour]
        ),
        "the range's from 2026-01-01T00:15:00Z is not at the start of a bucket (finest width of the view: \
         hour): choose an edge that is, in UTC",
    );
    assert_eq!(
        message(
            TimeRange {
                from: None,
                to: Some(1)
            },
            &FOUR
        ),
        "the range's to 1970-01-01T00:00:01Z is not at the start of a bucket (finest width of the view: \
         quarter): choose an edge that is, in UTC",
    );
    let no_widths = "the view has no buckets of bounded width: request all time, or add such \
                     buckets";
    assert_eq!(
        message(TimeRange::new(0, 900), &[BucketWidth::All]),
        no_widths
    );
    assert_eq!(message(TimeRange::ALL, &[]), no_widths);
}

#[test]
fn the_ends_of_the_i64_range_do_not_panic() {
    let (low, high) = (
        BucketWidth::QuarterHour.floor(i64::MIN + 900),
        BucketWidth::QuarterHour.floor(i64::MAX),
    );
    for range in [
        TimeRange::new(low, high),
        TimeRange {
            from: Some(high),
            to: None,
        },
        TimeRange {
            from: None,
            to: Some(low),
        },
        TimeRange::new(high - 900, high),
    ] {
        let spans = cover(range, &FOUR).unwrap();
        assert!(!spans.is_empty());
    }
}

fn widths() -> impl Strategy<Value = Vec<BucketWidth>> {
    proptest::sample::subsequence(BucketWidth::ALL[1..].to_vec(), 0..=4).prop_map(|mut widths| {
        widths.insert(0, BucketWidth::QuarterHour);
        widths
    })
}

proptest! {
    #[test]
    fn covers_are_exact_and_minimal(
        start in -4_000_000_i64..4_000_000,
        quarters in prop_oneof![0_i64..200, 0_i64..400_000],
        widths in widths(),
    ) {
        let (from, to) = (start * 900, (start + quarters) * 900);
        let spans = cover(TimeRange::new(from, to), &widths).unwrap();
        let mut reached = from;
        for (index, span) in spans.iter().enumerate() {
            let (begin, end) = (span.from.unwrap(), span.to.unwrap());
            prop_assert_eq!(begin, reached);
            prop_assert!(begin < end);
            prop_assert!(span.width.is_aligned(begin) && span.width.is_aligned(end));
            prop_assert!(index == 0 || spans[index - 1].width != span.width);
            // Widths nest: a cover is minimal if no run holds a whole bucket of a coarser width.
            for coarser in widths.iter().filter(|width| **width > span.width && **width != BucketWidth::All) {
                prop_assert!(coarser.next(coarser.ceil(begin).unwrap()).unwrap() > end);
            }
            reached = end;
        }
        prop_assert_eq!(reached, to);
    }

    #[test]
    fn an_open_side_covers_the_same_as_a_far_edge(start in -400_000_i64..400_000, widths in widths()) {
        let from = start * 900;
        let open = cover(TimeRange { from: Some(from), to: None }, &widths).unwrap();
        let coarsest = open.last().unwrap().width;
        let far = coarsest.floor(from + 40_000 * 86_400);
        let mut closed = open;
        closed.last_mut().unwrap().to = Some(far);
        prop_assert_eq!(closed, cover(TimeRange::new(from, far), &widths).unwrap());
    }
}
