//! Why what differs is not put right now.

use super::{RestoreReport, RestoreRequest};

/// Says why what differs is not put right now, where it is so; `uncounted` is a restoration whose corrections live state
/// has not come to, and partitions of the log with records that it has not come to.
pub(super) fn hold_back(
    request: &RestoreRequest,
    report: &mut RestoreReport,
    (restoration, partitions): (Option<u64>, &[u32]),
) {
    let corrections = restoration.map(|number| format!(
        "live state has not come to all corrections of restoration {number} yet (`backstitch speed` counts them), so they would be made once more"
    ));
    let events = (!partitions.is_empty()).then(|| {
        let partitions: Vec<String> = partitions.iter().map(u32::to_string).collect();
        format!(
            "live state has not come to events that are in the log, in partition(s) {} (`backstitch speed` counts them): where what is expected counts them already, corrections would count them twice",
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
pub(super) fn held_back(request: &RestoreRequest, report: &RestoreReport) -> Option<String> {
    if !request.apply {
        return None;
    }
    if let Some(max) = request.apply_max
        && report.total > max
    {
        return Some(format!(
            "{} differ in all, more than the {max} that may be put right unasked",
            report.total
        ));
    }
    match &request.expected {
        expected if expected.is_claimed() && report.ahead > 0 => Some(format!(
            "{} keys are of a run that is not complete",
            report.ahead
        )),
        _ => None,
    }
}
