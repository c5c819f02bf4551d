//! What people have approved: that a scheduled reconciliation puts right what it found of a view.
//!
//! An approval is a note beside the records of comparisons. It is good for what was found, and no more: where the schedule finds more
//! by then, that is left to a person again. It holds as long as that comparison is the newest of its view by its schedule, which asks
//! the same, and for a week at most ([`holding`]): so whatever dies in between, what follows was seen by nobody and is not approved.

use schemas::source::Source;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use xxhash_rust::xxh3::xxh3_64;

use crate::reconciliations::{Reconciliation, Reconciliations, ReconciliationsRead};
use crate::{Error, Result};

/// The scope of the notes.
const SCOPE: &str = "approvals";
/// Notes and records that are read at once.
const STEP: usize = 200;
/// Records among which a newer comparison is looked for.
const LOOKED_AT_MAX: usize = 10_000;
/// How long an approval holds.
const HOLDS_MS: i64 = 7 * 86_400_000;
/// Of what was asked, what may be another by the time that it is put right.
const MAY_CHANGE: [&str; 3] = ["apply", "apply_max", "from"];
/// What can be approved, by its outcome: what differs, and was not put right.
const OUTCOMES: [&str; 2] = ["differs", "held_back"];

/// That what was found may be put right.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Approval {
    /// The source of the view.
    pub source: Source,
    /// The number of the comparison that found it.
    pub number: u64,
    /// The schedule that compares, and will put right.
    pub schedule: String,
    /// The view.
    pub view: String,
    /// How much may be put right in all, at most.
    pub total: u64,
    /// What was asked, as [`asking`] has it.
    pub asking: String,
    /// Who has approved it.
    pub by: String,
    /// Why.
    pub reason: String,
    /// When, in milliseconds since the Unix epoch.
    pub at_ms: i64,
}

/// Why something can't be approved.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NotApproved {
    /// There is no such comparison.
    Unknown,
    /// It is nothing to approve.
    Nothing(String),
}

/// Approves what a comparison of a schedule found. One that was approved before is approved anew.
///
/// # Errors
/// Those of the store.
pub async fn approve(
    kept: &dyn Reconciliations,
    (source, number): (Source, u64),
    (by, reason): (&str, &str),
    now_ms: i64,
) -> Result<std::result::Result<Approval, NotApproved>> {
    let found = kept
        .reconciliations(source, Some(number.saturating_add(1)), 1)
        .await?;
    let Some(found) = found.into_iter().find(|found| found.number == number) else {
        return Ok(Err(NotApproved::Unknown));
    };
    let text = |name: &str| found.record.get(name).and_then(Value::as_str);
    let (Some(schedule), Some(view)) = (text("schedule"), text("view")) else {
        let why = "it was made by hand: `backstitch restorate --apply` puts right what it found";
        return Ok(Err(NotApproved::Nothing(why.to_owned())));
    };
    let outcome = text("outcome").unwrap_or_default();
    if !OUTCOMES.contains(&outcome) {
        let why = format!("its outcome is {}", outcome.replace('_', " "));
        return Ok(Err(NotApproved::Nothing(why)));
    }
    let newest = newest(kept, source, (schedule, view)).await?;
    if let Some(newest) = newest.filter(|newest| *newest != number) {
        let why = format!("{newest} is a newer comparison of the same");
        return Ok(Err(NotApproved::Nothing(why)));
    }
    let approval = Approval {
        source,
        number,
        schedule: schedule.to_owned(),
        view: view.to_owned(),
        total: found
            .record
            .get("total")
            .and_then(Value::as_u64)
            .unwrap_or(0),
        asking: asking(
            text("expected").unwrap_or_default(),
            found.record.get("asked").unwrap_or(&Value::Null),
        ),
        by: by.to_owned(),
        reason: reason.to_owned(),
        at_ms: now_ms,
    };
    let name = name(schedule, view);
    let value = serde_json::to_value(&approval);
    let value = value.map_err(|error| Error::broken("an approval", error))?;
    let seen = kept.note(SCOPE, &name).await?.map(|note| note.version);
    if !kept.change_note(SCOPE, &name, seen, Some(&value)).await? {
        let why = "somebody else approves it at the same time: look again";
        return Ok(Err(NotApproved::Nothing(why.to_owned())));
    }
    Ok(Ok(approval))
}

/// All approvals that are not spent.
///
/// # Errors
/// Those of the store.
pub async fn approvals(kept: &dyn ReconciliationsRead) -> Result<Vec<Approval>> {
    let (mut all, mut after) = (Vec::new(), None::<String>);
    loop {
        let notes = kept.notes(SCOPE, after.as_deref(), STEP).await?;
        let is_last = notes.len() < STEP;
        after = notes.last().map(|(name, _)| name.clone());
        for (_, note) in notes {
            all.push(read(note.value)?);
        }
        if is_last {
            return Ok(all);
        }
    }
}

/// What is asked of a view, in a form that tells it apart and names nobody.
#[must_use]
pub fn asking(expected: &str, asked: &Value) -> String {
    let mut asked = asked.clone();
    if let Some(asked) = asked.as_object_mut() {
        asked.retain(|name, _| !MAY_CHANGE.contains(&name.as_str()));
    }
    let text = serde_json::json!([expected, asked]).to_string();
    format!("{:016x}", xxh3_64(text.as_bytes()))
}

/// What is approved of a view for a schedule that asks for `asking` of it, and the version of the note that says so. One that does not
/// hold any more is taken away.
///
/// # Errors
/// Those of the store.
pub async fn holding(
    kept: &dyn Reconciliations,
    (schedule, view): (&str, &str),
    asking: &str,
    now_ms: i64,
) -> Result<Option<(u64, Approval)>> {
    let Some(note) = kept.note(SCOPE, &name(schedule, view)).await? else {
        return Ok(None);
    };
    let approval = read(note.value)?;
    let is_young = now_ms.saturating_sub(approval.at_ms) <= HOLDS_MS;
    let holds = is_young && approval.asking == asking && {
        let newest = newest(kept, approval.source, (schedule, view)).await?;
        newest == Some(approval.number)
    };
    if holds {
        return Ok(Some((note.version, approval)));
    }
    spend(kept, note.version, &approval).await?;
    Ok(None)
}

/// An approval is spent, unless it was given anew since.
///
/// # Errors
/// Those of the store.
pub async fn spend(kept: &dyn Reconciliations, version: u64, of: &Approval) -> Result<()> {
    let name = name(&of.schedule, &of.view);
    kept.change_note(SCOPE, &name, Some(version), None).await?;
    Ok(())
}

fn read(value: Value) -> Result<Approval> {
    serde_json::from_value(value).map_err(|error| Error::broken("an approval", error))
}

/// Names of views have no spaces.
fn name(schedule: &str, view: &str) -> String {
    format!("{schedule} {view}")
}

/// The number of the newest comparison of a view by a schedule.
async fn newest(
    kept: &dyn ReconciliationsRead,
    source: Source,
    of: (&str, &str),
) -> Result<Option<u64>> {
    let is_it = |one: &Reconciliation| {
        let text = |name: &str| one.record.get(name).and_then(Value::as_str);
        (text("schedule"), text("view")) == (Some(of.0), Some(of.1))
    };
    let (mut before, mut looked_at) = (None, 0);
    while looked_at < LOOKED_AT_MAX {
        let some = kept.reconciliations(source, before, STEP).await?;
        if let Some(found) = some.iter().find(|one| is_it(one)) {
            return Ok(Some(found.number));
        }
        let Some(last) = some.last() else {
            return Ok(None);
        };
        before = Some(last.number);
        looked_at += some.len();
    }
    Ok(None)
}
