//! What a result must hold before it is published.

use schemas::time::{BucketWidth, UnixSeconds};

use super::compute::{Computed, Plan, View, rows_of};
use super::result::ViewManifest;

const DAY_SECONDS: UnixSeconds = 86_400;
/// Fewer rows than this say nothing about a trend.
const ROWS_MIN: u64 = 1_000;
/// How much of the rows may be gone.
const SHRINK_MAX: f64 = 0.5;
/// How much the share of rows without a value may change.
const NULL_RATE_CHANGE_MAX: f64 = 0.5;

/// What does not hold; empty if all is well.
pub(crate) fn check(plan: &Plan, computed: &Computed) -> Vec<String> {
    let mut faults = Vec::new();
    for view in plan.wanted() {
        let Some(manifest) = computed.manifests.get(view.job.name()) else {
            faults.push(format!("job {} has no result", view.job.name()));
            continue;
        };
        totals(plan, view, manifest, computed, &mut faults);
        if let Some(before) = &view.published {
            shrinking(view, manifest, before, &mut faults);
            null_rates(view, manifest, before, &mut faults);
        }
    }
    faults
}

/// Days add up to the source's events, hours to days, days to months, months to all time.
fn totals(
    plan: &Plan,
    view: &View,
    manifest: &ViewManifest,
    computed: &Computed,
    faults: &mut Vec<String>,
) {
    let job = &view.job;
    if job.is_partial() {
        return;
    }
    let below = job.input_job().map(|name| {
        computed.manifests.get(name).or_else(|| {
            let under = plan.views.iter().find(|view| view.job.name() == name)?;
            under.published.as_ref()
        })
    });
    for start in &manifest.touched {
        let within = |other: UnixSeconds| job.time_partition().floor(other) == *start;
        let expected: i128 = match below {
            Some(Some(under)) => {
                let pieces = under.pieces.iter().filter(|(other, _)| within(**other));
                pieces.map(|(_, piece)| piece.total).sum()
            }
            Some(None) => 0,
            // Coarser pieces than days read days that this run did not.
            None if job.time_partition() != BucketWidth::Day => continue,
            None => {
                let day = start.div_euclid(DAY_SECONDS);
                let came = computed.totals.amounts.get(&day).copied().unwrap_or(0);
                came + held(plan, view, *start)
            }
        };
        let found = manifest.pieces.get(start).map_or(0, |piece| piece.total);
        if found != expected {
            faults.push(format!(
                "job {}: the {} that starts at second {start} adds up to {found}, but its input to {expected}",
                job.name(),
                job.time_partition()
            ));
        }
    }
}

/// What the result before has of a day of which events are gone: only what came since was read.
fn held(plan: &Plan, view: &View, start: UnixSeconds) -> i128 {
    if !plan.expired.contains(start.div_euclid(DAY_SECONDS)) {
        return 0;
    }
    let piece = view.base().and_then(|before| before.pieces.get(&start));
    piece.map_or(0, |piece| piece.total)
}

fn shrinking(view: &View, now: &ViewManifest, before: &ViewManifest, faults: &mut Vec<String>) {
    let (rows, had) = (rows_of(now), rows_of(before));
    if had >= ROWS_MIN && ratio(rows, had) < 1.0 - SHRINK_MAX {
        faults.push(format!(
            "job {} has {rows} rows, fewer than half of the {had} before",
            view.job.name()
        ));
    }
}

fn null_rates(view: &View, now: &ViewManifest, before: &ViewManifest, faults: &mut Vec<String>) {
    for column in view.job.row().0.iter().filter(|column| column.nullable) {
        let (Some(rate), Some(was)) = (
            null_rate(now, before, &column.name),
            null_rate(before, now, &column.name),
        ) else {
            continue;
        };
        if (rate - was).abs() > NULL_RATE_CHANGE_MAX {
            faults.push(format!(
                "job {}: {:.0} % of the rows have no {}, compared with {:.0} % before",
                view.job.name(),
                rate * 100.0,
                column.name,
                was * 100.0
            ));
        }
    }
}

/// The share of rows without a value, if there are enough rows: of the pieces of which both know it, since of one that was
/// added up it is not known.
fn null_rate(manifest: &ViewManifest, other: &ViewManifest, column: &str) -> Option<f64> {
    let mut rows = 0;
    let mut nulls = 0;
    for (start, piece) in &manifest.pieces {
        let other = other.pieces.get(start);
        if let Some(n) = piece.nulls.get(column)
            && other.is_some_and(|other| other.nulls.contains_key(column))
        {
            rows += piece.rows;
            nulls += n;
        }
    }
    (rows >= ROWS_MIN).then(|| ratio(nulls, rows))
}

fn ratio(part: u64, whole: u64) -> f64 {
    #[expect(
        clippy::cast_precision_loss,
        reason = "a share, compared with a rough limit"
    )]
    {
        part as f64 / whole as f64
    }
}
