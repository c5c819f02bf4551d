//! Charts as SVG. Values that the batch layer has confirmed are solid, others are hatched, and a
//! dashed line marks the seam. A table next to the chart has the same values.

use askama::Template;
use jiff::Timestamp;
use jiff::tz::TimeZone;
use schemas::time::Interval;

use super::api::{Origin, Point};
use super::formatting::{number, short};

const WIDTH: f64 = 760.0;
const HEIGHT: f64 = 240.0;
const LEFT: f64 = 46.0;
const RIGHT: f64 = 8.0;
const TOP: f64 = 18.0;
const BOTTOM: f64 = 24.0;
/// Maximum points drawn as bars. Of more points, the bars of each source are one shape without
/// tooltips.
const BARS_MAX: usize = 400;
/// Maximum rows of the table, the last ones.
const ROWS_MAX: usize = 1_000;
/// Maximum width of a bar.
const BAR_WIDTH_MAX: f64 = 96.0;
/// Maximum labels below the axis.
const LABELS_MAX: usize = 8;

/// Long and short label of a point.
fn labels(at: &str, interval: Interval, zone: &TimeZone) -> (String, String) {
    let Ok(at) = at.parse::<Timestamp>() else {
        return (at.to_owned(), at.to_owned());
    };
    let at = at.to_zoned(zone.clone());
    let (long, short) = match interval {
        Interval::Hour => ("%a %-d %b %Y, %H:%M", "%-d %b %H:%M"),
        Interval::Day => ("%a %-d %b %Y", "%-d %b"),
        Interval::Week => ("week of %-d %b %Y", "%-d %b"),
        Interval::Month => ("%B %Y", "%b %Y"),
    };
    (
        at.strftime(long).to_string(),
        at.strftime(short).to_string(),
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

/// All bars of one source.
#[derive(Debug, Clone)]
pub(crate) struct Shape {
    /// batch, realtime or merged.
    pub(crate) source: &'static str,
    pub(crate) path: String,
}

/// A grid line with its label, or a label of the time axis.
#[derive(Debug, Clone)]
pub(crate) struct Tick {
    pub(crate) at: String,
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
    pub(crate) shapes: Vec<Shape>,
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

fn coordinate(value: f64) -> String {
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
const fn pixels(value: i64) -> f64 {
    value as f64
}

#[expect(clippy::cast_precision_loss, reason = "pixels")]
const fn count(value: usize) -> f64 {
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
            high: round_up(pixels(largest)),
            low: match least {
                0 => 0.0,
                least => -round_up(-pixels(least)),
            },
            point_width: (WIDTH - LEFT - RIGHT) / count(points.len().max(1)),
        }
    }

    fn x(&self, at: usize) -> f64 {
        LEFT + self.point_width * count(at)
    }

    fn middle(&self, at: usize) -> f64 {
        self.x(at) + self.point_width / 2.0
    }

    fn y(&self, value: f64) -> f64 {
        TOP + (self.high - value) / (self.high - self.low) * (HEIGHT - TOP - BOTTOM)
    }

    fn bar(&self, at: usize, point: &Point) -> Bar {
        let gap = if self.point_width > 4.0 {
            self.point_width * 0.15
        } else {
            0.0
        };
        let width = (self.point_width - gap).clamp(0.5, BAR_WIDTH_MAX);
        let value = pixels(point.count);
        let (from, to) = (self.y(value.max(0.0)), self.y(value.min(0.0)));
        Bar {
            x: coordinate(self.middle(at) - width / 2.0),
            y: coordinate(from),
            width: coordinate(width),
            height: coordinate((to - from).max(0.0)),
            source: point.source.name(),
            name: String::new(),
            count: number(point.count),
            previous: None,
        }
    }

    fn value_ticks(&self) -> Vec<Tick> {
        let quarter = (self.high - self.low) / 4.0;
        let values = (0..=4_u8).map(|at| self.low + quarter * f64::from(at));
        let ticks = values.map(|value| Tick {
            at: coordinate(self.y(value)),
            label: short(value),
        });
        ticks.collect()
    }

    /// The points of a line.
    fn line(&self, points: &[Point]) -> String {
        let point = |(at, point): (usize, &Point)| {
            let (x, y) = (self.middle(at), self.y(pixels(point.count)));
            format!("{},{}", coordinate(x), coordinate(y))
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
        let bars = points.iter().enumerate().map(|(at, point)| Bar {
            name: labels(&point.at, interval, zone).0,
            previous: previous
                .and_then(|points| points.get(at))
                .map(|point| number(point.count)),
            ..scale.bar(at, point)
        });
        let bars: Vec<Bar> = bars.collect();
        let every = points.len().div_ceil(LABELS_MAX).max(1);
        let time_ticks = points.iter().enumerate().step_by(every);
        let time_ticks = time_ticks.map(|(at, point)| Tick {
            at: coordinate(scale.middle(at)),
            label: labels(&point.at, interval, zone).1,
        });
        let first = points
            .iter()
            .position(|point| point.source != Origin::Batch);
        let previous_line = previous.filter(|points| points.len() <= 4 * BARS_MAX);
        let previous_line = previous_line.map(|points| points.get(..bars.len()).unwrap_or(points));
        Some(Self {
            width: WIDTH,
            height: HEIGHT,
            left: LEFT,
            right: coordinate(WIDTH - RIGHT),
            base: coordinate(scale.y(0.0)),
            top: TOP,
            value_ticks: scale.value_ticks(),
            time_ticks: time_ticks.collect(),
            seam: first.map(|at| coordinate(scale.x(at))),
            unconfirmed: unconfirmed(points, &scale),
            seam_anchor: if first == Some(0) { "start" } else { "middle" },
            previous_line: previous_line.map(|points| scale.line(points)),
            summary: summary(points, &bars),
            shapes: match bars.len() {
                0..=BARS_MAX => Vec::new(),
                _ => shapes(&bars),
            },
            bars,
        })
    }

    fn table_title(&self) -> String {
        let (rows, all) = (self.rows().len(), self.bars.len());
        let is_part = rows < all;
        let part = is_part.then(|| {
            format!(
                ": the last {} of {}; the CSV file has all",
                number(rows as u64),
                number(all as u64)
            )
        });
        format!("As a table{}", part.unwrap_or_default())
    }

    /// The rows of the table.
    fn rows(&self) -> &[Bar] {
        let left_out = self.bars.len().saturating_sub(ROWS_MAX);
        self.bars.get(left_out..).unwrap_or_default()
    }
}

/// One shape per source from its bars.
fn shapes(bars: &[Bar]) -> Vec<Shape> {
    let shape = |source: &'static str| {
        let source_bars = bars.iter().filter(|bar| bar.source == source);
        let path = source_bars.map(|bar| {
            let (x, y, width, height) = (&bar.x, &bar.y, &bar.width, &bar.height);
            format!("M{x} {y}h{width}v{height}h-{width}z")
        });
        let path: String = path.collect();
        (!path.is_empty()).then_some(Shape { source, path })
    };
    ["batch", "merged", "realtime"]
        .into_iter()
        .filter_map(shape)
        .collect()
}

/// Position and width of each range of points that the batch layer has not confirmed.
fn unconfirmed(points: &[Point], scale: &Scale) -> Vec<(String, String)> {
    let is_confirmed = |point: &Point| point.source == Origin::Batch;
    let mut found = Vec::new();
    let mut at = 0;
    for run in points.chunk_by(|a, b| is_confirmed(a) == is_confirmed(b)) {
        if !run.iter().all(is_confirmed) {
            let width = scale.point_width * count(run.len());
            found.push((coordinate(scale.x(at)), coordinate(width)));
        }
        at += run.len();
    }
    found
}

fn summary(points: &[Point], bars: &[Bar]) -> String {
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
        unconfirmed => format!("; {unconfirmed} not yet confirmed by the batch layer"),
    };
    let first = bars.first().map_or("", |bar| bar.name.as_str());
    let last = bars.last().map_or("", |bar| bar.name.as_str());
    format!(
        "{} values from {first} to {last}{maximum}{unconfirmed}",
        bars.len()
    )
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
        let at = mixed.seam.unwrap().parse::<f64>().unwrap();
        let second = LEFT + (WIDTH - LEFT - RIGHT) / 3.0;
        assert!((at - second).abs() < 0.1, "{at} {second}");
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
        assert!(few.shapes.is_empty() && few.rows().len() == BARS_MAX);
        let mut many = vec![(1, "batch"); 2 * ROWS_MAX];
        many.push((2, "realtime"));
        let many = chart(&many).unwrap();
        let kinds: Vec<_> = many.shapes.iter().map(|shape| shape.source).collect();
        assert_eq!(kinds, ["batch", "realtime"]);
        assert_eq!(many.shapes[0].path.matches('M').count(), 2 * ROWS_MAX);
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
                assert!(x >= LEFT && x + width <= WIDTH - RIGHT + 0.2, "{bar:?}");
                assert!(
                    y >= TOP - 0.1 && y + height <= HEIGHT - BOTTOM + 0.2,
                    "{bar:?}"
                );
            }
            assert!(chart.time_ticks.len() <= LABELS_MAX);
        }
        assert!(chart(&[]).is_none());
    }
}
