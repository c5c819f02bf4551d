//! Charts as SVG. Values that the batch layer has confirmed are solid, others are hatched, and a
//! dashed line marks the seam. A table next to the chart has the same values.

use askama::Template;
use jiff::Timestamp;
use jiff::tz::TimeZone;
use schemas::time::Interval;

use super::api::{Origin, Point};
use super::formatting::{format_number, format_quantity, format_short_number};

const WIDTH: f64 = 760.0;
const HEIGHT: f64 = 240.0;
const MARGIN_LEFT: f64 = 46.0;
const MARGIN_RIGHT: f64 = 8.0;
const MARGIN_TOP: f64 = 18.0;
const MARGIN_BOTTOM: f64 = 24.0;
/// Maximum points drawn as bars. Of more points, the bars of each source are one path without
/// tooltips.
const BARS_MAX: usize = 400;
/// Maximum rows of the table, the last ones.
const ROWS_MAX: usize = 1_000;
/// Maximum width of a bar.
const BAR_WIDTH_MAX: f64 = 96.0;
/// Maximum labels below the axis.
const LABELS_MAX: usize = 8;

/// Formats the long and the short label of a point.
fn format_labels(time: &str, interval: Interval, zone: &TimeZone) -> (String, String) {
    let Ok(instant) = time.parse::<Timestamp>() else {
        return (time.to_owned(), time.to_owned());
    };
    let local_time = instant.to_zoned(zone.clone());
    let (long, short) = match interval {
        Interval::Hour => ("%a %-d %b %Y, %H:%M", "%-d %b %H:%M"),
        Interval::Day => ("%a %-d %b %Y", "%-d %b"),
        Interval::Week => ("week of %-d %b %Y", "%-d %b"),
        Interval::Month => ("%B %Y", "%b %Y"),
    };
    (
        local_time.strftime(long).to_string(),
        local_time.strftime(short).to_string(),
    )
}

/// A point of the chart and its row in the table.
#[derive(Debug, Clone)]
pub(crate) struct Bar {
    pub(crate) x: String,
    pub(crate) y: String,
    pub(crate) width: String,
    pub(crate) height: String,
    /// batch, realtime or merged.
    pub(crate) source: &'static str,
    pub(crate) name: String,
    pub(crate) count: String,
    pub(crate) previous: Option<String>,
}

/// All bars of one source as one SVG path.
#[derive(Debug, Clone)]
pub(crate) struct BarPath {
    /// batch, realtime or merged.
    pub(crate) source: &'static str,
    pub(crate) data: String,
}

/// A grid line with its label, or a label of the time axis.
#[derive(Debug, Clone)]
pub(crate) struct Tick {
    pub(crate) position: String,
    pub(crate) label: String,
}

/// A chart of a time series.
#[derive(Debug, Clone, Template)]
#[template(path = "chart.html")]
pub(crate) struct Chart {
    pub(crate) width: f64,
    pub(crate) height: f64,
    pub(crate) left: f64,
    pub(crate) right: String,
    pub(crate) base: String,
    pub(crate) top: f64,
    pub(crate) bars: Vec<Bar>,
    /// Drawn instead of bars if there are many.
    pub(crate) bar_paths: Vec<BarPath>,
    /// Ticks of the value axis.
    pub(crate) value_ticks: Vec<Tick>,
    /// Ticks of the time axis.
    pub(crate) time_ticks: Vec<Tick>,
    /// Position of the first point that the batch layer has not confirmed.
    pub(crate) seam: Option<String>,
    /// Position and width of each range of unconfirmed points.
    pub(crate) unconfirmed: Vec<(String, String)>,
    /// Anchor of the seam's label: next to the line where the axis begins.
    pub(crate) seam_anchor: &'static str,
    /// Points of the line for the previous period.
    pub(crate) previous_line: Option<String>,
    /// Description of the chart in one sentence.
    pub(crate) summary: String,
}

fn format_coordinate(value: f64) -> String {
    format!("{value:.1}")
}

/// The next round number that is divisible by four, since counts are integers.
fn round_up(value: f64) -> f64 {
    if value <= 4.0 {
        return 4.0;
    }
    let power = 10_f64.powf(value.log10().floor());
    let steps: &[f64] = match power {
        1.0 => &[8.0, 12.0],
        10.0 => &[1.2, 2.0, 4.0, 6.0, 8.0, 10.0],
        _ => &[1.0, 2.0, 4.0, 6.0, 8.0, 10.0],
    };
    let step = steps.iter().find(|step| **step * power >= value);
    step.unwrap_or(&10.0) * power
}

#[expect(clippy::cast_precision_loss, reason = "pixels")]
const fn i64_to_f64(value: i64) -> f64 {
    value as f64
}

#[expect(clippy::cast_precision_loss, reason = "pixels")]
const fn usize_to_f64(value: usize) -> f64 {
    value as f64
}

/// Mapping from values to coordinates.
struct Scale {
    high: f64,
    low: f64,
    /// Width per point.
    point_width: f64,
}

impl Scale {
    /// A scale for all points of both periods.
    fn for_points(points: &[Point], previous: &[Point]) -> Self {
        let counts = || points.iter().chain(previous).map(|point| point.count);
        let largest = counts().max().unwrap_or(0).max(1);
        let least = counts().min().unwrap_or(0).min(0);
        Self {
            high: round_up(i64_to_f64(largest)),
            low: match least {
                0 => 0.0,
                least => -round_up(-i64_to_f64(least)),
            },
            point_width: (WIDTH - MARGIN_LEFT - MARGIN_RIGHT) / usize_to_f64(points.len().max(1)),
        }
    }

    fn x(&self, index: usize) -> f64 {
        MARGIN_LEFT + self.point_width * usize_to_f64(index)
    }

    fn middle(&self, index: usize) -> f64 {
        self.x(index) + self.point_width / 2.0
    }

    fn y(&self, value: f64) -> f64 {
        MARGIN_TOP
            + (self.high - value) / (self.high - self.low) * (HEIGHT - MARGIN_TOP - MARGIN_BOTTOM)
    }

    fn bar(&self, index: usize, point: &Point) -> Bar {
        let gap = if self.point_width > 4.0 {
            self.point_width * 0.15
        } else {
            0.0
        };
        let width = (self.point_width - gap).clamp(0.5, BAR_WIDTH_MAX);
        let value = i64_to_f64(point.count);
        let (from, to) = (self.y(value.max(0.0)), self.y(value.min(0.0)));
        Bar {
            x: format_coordinate(self.middle(index) - width / 2.0),
            y: format_coordinate(from),
            width: format_coordinate(width),
            height: format_coordinate((to - from).max(0.0)),
            source: point.source.name(),
            name: String::new(),
            count: format_number(point.count),
            previous: None,
        }
    }

    fn value_ticks(&self) -> Vec<Tick> {
        let quarter = (self.high - self.low) / 4.0;
        let values = (0..=4_u8).map(|n| self.low + quarter * f64::from(n));
        let ticks = values.map(|value| Tick {
            position: format_coordinate(self.y(value)),
            label: format_short_number(value),
        });
        ticks.collect()
    }

    /// The points of a line.
    fn line(&self, points: &[Point]) -> String {
        let point = |(index, point): (usize, &Point)| {
            let (x, y) = (self.middle(index), self.y(i64_to_f64(point.count)));
            format!("{},{}", format_coordinate(x), format_coordinate(y))
        };
        let points: Vec<String> = points.iter().enumerate().map(point).collect();
        points.join(" ")
    }
}

impl Chart {
    /// Draws a chart; `None` without points.
    pub(crate) fn new(
        points: &[Point],
        previous: Option<&[Point]>,
        interval: Interval,
        zone: &TimeZone,
    ) -> Option<Self> {
        if points.is_empty() {
            return None;
        }
        let scale = Scale::for_points(points, previous.unwrap_or_default());
        let bars = points.iter().enumerate().map(|(index, point)| Bar {
            name: format_labels(&point.at, interval, zone).0,
            previous: previous
                .and_then(|points| points.get(index))
                .map(|point| format_number(point.count)),
            ..scale.bar(index, point)
        });
        let bars: Vec<Bar> = bars.collect();
        let label_step = points.len().div_ceil(LABELS_MAX).max(1);
        let time_ticks = points.iter().enumerate().step_by(label_step);
        let time_ticks = time_ticks.map(|(index, point)| Tick {
            position: format_coordinate(scale.middle(index)),
            label: format_labels(&point.at, interval, zone).1,
        });
        let first_unconfirmed = points
            .iter()
            .position(|point| point.source != Origin::Batch);
        let previous_line = previous.filter(|points| points.len() <= 4 * BARS_MAX);
        let previous_line = previous_line.map(|points| points.get(..bars.len()).unwrap_or(points));
        Some(Self {
            width: WIDTH,
            height: HEIGHT,
            left: MARGIN_LEFT,
            right: format_coordinate(WIDTH - MARGIN_RIGHT),
            base: format_coordinate(scale.y(0.0)),
            top: MARGIN_TOP,
            value_ticks: scale.value_ticks(),
            time_ticks: time_ticks.collect(),
            seam: first_unconfirmed.map(|index| format_coordinate(scale.x(index))),
            unconfirmed: find_unconfirmed(points, &scale),
            seam_anchor: if first_unconfirmed == Some(0) {
                "start"
            } else {
                "middle"
            },
            previous_line: previous_line.map(|points| scale.line(points)),
            summary: summarize(points, &bars),
            bar_paths: match bars.len() {
                0..=BARS_MAX => Vec::new(),
                _ => build_bar_paths(&bars),
            },
            bars,
        })
    }

    fn table_title(&self) -> String {
        let (shown, all) = (self.rows().len(), self.bars.len());
        let is_part = shown < all;
        let part = is_part.then(|| {
            format!(
                ": the last {} of {}; the CSV file has all",
                format_number(shown as u64),
                format_number(all as u64)
            )
        });
        format!("As a table{}", part.unwrap_or_default())
    }

    /// The rows of the table.
    fn rows(&self) -> &[Bar] {
        let omitted = self.bars.len().saturating_sub(ROWS_MAX);
        self.bars.get(omitted..).unwrap_or_default()
    }
}

/// Builds one path per source from its bars.
fn build_bar_paths(bars: &[Bar]) -> Vec<BarPath> {
    let bar_path = |source: &'static str| {
        let source_bars = bars.iter().filter(|bar| bar.source == source);
        let parts = source_bars.map(|bar| {
            let (x, y, width, height) = (&bar.x, &bar.y, &bar.width, &bar.height);
            format!("M{x} {y}h{width}v{height}h-{width}z")
        });
        let data: String = parts.collect();
        (!data.is_empty()).then_some(BarPath { source, data })
    };
    ["batch", "merged", "realtime"]
        .into_iter()
        .filter_map(bar_path)
        .collect()
}

/// Position and width of each range of points that the batch layer has not confirmed.
fn find_unconfirmed(points: &[Point], scale: &Scale) -> Vec<(String, String)> {
    let is_confirmed = |point: &Point| point.source == Origin::Batch;
    let mut ranges = Vec::new();
    let mut index = 0;
    for run in points.chunk_by(|a, b| is_confirmed(a) == is_confirmed(b)) {
        if !run.iter().all(is_confirmed) {
            let width = scale.point_width * usize_to_f64(run.len());
            ranges.push((format_coordinate(scale.x(index)), format_coordinate(width)));
        }
        index += run.len();
    }
    ranges
}

fn summarize(points: &[Point], bars: &[Bar]) -> String {
    let maximum = points.iter().zip(bars).max_by_key(|(point, _)| point.count);
    let maximum = maximum.map_or_else(String::new, |(_, bar)| {
        format!("; maximum in {}: {}", bar.name, bar.count)
    });
    let unconfirmed = points
        .iter()
        .filter(|point| point.source != Origin::Batch)
        .count();
    let unconfirmed = match unconfirmed {
        0 => "; all confirmed by the batch layer".to_owned(),
        unconfirmed => format!(
            "; {} not yet confirmed by the batch layer",
            format_number(unconfirmed as u64)
        ),
    };
    let first = bars.first().map_or("", |bar| bar.name.as_str());
    let last = bars.last().map_or("", |bar| bar.name.as_str());
    let values = format_quantity(bars.len() as u64, "value");
    format!("{values} from {first} to {last}{maximum}{unconfirmed}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn points(counts: &[(i64, &str)]) -> Vec<Point> {
        let points = (0..).zip(counts);
        points
            .map(|(day, (count, source))| Point {
                at: format!("2026-03-{:02}T00:00:00Z", day + 1),
                count: *count,
                source: serde_json::from_value((*source).into()).unwrap(),
            })
            .collect()
    }

    fn chart(values: &[(i64, &str)]) -> Option<Chart> {
        Chart::new(&points(values), None, Interval::Day, &TimeZone::UTC)
    }

    #[test]
    fn the_seam_precedes_the_first_unconfirmed_point() {
        let all = chart(&[(1, "batch"), (2, "batch")]).unwrap();
        assert!(
            all.seam.is_none() && all.summary.contains("all confirmed"),
            "{}",
            all.summary
        );
        let mixed = chart(&[(1, "batch"), (2, "merged"), (3, "realtime")]).unwrap();
        let seam = mixed.seam.unwrap().parse::<f64>().unwrap();
        let second = MARGIN_LEFT + (WIDTH - MARGIN_LEFT - MARGIN_RIGHT) / 3.0;
        assert!((seam - second).abs() < 0.1, "{seam} {second}");
        assert!(
            mixed.summary.contains("2 not yet confirmed"),
            "{}",
            mixed.summary
        );
        assert_eq!(mixed.unconfirmed.len(), 1);
        let between = chart(&[(1, "merged"), (2, "batch"), (3, "realtime")]).unwrap();
        assert_eq!(between.unconfirmed.len(), 2);
        assert!(
            mixed.summary.contains("maximum in Tue 3 Mar 2026: 3"),
            "{}",
            mixed.summary
        );
    }

    #[test]
    fn many_points_are_drawn_as_shapes_and_the_table_is_limited() {
        let few = chart(&[(1, "batch"); BARS_MAX]).unwrap();
        assert!(few.bar_paths.is_empty() && few.rows().len() == BARS_MAX);
        let mut many = vec![(1, "batch"); 2 * ROWS_MAX];
        many.push((2, "realtime"));
        let many = chart(&many).unwrap();
        let kinds: Vec<_> = many.bar_paths.iter().map(|path| path.source).collect();
        assert_eq!(kinds, ["batch", "realtime"]);
        assert_eq!(many.bar_paths[0].data.matches('M').count(), 2 * ROWS_MAX);
        assert_eq!(many.rows().len(), ROWS_MAX);
        assert_eq!(many.rows().last().unwrap().count, "2");
        let text = many.render().unwrap();
        assert!(text.contains("the last 1,000 of 2,001"), "{text}");
        assert!(!text.contains("<title>"));
    }

    #[test]
    fn all_bars_are_within_the_chart() {
        let cases: [&[(i64, &str)]; 5] = [
            &[(0, "batch")],
            &[(-5, "batch"), (7, "realtime")],
            &[(i64::MAX, "batch"), (i64::MIN, "merged")],
            &[(1, "batch"); 31],
            &[(999, "batch"), (1_001, "batch")],
        ];
        for case in cases {
            let chart = chart(case).unwrap();
            assert_eq!(chart.bars.len(), case.len());
            for bar in &chart.bars {
                let [x, y, width, height] = [&bar.x, &bar.y, &bar.width, &bar.height]
                    .map(|text| text.parse::<f64>().unwrap());
                assert!(
                    x >= MARGIN_LEFT && x + width <= WIDTH - MARGIN_RIGHT + 0.2,
                    "{bar:?}"
                );
                assert!(
                    y >= MARGIN_TOP - 0.1 && y + height <= HEIGHT - MARGIN_BOTTOM + 0.2,
                    "{bar:?}"
                );
            }
            assert!(chart.time_ticks.len() <= LABELS_MAX);
        }
        assert!(chart(&[]).is_none());
    }
}
