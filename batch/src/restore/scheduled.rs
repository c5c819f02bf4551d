//! Scheduled reconciliation: comparisons that are made again and again, with a policy for what differs.
//!
//! A record says when a schedule last began and ended, so a restart neither repeats nor forgets one. Two who look at
//! the same time are kept apart by a lease of the schedule's name: one compares, the other passes. What was begun and not
//! ended is due: its process died, or a store did not answer.
//!
//! What a person has approved of what was found ([`stores::approvals`]) makes a schedule due, and puts it right whatever the policy is.
//!
//! An alert is made once for what is found, and made again only once something else is found. It is written down before
//! the schedule's end is, under an id of the schedule and its round: a round that is cut off in between makes the
//! same one.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use stores::alerts::{self, Alert};
use stores::approvals::{self, Approval};
use stores::intake::Intake;
use tokio_util::sync::CancellationToken;
use xxhash_rust::xxh3::xxh3_64;

use super::history::{Outcome, request_fingerprint, without_people};
use super::report::ReconcileReport;
use super::request::ReconcileRequest;
use crate::batch::Batch;
use crate::lease::check_stop;
use crate::{Error, Progress, Result};

/// The scope of the records of schedules.
const SCOPE: &str = "schedules";
const DAY_MS: i64 = 86_400_000;

/// What is done about what differs.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Policy {
    /// It is reported.
    #[default]
    Report,
    /// It is put right, below a limit.
    Apply,
}

/// A comparison that is made again and again.
#[derive(Debug, Clone)]
pub struct Scheduled {
    /// Its name.
    pub name: String,
    /// From one beginning to the next, in milliseconds.
    pub every_ms: u64,
    /// Only buckets of so many days before today (UTC), and of today; all if nothing.
    pub last_days: Option<u32>,
    /// What is compared, view by view.
    pub views: Vec<ScheduledView>,
}

/// A view that is compared.
#[derive(Debug, Clone)]
pub struct ScheduledView {
    /// What is asked; its policy is whether that says `apply`.
    pub request: ReconcileRequest,
    /// The way in for corrections, of the view's source.
    pub intake: Arc<Intake>,
}

/// Whether one is carried out that is not due.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum When {
    /// If it is due.
    Due,
    /// In any case.
    Now,
}

/// What became of a schedule.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "snake_case", tag = "what")]
pub enum Reconciled {
    /// It was not due.
    NotDue {
        /// Its name.
        schedule: String,
        /// When it is, in milliseconds since the Unix epoch.
        due_at_ms: i64,
    },
    /// Somebody else is carrying it out.
    Passed {
        /// Its name.
        schedule: String,
        /// Who, for people.
        holder: String,
    },
    /// It was carried out.
    Done {
        /// Its name.
        schedule: String,
        /// The worst outcome of its views.
        outcome: Outcome,
        /// How many alerts were made.
        alerts: u64,
        /// What was found, view by view.
        reports: Vec<ReconcileReport>,
        /// By view, why it could not be compared.
        failed: BTreeMap<String, String>,
    },
}

/// What is kept of a schedule.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Kept {
    /// How often it has ended.
    rounds: u64,
    begun_at_ms: i64,
    /// Nothing while it is under way.
    ended_at_ms: Option<i64>,
    outcome: Option<Outcome>,
    /// By view, what the last alert was about, until the view is right.
    alerted: BTreeMap<String, String>,
}

impl Kept {
    const fn due_at_ms(&self, every_ms: u64) -> i64 {
        match self.ended_at_ms {
            None => self.begun_at_ms,
            Some(_) => self.begun_at_ms.saturating_add_unsigned(every_ms),
        }
    }

    /// A clock that went back makes it due: else it might not be for years.
    const fn is_due(&self, every_ms: u64, now_ms: i64) -> bool {
        now_ms >= self.due_at_ms(every_ms) || now_ms < self.begun_at_ms
    }
}

/// What was found of a view.
struct Found<'a> {
    view: &'a str,
    outcome: Outcome,
    report: Option<&'a ReconcileReport>,
    error: Option<&'a str>,
}

impl Batch {
    /// Carries a schedule out, if it is due or is to be in any case.
    ///
    /// # Errors
    /// Those after which the same may go through later: it stays due. Any other one is an outcome.
    pub async fn reconcile(
        &self,
        of: &Scheduled,
        when: When,
        (progress, stop): (&dyn Progress, &CancellationToken),
    ) -> Result<Reconciled> {
        let now_ms = self.ports.clock.now_ms();
        let (_, before) = self.schedule(&of.name).await?.unzip();
        let when = match self.is_approved(of).await? {
            true => When::Now,
            false => when,
        };
        if let Some(passed) = not_due(of, when, before.as_ref(), now_ms) {
            return Ok(passed);
        }
        let lease = format!("reconcile-{}", of.name);
        let held = self.ports.leases.acquire(&lease, &self.options.holder);
        let held = match held.await? {
            Ok(held) => held,
            Err(holder) => {
                return Ok(Reconciled::Passed {
                    schedule: of.name.clone(),
                    holder,
                });
            }
        };
        let done = Box::pin(self.reconcile_held(of, when, (progress, stop))).await;
        held.release().await;
        done
    }

    async fn reconcile_held(
        &self,
        of: &Scheduled,
        when: When,
        (progress, stop): (&dyn Progress, &CancellationToken),
    ) -> Result<Reconciled> {
        // Somebody may have ended it just before the lease was free.
        let now_ms = self.ports.clock.now_ms();
        let (seen, before) = self.schedule(&of.name).await?.unzip();
        if let Some(passed) = not_due(of, when, before.as_ref(), now_ms) {
            return Ok(passed);
        }
        let mut kept = before.unwrap_or_default();
        kept.begun_at_ms = now_ms;
        kept.ended_at_ms = None;
        let version = self.put_schedule(&of.name, seen, &kept).await?;
        let (mut reports, mut failed) = (Vec::new(), BTreeMap::new());
        for view in &of.views {
            check_stop(stop)?;
            let approval = self.approved(of, view).await?;
            let request = view.request_at(of, approval.as_ref().map(|(_, one)| one), now_ms);
            let done = self.restore(&request, &view.intake, (progress, stop)).await;
            match done {
                Ok(report) => reports.push(report),
                // What is approved stays so.
                Err(error) if error.is_transient() => return Err(error),
                Err(error) => {
                    let error = without_people(&error.to_string());
                    tracing::error!(schedule = of.name, view = request.view, %error, "a reconciliation failed");
                    failed.insert(request.view, error);
                }
            }
            if let Some((version, approval)) = approval {
                approvals::delete(&*self.ports.records, version, &approval).await?;
            }
        }
        let found = found(&reports, &failed);
        let outcome = found
            .iter()
            .map(|one| one.outcome)
            .max_by_key(|outcome| severity(*outcome));
        let outcome = outcome.unwrap_or(Outcome::Right);
        let alerts = self.alert(of, &mut kept, &found).await?;
        kept.rounds += 1;
        kept.ended_at_ms = Some(self.ports.clock.now_ms());
        kept.outcome = Some(outcome);
        self.put_schedule(&of.name, Some(version), &kept).await?;
        tell(&of.name, now_ms, outcome, alerts);
        Ok(Reconciled::Done {
            schedule: of.name.clone(),
            outcome,
            alerts,
            reports,
            failed,
        })
    }

    /// Whether something is approved that the schedule puts right.
    async fn is_approved(&self, of: &Scheduled) -> Result<bool> {
        for view in &of.views {
            if self.approved(of, view).await?.is_some() {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// The valid approval of a view, with the version of its record.
    async fn approved(
        &self,
        of: &Scheduled,
        view: &ScheduledView,
    ) -> Result<Option<(u64, Approval)>> {
        let (records, request) = (&*self.ports.records, &view.request);
        let now_ms = self.ports.clock.now_ms();
        let fingerprint = request_fingerprint(request);
        Ok(approvals::find_valid(records, &of.name, &request.view, &fingerprint, now_ms).await?)
    }

    /// The version and the content of the record of a schedule.
    async fn schedule(&self, name: &str) -> Result<Option<(u64, Kept)>> {
        let Some(record) = self.ports.records.get(SCOPE, name).await? else {
            return Ok(None);
        };
        let kept = serde_json::from_value(record.value);
        let kept = kept.map_err(|e| Error::fault("the record of a schedule", e))?;
        Ok(Some((record.version, kept)))
    }

    async fn put_schedule(&self, name: &str, seen: Option<u64>, kept: &Kept) -> Result<u64> {
        let value = serde_json::to_value(kept).map_err(|e| Error::fault("a schedule", e))?;
        let records = &self.ports.records;
        let put = records.compare_and_set(SCOPE, name, seen, Some(&value));
        if put.await? {
            return Ok(seen.unwrap_or(0) + 1);
        }
        // The lease was lost, and somebody else has it.
        Err(Error::Busy(format!(
            "another process executes the reconciliation {name}"
        )))
    }

    /// Makes an alert of each view where something else is found than was alerted of before.
    async fn alert(&self, of: &Scheduled, kept: &mut Kept, found: &[Found<'_>]) -> Result<u64> {
        let mut made = 0;
        for one in found {
            if !one.outcome.is_alarming() {
                if matches!(one.outcome, Outcome::Right | Outcome::PutRight) {
                    kept.alerted.remove(one.view);
                }
                continue;
            }
            tracing::error!(
                schedule = of.name,
                view = one.view,
                outcome = one.outcome.name(),
                keys = one.report.map(|report| report.differ),
                total = one.report.map(|report| report.total),
                error = one.error,
                "served values differ from the expected values"
            );
            let about = about(one);
            if kept.alerted.get(one.view) == Some(&about) {
                continue;
            }
            let id = format!(
                "reconciliation-alert-{}-{}-{}",
                of.name,
                kept.rounds + 1,
                one.view
            );
            let alert = Alert {
                message: message(&id, of, kept.begun_at_ms, one),
                id,
                schedule: of.name.clone(),
                created_at_ms: self.ports.clock.now_ms(),
            };
            alerts::add(&*self.ports.records, &alert).await?;
            kept.alerted.insert(one.view.to_owned(), about);
            made += 1;
        }
        Ok(made)
    }
}

impl ScheduledView {
    fn request_at(
        &self,
        of: &Scheduled,
        approval: Option<&Approval>,
        now_ms: i64,
    ) -> ReconcileRequest {
        let from = of.last_days.map(|days| {
            let today = now_ms.div_euclid(DAY_MS);
            (today - i64::from(days)) * (DAY_MS / 1000)
        });
        let mut request = ReconcileRequest {
            from: from.or(self.request.from),
            schedule: Some(of.name.clone()),
            ..self.request.clone()
        };
        if let Some(approval) = approval {
            // Less than a person has seen is permitted unasked already.
            let unasked = match (request.apply, request.apply_max) {
                (true, None) => u64::MAX,
                (true, Some(most)) => most,
                (false, _) => 0,
            };
            request.apply = true;
            request.apply_max = Some(unasked.max(approval.total));
            request.by.clone_from(&approval.by);
            request.reason.clone_from(&approval.reason);
        }
        request
    }
}

fn not_due(of: &Scheduled, when: When, kept: Option<&Kept>, now_ms: i64) -> Option<Reconciled> {
    let kept = kept.filter(|kept| when == When::Due && !kept.is_due(of.every_ms, now_ms))?;
    Some(Reconciled::NotDue {
        schedule: of.name.clone(),
        due_at_ms: kept.due_at_ms(of.every_ms),
    })
}

fn found<'a>(
    reports: &'a [ReconcileReport],
    failed: &'a BTreeMap<String, String>,
) -> Vec<Found<'a>> {
    let compared = reports.iter().map(|report| Found {
        view: &report.view,
        outcome: Outcome::of(report),
        report: Some(report),
        error: None,
    });
    let failed = failed.iter().map(|(view, error)| Found {
        view,
        outcome: Outcome::Failed,
        report: None,
        error: Some(error),
    });
    compared.chain(failed).collect()
}

/// The worst is told of several.
const fn severity(outcome: Outcome) -> u8 {
    match outcome {
        Outcome::Right => 0,
        Outcome::PutRight => 1,
        Outcome::Unknown => 2,
        Outcome::Differs | Outcome::HeldBack => 3,
        Outcome::Applying | Outcome::CutOff | Outcome::Failed => 4,
    }
}

/// What an alert is about: as long as it is the same nobody is told again.
fn about(one: &Found<'_>) -> String {
    let causes = one.report.map(|report| json!(report.causes).to_string());
    let what = causes.or_else(|| one.error.map(str::to_owned));
    // What stands there may name somebody: it is known again by its hash.
    let what = xxh3_64(what.unwrap_or_default().as_bytes());
    format!("{} {what:016x}", one.outcome.name())
}

fn message(id: &str, of: &Scheduled, at_ms: i64, one: &Found<'_>) -> Value {
    let at = jiff::Timestamp::from_millisecond(at_ms).unwrap_or_default();
    let report = one.report;
    json!({
        "id": id,
        "type": "reconciliation.alert",
        "at": at.to_string(),
        "schedule": of.name,
        "view": one.view,
        "outcome": one.outcome.name(),
        "source": report.map(|report| report.source),
        "expected": report.map(|report| &report.expected),
        "record": report.and_then(|report| report.record),
        "keys": report.map(|report| report.keys),
        "differ": report.map(|report| report.differ),
        "total": report.map(|report| report.total),
        "causes": report.map(|report| &report.causes),
        "held_back": report.and_then(|report| report.held_back.as_deref().map(without_people)),
        "error": one.error,
    })
}

#[expect(clippy::cast_precision_loss, reason = "gauges")]
fn tell(schedule: &str, at_ms: i64, outcome: Outcome, alerts: u64) {
    let name = || ("schedule", schedule.to_owned());
    metrics::gauge!("backstitch_reconcile_schedule_last_seconds", &[name()])
        .set(at_ms as f64 / 1000.0);
    for one in Outcome::ALL {
        let labels = [name(), ("outcome", one.name().to_owned())];
        metrics::gauge!("backstitch_reconcile_schedule_outcome", &labels)
            .set(f64::from(u8::from(one == outcome)));
    }
    metrics::counter!("backstitch_reconcile_alerts_total", &[name()]).increment(alerts);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_cut_off_is_due_and_what_ended_is_after_a_while() {
        let kept = |ended_at_ms| Kept {
            begun_at_ms: 1_000,
            ended_at_ms,
            ..Kept::default()
        };
        assert!(kept(None).is_due(500, 1_000));
        assert!(!kept(Some(1_100)).is_due(500, 1_499));
        assert!(kept(Some(1_100)).is_due(500, 1_500));
        assert!(kept(Some(1_100)).is_due(500, 999), "the clock went back");
        assert_eq!(kept(Some(1_100)).due_at_ms(u64::MAX), i64::MAX);
    }
}
