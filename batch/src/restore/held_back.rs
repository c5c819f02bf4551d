//! Why what differs is not put right now.

use super::report::ReconcileReport;
use super::request::ReconcileRequest;

/// Says why what differs is not put right now, where it is so; `uncounted` is a restoration whose corrections live state
/// has not come to, and partitions of the log with records that it has not come to.
pub(super) fn hold_back(
    request: &ReconcileRequest,
    report: &mut ReconcileReport,
    (restoration, partitions): (Option<u64>, &[u32]),
) {
    let corrections = restoration.map(|number| format!(
        "live state does not include all corrections of restoration {number} yet, so they would be repeated: run `backstitch speed`"
    ));
    let events = (!partitions.is_empty()).then(|| {
        let partitions: Vec<String> = partitions.iter().map(u32::to_string).collect();
        format!(
            "live state does not include all events in the log, in partition(s) {}: run `backstitch speed`. If the expected values already include these events, corrections would count them twice",
            partitions.join(", ")
        )
    });
    let uncounted = corrections.or(events);
    if request.apply && request.expected.is_claimed() {
        report.held_back = uncounted;
    } else {
        report.warnings.extend(uncounted);
    }
    let why = report.held_back.take();
    report.held_back = why.or_else(|| held_back(request, report));
}

/// Why what differs is not to be put right now.
pub(super) fn held_back(request: &ReconcileRequest, report: &ReconcileReport) -> Option<String> {
    if !request.apply {
        return None;
    }
    if let Some(max) = request.apply_max
        && report.total > max
    {
        return Some(format!(
            "the total difference of {} exceeds {max}, the maximum that may be repaired without approval",
            report.total
        ));
    }
    match &request.expected {
        expected if expected.is_claimed() && report.ahead > 0 => Some(format!(
            "{} keys belong to a run that is not complete",
            report.ahead
        )),
        _ => None,
    }
}
