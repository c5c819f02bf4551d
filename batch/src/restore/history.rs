//! The history of comparisons: what was asked, found and done, one record each, kept beside the records of runs.
//!
//! One that puts something right is recorded before anything is changed, as `applying`. Whoever compares next holds
//! the same lease, so what is still so then was cut off; the record says so from then on, and which restoration it was.

use schemas::named;
use schemas::source::Source;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use stores::{approvals, reconciliations};
use tokio::sync::OnceCell;

use super::cause::Cause;
use super::journal::{Journal, new_id};
use super::report::ReconcileReport;
use super::request::{Expected, ReconcileRequest};
use crate::batch::Batch;
use crate::{Error, Result};

/// Those that differ most, which are recorded.
pub(super) const WORST: usize = 20;
/// Records that are looked at for one that was cut off: whoever compares looks, so it is among the newest.
const LOOK: usize = 20;
/// Columns whose values are people.
const PEOPLE: [&str; 2] = ["listener_id", "athlete_id"];

named! {
    /// How a comparison ended.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
    #[serde(rename_all = "snake_case")]
    pub enum Outcome {
        /// Nothing differs.
        Right = "right",
        /// Something differs, and was to be reported only.
        Differs = "differs",
        /// Something differed and was put right.
        PutRight = "put_right",
        /// Something differs and was not put right though that was asked for, or not all of it.
        HeldBack = "held_back",
        /// Not everything could be compared, and what could be does not differ.
        Unknown = "unknown",
        /// It could not be compared.
        Failed = "failed",
        /// It is being put right.
        Applying = "applying",
        /// An error, or its process's end, ended it while something was put right; the next comparison finds what is left.
        CutOff = "cut_off",
    }
}

impl Outcome {
    /// What a report says.
    pub(crate) fn of(report: &ReconcileReport) -> Self {
        match &report.applied {
            _ if report.held_back.is_some() && report.differ > 0 => Self::HeldBack,
            Some(applied) if applied.damaged > 0 => Self::HeldBack,
            Some(_) if report.differ > 0 => Self::PutRight,
            None if report.differ > 0 => Self::Differs,
            _ if report.live_unknown.is_some() || report.ahead > 0 => Self::Unknown,
            _ => Self::Right,
        }
    }

    /// Whether somebody should look.
    pub(crate) const fn is_alarming(self) -> bool {
        matches!(self, Self::Differs | Self::HeldBack | Self::Failed)
    }
}

/// A request as it is recorded.
fn asked(request: &ReconcileRequest) -> Value {
    let query = match &request.expected {
        Expected::Query(query) => Some(query),
        _ => None,
    };
    json!({
        "keys": request.keys,
        "from": request.from,
        "to": request.to,
        "sample": request.sample,
        "tolerance": request.tolerance,
        "whole": request.is_whole,
        "apply": request.apply,
        "apply_max": request.apply_max,
        "set": request.set,
        "query": query,
    })
}

/// The fingerprint of a request, for approvals.
pub(super) fn request_fingerprint(request: &ReconcileRequest) -> String {
    approvals::request_fingerprint(&request.expected.to_string(), &asked(request))
}

/// The record of one comparison.
pub(super) struct History<'a> {
    batch: &'a Batch,
    source: Source,
    request: &'a ReconcileRequest,
    id: String,
    at_ms: i64,
    number: OnceCell<u64>,
    /// What was recorded before anything was changed.
    begun: OnceCell<Value>,
}

impl<'a> History<'a> {
    pub(super) fn new(batch: &'a Batch, source: Source, request: &'a ReconcileRequest) -> Self {
        Self {
            batch,
            source,
            request,
            id: new_id(),
            at_ms: batch.ports.clock.now_ms(),
            number: OnceCell::new(),
            begun: OnceCell::new(),
        }
    }

    /// Marks what was ended in the middle. Whoever holds the lease may say so: nobody else is at work.
    pub(super) async fn settle_cut_off(&self) -> Result<()> {
        let records = &*self.batch.ports.records;
        let newest = reconciliations::list(records, self.source, None, LOOK).await?;
        for mut one in newest {
            if one.record["outcome"] != Outcome::Applying.name() {
                continue;
            }
            let journal = Journal {
                archive: &self.batch.ports.archive,
                source: self.source,
            };
            let number = one.record["restoration"].as_u64();
            let all = journal.all().await?;
            let of = all.iter().find(|of| {
                Some(of.restoration.number) == number && of.restoration.at_ms >= one.at_ms
            });
            one.record["outcome"] = Outcome::CutOff.name().into();
            one.record["restoration"] = of.map(|of| of.restoration.number).into();
            reconciliations::replace(records, self.source, one.number, &one.record).await?;
        }
        Ok(())
    }

    /// Records what was found, before anything is changed, and under which number a restoration would be.
    pub(super) async fn begin_to_apply(
        &self,
        report: &ReconcileReport,
        restoration: u64,
    ) -> Result<()> {
        if report.differ == 0 {
            return Ok(());
        }
        let mut record = self.record(Outcome::Applying, report)?;
        record["restoration"] = restoration.into();
        self.write(&record).await?;
        // The same again where a file of the archive was made anew meanwhile.
        self.begun.set(record).ok();
        Ok(())
    }

    /// Records how it ended. What can't be asked, or never began, is no comparison; a schedule's is one in any case.
    pub(super) async fn end(&self, done: Result<ReconcileReport>) -> Result<ReconcileReport> {
        match done {
            Ok(mut report) => {
                let outcome = Outcome::of(&report);
                let mut record = self.record(outcome, &report)?;
                let applied = report.applied.as_ref();
                record["restoration"] = applied.and_then(|applied| applied.restoration).into();
                report.record = Some(self.write(&record).await?);
                self.tell(outcome, &report);
                Ok(report)
            }
            Err(error) => {
                let is_none = match &error {
                    Error::Stopped | Error::Busy(_) => true,
                    Error::Request(_) => self.request.schedule.is_none(),
                    error => error.is_transient(),
                };
                if !is_none && self.number.get().is_none() {
                    let report = ReconcileReport {
                        view: self.request.view.clone(),
                        expected: self.request.expected.to_string(),
                        ..ReconcileReport::of(self.source)
                    };
                    let mut record = self.record(Outcome::Failed, &report)?;
                    record["error"] = without_people(&error.to_string()).into();
                    if let Err(other) = self.write(&record).await {
                        tracing::warn!(error = %other, "cannot record the failure of a comparison");
                    }
                    self.tell(Outcome::Failed, &report);
                }
                if let Some(begun) = self.begun.get() {
                    self.end_in_the_middle(begun, &error).await;
                }
                Err(error)
            }
        }
    }

    /// Records what ended it once something might have been changed, and what was.
    async fn end_in_the_middle(&self, begun: &Value, error: &Error) {
        let mut record = begun.clone();
        record["outcome"] = Outcome::CutOff.name().into();
        record["error"] = without_people(&error.to_string()).into();
        record["restoration"] = Value::Null;
        if let Error::PartlyApplied { applied, .. } = error {
            record["restoration"] = applied.restoration.into();
            record["applied"] = json!(applied);
        }
        if let Err(other) = self.write(&record).await {
            // The next comparison says that it was cut off.
            tracing::warn!(error = %other, "cannot record the repairs that preceded an error");
        }
    }

    /// The number that it has been recorded under.
    async fn write(&self, record: &Value) -> Result<u64> {
        let (records, source) = (&*self.batch.ports.records, self.source);
        if let Some(number) = self.number.get() {
            reconciliations::replace(records, source, *number, record).await?;
            return Ok(*number);
        }
        let number = reconciliations::add(records, source, &self.id, self.at_ms, record).await?;
        // Nobody else sets it.
        self.number.set(number).ok();
        Ok(number)
    }

    fn record(&self, outcome: Outcome, report: &ReconcileReport) -> Result<Value> {
        let request = self.request;
        let mut told = serde_json::to_value(report).map_err(|e| Error::fault("a report", e))?;
        let worst = told
            .as_object_mut()
            .and_then(|told| told.remove("differences"));
        let mut worst = worst.unwrap_or_default();
        if let Some(worst) = worst.as_array_mut() {
            worst.truncate(WORST);
            // The bytes of a key that can't be read may name anybody, and nobody could find them there.
            for one in worst {
                if one["cause"] == Cause::UnreadableRow.name() {
                    one["key"] = json!({});
                }
            }
        }
        let mut record = json!({
            "outcome": outcome.name(),
            "schedule": request.schedule,
            "by": request.by,
            "reason": request.reason,
            "asked": asked(request),
            "worst": worst,
            "restoration": null,
            "error": null,
        });
        told["held_back"] = json!(report.held_back.as_deref().map(without_people));
        let warnings: Vec<String> = report
            .warnings
            .iter()
            .map(|one| without_people(one))
            .collect();
        told["warnings"] = json!(warnings);
        if let (Some(record), Value::Object(told)) = (record.as_object_mut(), told) {
            record.extend(told.into_iter().filter(|(name, _)| name != "record"));
        }
        Ok(record)
    }

    /// Tells metrics.
    #[expect(clippy::cast_precision_loss, reason = "gauges")]
    fn tell(&self, outcome: Outcome, report: &ReconcileReport) {
        let view = || ("view", report.view.clone());
        metrics::counter!(
            "backstitch_reconcile_comparisons_total",
            &[view(), ("outcome", outcome.name().to_owned())]
        )
        .increment(1);
        metrics::gauge!("backstitch_reconcile_last_seconds", &[view()])
            .set(self.at_ms as f64 / 1000.0);
        if outcome == Outcome::Failed {
            return;
        }
        for cause in Cause::ALL {
            let keys = report.causes.get(&cause).map_or(0, |of| of.keys);
            metrics::gauge!(
                "backstitch_reconcile_mismatches",
                &[view(), ("cause", cause.name().to_owned())]
            )
            .set(keys as f64);
        }
    }
}

/// Takes out of a record who is wanted, by the name of a column and an id; answers whether anybody was named.
pub(crate) fn redact_record(record: &mut Value, is_wanted: impl Fn(&str, i64) -> bool) -> bool {
    if !parts_of(record).any(|part| part.names(&is_wanted)) {
        return false;
    }
    if let Some(worst) = record.get_mut("worst").and_then(Value::as_array_mut) {
        worst.retain(|one| !names_one(one, &is_wanted));
    }
    for part in ["/asked/keys", "/asked/set"] {
        if let Some(Value::Object(columns)) = record.pointer_mut(part) {
            columns.retain(|name, value| !names_value(name, value, &is_wanted));
        }
    }
    for text in ["/error", "/held_back", "/asked/query"] {
        if let Some(told) = record.pointer_mut(text)
            && told
                .as_str()
                .is_some_and(|told| names_text(told, &is_wanted))
        {
            *told = "(named somebody who was erased)".into();
        }
    }
    if let Some(warnings) = record.get_mut("warnings").and_then(Value::as_array_mut) {
        warnings.retain(|one| !one.as_str().is_some_and(|one| names_text(one, &is_wanted)));
    }
    true
}

/// What of a record may name somebody, each by itself.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Part<'a> {
    /// One of those that differ most.
    One(&'a Value),
    /// What was asked for of a column.
    Asked(&'a str, &'a Value),
    /// Told in words.
    Text(&'a str),
}

impl Part<'_> {
    /// Whether it names who is wanted, by the name of a column and an id.
    pub(crate) fn names(self, is_wanted: impl Fn(&str, i64) -> bool) -> bool {
        match self {
            Self::One(one) => names_one(one, &is_wanted),
            Self::Asked(name, value) => names_value(name, value, &is_wanted),
            Self::Text(text) => names_text(text, &is_wanted),
        }
    }
}

/// The parts of a record.
pub(crate) fn parts_of(record: &Value) -> impl Iterator<Item = Part<'_>> {
    let worst = record.get("worst").and_then(Value::as_array);
    let worst = worst.into_iter().flatten().map(Part::One);
    let asked = ["/asked/keys", "/asked/set"].into_iter();
    let asked = asked.filter_map(|part| record.pointer(part)?.as_object());
    let asked = asked.flatten();
    let asked = asked.map(|(name, value)| Part::Asked(name, value));
    let texts = ["/error", "/held_back", "/asked/query"].map(|text| record.pointer(text));
    let warnings = record.get("warnings").and_then(Value::as_array);
    let texts = texts
        .into_iter()
        .flatten()
        .chain(warnings.into_iter().flatten());
    let texts = texts.filter_map(Value::as_str).map(Part::Text);
    worst.chain(asked).chain(texts)
}

/// Whether one of those that differ most is of somebody.
fn names_one(one: &Value, is_wanted: &impl Fn(&str, i64) -> bool) -> bool {
    let parts = ["key", "expected_row", "served_row"].map(|part| one.get(part));
    let columns = parts.into_iter().flatten().filter_map(Value::as_object);
    let mut columns = columns.flat_map(Map::iter);
    columns.any(|(name, value)| names_value(name, value, is_wanted))
}

fn names_value(name: &str, value: &Value, is_wanted: &impl Fn(&str, i64) -> bool) -> bool {
    match value {
        Value::Number(id) => id.as_i64().is_some_and(|id| is_wanted(name, id)),
        Value::String(id) => id.parse().is_ok_and(|id| is_wanted(name, id)),
        Value::Array(ids) => ids.iter().any(|id| names_value(name, id, is_wanted)),
        _ => false,
    }
}

/// A text without the values of columns that are people: `"listener_id":42` becomes `"listener_id":…`. It goes where no
/// erasure searches.
pub(super) fn without_people(text: &str) -> String {
    let mut told = String::with_capacity(text.len());
    let mut rest = text;
    loop {
        let ends = PEOPLE.map(|column| rest.find(column).map(|at| at + column.len()));
        let Some(end) = ends.into_iter().flatten().min() else {
            told.push_str(rest);
            return told;
        };
        let (before, after) = rest.split_at(end);
        told.push_str(before);
        rest = after.strip_prefix(['"', '\'', '`']).map_or(after, |after| {
            told.push_str(&rest[end..end + 1]);
            after
        });
        rest = without_values(rest, &mut told);
    }
}

/// Passes over the values that stand behind the name of a column, as `=42`, `: [1, 2]` or ` is "x"`; answers what follows.
fn without_values<'a>(text: &'a str, told: &mut String) -> &'a str {
    let mut rest = text;
    loop {
        let is_between = |sign: char| " :=<>([,".contains(sign);
        let after = rest.trim_start_matches(is_between);
        let word = ["is ", "in ", "IN ", "IS "]
            .iter()
            .find_map(|word| after.strip_prefix(word));
        let after = word.map_or(after, |after| after.trim_start_matches(is_between));
        let (between, _) = rest.split_at(rest.len() - after.len());
        let quote = after
            .chars()
            .next()
            .filter(|sign| ['"', '\''].contains(sign));
        let length = match quote {
            // The next column's name stands in quotes, too.
            Some(_) if between.trim_end().ends_with(',') && !between.contains(['(', '[']) => 0,
            Some(quote) => after[1..].find(quote).map_or(after.len(), |end| end + 2),
            None if between.ends_with('=') => after
                .find(|sign: char| " ,;:)".contains(sign))
                .unwrap_or(after.len()),
            None => after
                .find(|sign: char| !sign.is_ascii_digit() && sign != '-')
                .unwrap_or(after.len()),
        };
        if length == 0 {
            return rest;
        }
        told.push_str(between);
        told.push('…');
        rest = &after[length..];
    }
}

/// Whether a text names somebody, as `"listener_id":42` or `listener_id = 42`.
fn names_text(text: &str, is_wanted: &impl Fn(&str, i64) -> bool) -> bool {
    PEOPLE.iter().any(|column| {
        text.match_indices(column).any(|(at, _)| {
            let rest = text.get(at + column.len()..).unwrap_or_default();
            let rest = rest.trim_start_matches(['"', ':', '=', ' ', '(']);
            let end = rest.find(|sign: char| !sign.is_ascii_digit() && sign != '-');
            let id = rest.get(..end.unwrap_or(rest.len())).unwrap_or_default();
            id.parse().is_ok_and(|id| is_wanted(column, id))
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_name_nobody() {
        for (text, told) in [
            (
                r#"2 times of {"bucket":5,"listener_id":42,"track_id":7}: once"#,
                r#"2 times of {"bucket":5,"listener_id":…,"track_id":7}: once"#,
            ),
            (
                r#"{"athlete_id": "4-2", "at":"now","listener_id":-3}"#,
                r#"{"athlete_id": …, "at":"now","listener_id":…}"#,
            ),
            (
                "line 3: listener_id is \"x@y.org\", not a 64-bit integer",
                "line 3: listener_id is …, not a 64-bit integer",
            ),
            (
                "--keys listener_id=abc: expected",
                "--keys listener_id=…: expected",
            ),
            (
                "listener_id IN (1, 2,3) AND x = 4",
                "listener_id IN (…, …,…) AND x = 4",
            ),
            ("athlete_id = 7", "athlete_id = …"),
            (
                "--set listener_id: this listener was erased",
                "--set listener_id: this listener was erased",
            ),
            ("listener_id", "listener_id"),
            ("nobody, 42", "nobody, 42"),
        ] {
            assert_eq!(without_people(text), told);
        }
    }

    #[test]
    fn records_name_nobody_who_was_erased() {
        let mut record = json!({
            "worst": [
                {"key": {"owner_id": 42, "listener_id": 7}},
                {"key": {"owner_id": 7, "listener_id": 42}},
                {"key": {"segment_id": 1}, "expected_row": {"athlete_id": 42}},
            ],
            "asked": {"keys": {"listener_id": ["42", "43"], "owner_id": ["42"]}, "set": {}, "query": null},
            "error": "twice of {\"listener_id\":42}", "held_back": null,
            "warnings": ["listener_id=421"],
        });
        let listener = |name: &str, id| name == "listener_id" && id == 42;
        let named = |record: &Value, is_wanted: fn(&str, i64) -> bool| {
            let named = parts_of(record).filter(|part| part.names(is_wanted));
            named.count()
        };
        assert_eq!(named(&record, listener), 3);
        assert!(redact_record(&mut record, listener));
        assert_eq!(named(&record, listener), 0);
        assert_eq!(record["worst"].as_array().expect("a list").len(), 2);
        assert_eq!(record["asked"]["keys"], json!({"owner_id": ["42"]}));
        assert_eq!(record["warnings"], json!(["listener_id=421"]));
        assert!(!redact_record(&mut record, listener));
        assert_eq!(
            named(&record, |name, id| name == "athlete_id" && id == 42),
            1
        );
    }
}
