//! Approvals: a person permits a scheduled reconciliation to repair the differences of a view.
//!
//! An approval covers the amount that was found, and no more: if the schedule finds more, a person
//! must approve again. It is valid while that comparison is the newest one of its view and
//! schedule, the schedule's request is unchanged, and for a week at most ([`find_valid`]). So a
//! comparison that followed, which no person has seen, is not approved.

use schemas::source::Source;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use xxhash_rust::xxh3::xxh3_64;

use crate::Result;
use crate::reconciliations::{self, Reconciliation};
use crate::records::{self, Records, RecordsRead, to_value};

/// The scope of approvals.
const SCOPE: &str = "approvals";
/// The number of records that are read at once.
const PAGE_RECORDS: usize = 200;
/// The maximum number of records that are searched for a newer comparison.
const SEARCHED_MAX: usize = 10_000;
/// How long an approval is valid.
const VALIDITY_MS: i64 = 7 * 86_400_000;
/// Fields of a request that may differ between the approved comparison and the repair.
const VARIABLE_FIELDS: [&str; 3] = ["apply", "apply_max", "from"];
/// Outcomes that can be approved: differences that were not repaired.
const APPROVABLE_OUTCOMES: [&str; 2] = ["differs", "held_back"];

/// The permission to repair what a comparison found.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Approval {
    /// The source of the view.
    pub source: Source,
    /// The number of the comparison.
    pub number: u64,
    /// The schedule that compares, and will repair.
    pub schedule: String,
    /// The view.
    pub view: String,
    /// The largest total amount that may be repaired.
    pub total: u64,
    /// The fingerprint of the request ([`request_fingerprint`]).
    #[serde(rename = "asking")]
    pub fingerprint: String,
    /// The person who approved it.
    pub by: String,
    /// The reason.
    pub reason: String,
    /// When, in milliseconds since the Unix epoch.
    pub at_ms: i64,
}

/// Why a comparison can't be approved.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NotApproved {
    /// The comparison does not exist.
    UnknownComparison,
    /// The comparison has nothing to approve, for this reason.
    NotApprovable(String),
}

/// Approves what a comparison of a schedule found. Replaces an earlier approval of the same
/// schedule and view.
///
/// # Errors
/// Those of the store.
pub async fn approve(
    records: &dyn Records,
    source: Source,
    number: u64,
    by: &str,
    reason: &str,
    now_ms: i64,
) -> Result<std::result::Result<Approval, NotApproved>> {
    let refused = |cause: &str| Ok(Err(NotApproved::NotApprovable(cause.to_owned())));
    let end = Some(number.saturating_add(1));
    let comparisons = reconciliations::list(records, source, end, 1).await?;
    let Some(comparison) = comparisons
        .into_iter()
        .find(|comparison| comparison.number == number)
    else {
        return Ok(Err(NotApproved::UnknownComparison));
    };
    let text = |name: &str| comparison.record.get(name).and_then(Value::as_str);
    let (Some(schedule), Some(view)) = (text("schedule"), text("view")) else {
        return refused(
            "no schedule made it; repair its findings with `backstitch reconcile --apply`",
        );
    };
    let outcome = text("outcome").unwrap_or_default();
    if !APPROVABLE_OUTCOMES.contains(&outcome) {
        return refused(&format!("its outcome is {}", outcome.replace('_', " ")));
    }
    let newest = newest_comparison(records, source, schedule, view).await?;
    if let Some(newest) = newest.filter(|newest| *newest != number) {
        return refused(&format!("{newest} is a newer comparison of the same view"));
    }
    let total = comparison.record.get("total").and_then(Value::as_u64);
    let approval = Approval {
        source,
        number,
        schedule: schedule.to_owned(),
        view: view.to_owned(),
        total: total.unwrap_or(0),
        fingerprint: request_fingerprint(
            text("expected").unwrap_or_default(),
            comparison.record.get("asked").unwrap_or(&Value::Null),
        ),
        by: by.to_owned(),
        reason: reason.to_owned(),
        at_ms: now_ms,
    };
    let name = record_name(schedule, view);
    let value = to_value(SCOPE, &approval)?;
    let current = records.get(SCOPE, &name).await?;
    let expected_version = current.map(|record| record.version);
    if !records
        .compare_and_set(SCOPE, &name, expected_version, Some(&value))
        .await?
    {
        return refused("another person approved it at the same time; check it again");
    }
    Ok(Ok(approval))
}

/// All approvals that no comparison has used.
///
/// # Errors
/// Those of the store.
pub async fn list(records: &dyn RecordsRead) -> Result<Vec<Approval>> {
    records::read_all(records, SCOPE, PAGE_RECORDS).await
}

/// The fingerprint of a request for a view. It contains no ids of people.
#[must_use]
pub fn request_fingerprint(expected: &str, request: &Value) -> String {
    let mut request = request.clone();
    if let Some(request) = request.as_object_mut() {
        request.retain(|name, _| !VARIABLE_FIELDS.contains(&name.as_str()));
    }
    let text = serde_json::json!([expected, request]).to_string();
    format!("{:016x}", xxh3_64(text.as_bytes()))
}

/// The valid approval of a view for a schedule whose request has this fingerprint, with the version
/// of its record. Deletes one that is not valid any more.
///
/// # Errors
/// Those of the store.
pub async fn find_valid(
    records: &dyn Records,
    schedule: &str,
    view: &str,
    fingerprint: &str,
    now_ms: i64,
) -> Result<Option<(u64, Approval)>> {
    let Some(record) = records.get(SCOPE, &record_name(schedule, view)).await? else {
        return Ok(None);
    };
    let version = record.version;
    let approval: Approval = record.parse(SCOPE)?;
    let is_young = now_ms.saturating_sub(approval.at_ms) <= VALIDITY_MS;
    let is_valid = is_young && approval.fingerprint == fingerprint && {
        let newest = newest_comparison(records, approval.source, schedule, view).await?;
        newest == Some(approval.number)
    };
    if is_valid {
        return Ok(Some((version, approval)));
    }
    delete(records, version, &approval).await?;
    Ok(None)
}

/// Deletes an approval that a comparison has used, unless it was replaced since.
///
/// # Errors
/// Those of the store.
pub async fn delete(records: &dyn Records, version: u64, approval: &Approval) -> Result<()> {
    let name = record_name(&approval.schedule, &approval.view);
    records
        .compare_and_set(SCOPE, &name, Some(version), None)
        .await?;
    Ok(())
}

/// The record of a schedule and a view. Names of views contain no spaces.
fn record_name(schedule: &str, view: &str) -> String {
    format!("{schedule} {view}")
}

/// The number of the newest comparison of a view by a schedule.
async fn newest_comparison(
    records: &dyn RecordsRead,
    source: Source,
    schedule: &str,
    view: &str,
) -> Result<Option<u64>> {
    let matches = |comparison: &Reconciliation| {
        let text = |name: &str| comparison.record.get(name).and_then(Value::as_str);
        (text("schedule"), text("view")) == (Some(schedule), Some(view))
    };
    let (mut before, mut searched) = (None, 0);
    while searched < SEARCHED_MAX {
        let page = reconciliations::list(records, source, before, PAGE_RECORDS).await?;
        if let Some(newest) = page.iter().find(|comparison| matches(comparison)) {
            return Ok(Some(newest.number));
        }
        let Some(last) = page.last() else {
            return Ok(None);
        };
        before = Some(last.number);
        searched += page.len();
    }
    Ok(None)
}
