//! Charts as SVG: what the batch layer has confirmed is solid, what it has not is hatched, and the seam between both is a
//! line of stitches. Whoever can't see them has the table beside them.

use askama::Template;
use jiff::Timestamp;
use jiff::tz::TimeZone;
use schemas::time::Interval;

use super::api::{Origin, Point};
use super::shown::{number, short};

const WIDTH: f64 = 760.0;
const HEIGHT: f64 = 240.0;
const LEFT: f64 = 46.0;
const RIGHT: f64 = 8.0;
const TOP: f64 = 18.0;
const BOTTOM: f64 = 24.0;
/// Bars need some pixels each: of more points those of one kind are one shape, which nobody can point at.
const BARS_MAX: usize = 400;
/// Rows of the table beside it, the last ones.
const ROWS_MAX: usize = 1_000;
/// The widest bar.
const BAR_WIDTH_MAX: f64 = 96.0;
/// Labels under the axis, at most.
const LABELS_MAX: usize = 8;

/// What a point is called, long and short.
fn names(at: &str, (interval, zone): (Interval, &TimeZone)) -> (String, String) {
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

/// One point of the chart, and a row of the table beside it.
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

/// All bars of a kind.
#[derive(Debug, Clone)]
pub(crate) struct Shape {
    /// batch, realtime or merged.
    pub(crate) source: &'static str,
    pub(crate) path: String,
}

/// A line across, or a label below.
#[derive(Debug, Clone)]
pub(crate) struct Tick {
    pub(crate) at: String,
    pub(crate) label: String,
}

/// A chart of points in time.
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
    /// What is drawn in the place of bars where there are many.
    pub(crate) shapes: Vec<Shape>,
    /// Across, by value.
    pub(crate) across: Vec<Tick>,
    /// Below, by time.
    pub(crate) below: Vec<Tick>,
    /// Where the first point is that batch has not confirmed.
    pub(crate) seam: Option<String>,
    /// Where points are that it has not confirmed, and how wide they are.
    pub(crate) unconfirmed: Vec<(String, String)>,
    /// How its label stands at it: beside it where the axis begins.
    pub(crate) seam_anchor: &'static str,
    /// The period before, as the points of a line.
    pub(crate) before: Option<String>,
    /// What there is to see, in a sentence.
    pub(crate) summary: String,
}

fn shown(of: f64) -> String {
    format!("{of:.1}")
}

/// The next round number whose quarters are whole, as counts are.
fn round_up(of: f64) -> f64 {
    if of <= 4.0 {
        return 4.0;
    }
    let power = 10_f64.powf(of.log10().floor());
    let steps: &[f64] = match power {
        1.0 => &[8.0, 12.0],
        10.0 => &[1.2, 2.0, 4.0, 6.0, 8.0, 10.0],
        _ => &[1.0, 2.0, 4.0, 6.0, 8.0, 10.0],
    };
    let step = steps.iter().find(|step| **step * power >= of);
    step.unwrap_or(&10.0) * power
}

#[expect(clippy::cast_precision_loss, reason = "pixels")]
const fn pixels(of: i64) -> f64 {
    of as f64
}

#[expect(clippy::cast_precision_loss, reason = "pixels")]
const fn count(of: usize) -> f64 {
    of as f64
}

/// Where things are in a chart.
struct Scale {
    high: f64,
    low: f64,
    /// How wide the place of a point is.
    slot: f64,
}

impl Scale {
    /// One in which all points of both periods are.
    fn of(points: &[Point], previous: &[Point]) -> Self {
        let counts = || points.iter().chain(previous).map(|point| point.count);
        let largest = counts().max().unwrap_or(0).max(1);
        let least = counts().min().unwrap_or(0).min(0);
        Self {
            high: round_up(pixels(largest)),
            low: match least {
                0 => 0.0,
                least => -round_up(-pixels(least)),
            },
            slot: (WIDTH - LEFT - RIGHT) / count(points.len().max(1)),
        }
    }

    fn x(&self, at: usize) -> f64 {
        LEFT + self.slot * count(at)
    }

    fn middle(&self, at: usize) -> f64 {
        self.x(at) + self.slot / 2.0
    }

    fn y(&self, value: f64) -> f64 {
        TOP + (self.high - value) / (self.high - self.low) * (HEIGHT - TOP - BOTTOM)
    }

    fn bar(&self, at: usize, point: &Point) -> Bar {
        let gap = if self.slot > 4.0 {
            self.slot * 0.15
        } else {
            0.0
        };
        let width = (self.slot - gap).clamp(0.5, BAR_WIDTH_MAX);
        let value = pixels(point.count);
        let (from, to) = (self.y(value.max(0.0)), self.y(value.min(0.0)));
        Bar {
            x: shown(self.middle(at) - width / 2.0),
            y: shown(from),
            width: shown(width),
            height: shown((to - from).max(0.0)),
            source: point.source.name(),
            name: String::new(),
            count: number(point.count),
            previous: None,
        }
    }

    fn across(&self) -> Vec<Tick> {
        let quarter = (self.high - self.low) / 4.0;
        let values = (0..=4_u8).map(|at| self.low + quarter * f64::from(at));
        let ticks = values.map(|value| Tick {
            at: shown(self.y(value)),
            label: short(value),
        });
        ticks.collect()
    }

    /// The points of a line.
    fn line(&self, points: &[Point]) -> String {
        let point = |(at, point): (usize, &Point)| {
            let (x, y) = (self.middle(at), self.y(pixels(point.count)));
            format!("{},{}", shown(x), shown(y))
        };
        let points: Vec<String> = points.iter().enumerate().map(point).collect();
        points.join(" ")
    }
}

impl Chart {
    /// A chart; nothing if there is nothing to show.
    pub(crate) fn of(
        points: &[Point],
        previous: Option<&[Point]>,
        by: (Interval, &TimeZone),
    ) -> Option<Self> {
        if points.is_empty() {
            return None;
        }
        let scale = Scale::of(points, previous.unwrap_or_default());
        let bars = points.iter().enumerate().map(|(at, point)| Bar {
            name: names(&point.at, by).0,
            previous: previous
                .and_then(|points| points.get(at))
                .map(|point| number(point.count)),
            ..scale.bar(at, point)
        });
        let bars: Vec<Bar> = bars.collect();
        let every = points.len().div_ceil(LABELS_MAX).max(1);
        let below = points.iter().enumerate().step_by(every);
        let below = below.map(|(at, point)| Tick {
            at: shown(scale.middle(at)),
            label: names(&point.at, by).1,
        });
        let first = points
            .iter()
            .position(|point| point.source != Origin::Batch);
        let before = previous.filter(|points| points.len() <= 4 * BARS_MAX);
        let before = before.map(|points| points.get(..bars.len()).unwrap_or(points));
        Some(Self {
            width: WIDTH,
            height: HEIGHT,
            left: LEFT,
            right: shown(WIDTH - RIGHT),
            base: shown(scale.y(0.0)),
            top: TOP,
            across: scale.across(),
            below: below.collect(),
            seam: first.map(|at| shown(scale.x(at))),
            unconfirmed: unconfirmed(points, &scale),
            seam_anchor: if first == Some(0) { "start" } else { "middle" },
            before: before.map(|points| scale.line(points)),
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
                ": the last {} of {}; CSV has all",
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

/// The bars of each kind as one shape.
fn shapes(bars: &[Bar]) -> Vec<Shape> {
    let of = |source: &'static str| {
        let own = bars.iter().filter(|bar| bar.source == source);
        let path = own.map(|bar| {
            let (x, y, width, height) = (&bar.x, &bar.y, &bar.width, &bar.height);
            format!("M{x} {y}h{width}v{height}h-{width}z")
        });
        let path: String = path.collect();
        (!path.is_empty()).then_some(Shape { source, path })
    };
    ["batch", "merged", "realtime"]
        .into_iter()
        .filter_map(of)
        .collect()
}

/// Stretches of points that batch has not confirmed.
fn unconfirmed(points: &[Point], scale: &Scale) -> Vec<(String, String)> {
    let is_confirmed = |point: &Point| point.source == Origin::Batch;
    let mut found = Vec::new();
    let mut at = 0;
    for stretch in points.chunk_by(|a, b| is_confirmed(a) == is_confirmed(b)) {
        if !stretch.iter().all(is_confirmed) {
            let width = scale.slot * count(stretch.len());
            found.push((shown(scale.x(at)), shown(width)));
        }
        at += stretch.len();
    }
    found
}

fn summary(points: &[Point], bars: &[Bar]) -> String {
    let most = points.iter().zip(bars).max_by_key(|(point, _)| point.count);
    let most = most.map_or_else(String::new, |(_, bar)| {
        format!("; most in {}: {}", bar.name, bar.count)
    });
    let open = points
        .iter()
        .filter(|point| point.source != Origin::Batch)
        .count();
    let open = match open {
        0 => "; all of it confirmed by the batch layer".to_owned(),
        open => format!("; {open} not confirmed by the batch layer yet"),
    };
    let first = bars.first().map_or("", |bar| bar.name.as_str());
    let last = bars.last().map_or("", |bar| bar.name.as_str());
    format!("{} values from {first} to {last}{most}{open}", bars.len())
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

    fn chart(of: &[(i64, &str)]) -> Option<Chart> {
        Chart::of(&points(of), None, (Interval::Day, &TimeZone::UTC))
    }

    #[test]
    fn the_seam_stands_before_the_first_point_that_is_not_confirmed() {
        let all = chart(&[(1, "batch"), (2, "batch")]).unwrap();
        assert!(
            all.seam.is_none() && all.summary.contains("all of it"),
            "{}",
            all.summary
        );
        let some = chart(&[(1, "batch"), (2, "merged"), (3, "realtime")]).unwrap();
        let at = some.seam.unwrap().parse::<f64>().unwrap();
        let second = LEFT + (WIDTH - LEFT - RIGHT) / 3.0;
        assert!((at - second).abs() < 0.1, "{at} {second}");
        assert!(some.summary.contains("2 not confirmed"), "{}", some.summary);
        assert_eq!(some.unconfirmed.len(), 1);
        let between = chart(&[(1, "merged"), (2, "batch"), (3, "realtime")]).unwrap();
        assert_eq!(between.unconfirmed.len(), 2);
        assert!(
            some.summary.contains("most in Tue 3 Mar 2026: 3"),
            "{}",
            some.summary
        );
    }

    #[test]
    fn many_values_are_few_shapes_and_the_table_has_the_last_of_them() {
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
    fn every_value_is_within_the_chart() {
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
            assert!(chart.below.len() <= LABELS_MAX);
        }
        assert!(chart(&[]).is_none());
    }
}
