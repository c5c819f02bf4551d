//! Reports of runs, which contain the keys that drifted most.

use std::pin::pin;

use futures::TryStreamExt;
use schemas::source::Source;
use serde_json::Value;
use stores::erasures::{PersonKind, SearchedPeople};

use super::eraser::Eraser;
use super::sources::person_column;
use crate::Result;
use crate::pages::stream_pages;

/// Run reports that are read at once.
const PAGE_REPORTS: usize = 200;

impl Eraser {
    /// Removes drifted keys that name an erased person from the reports of runs.
    pub(super) async fn redact_reports(
        &self,
        source: Source,
        kind: PersonKind,
        is_erased: impl Fn(i64) -> bool,
    ) -> Result<()> {
        let views = &self.batch.ports.views;
        let read = |before| views.list_run_details(source, before, PAGE_REPORTS);
        let mut pages = pin!(stream_pages(read, |details| details.run.epoch));
        while let Some(runs) = pages.try_next().await? {
            for mut details in runs {
                if redact(&mut details.report, kind, &is_erased) {
                    views
                        .set_report(source, details.run.epoch, &details.report)
                        .await?;
                }
            }
        }
        Ok(())
    }

    /// Counts the keys in reports of runs that name each searched person.
    pub(super) async fn count_in_reports(
        &self,
        source: Source,
        counts: &mut SearchedPeople,
    ) -> Result<()> {
        let views = &self.batch.ports.views;
        let read = |before| views.list_run_details(source, before, PAGE_REPORTS);
        let mut pages = pin!(stream_pages(read, |details| details.run.epoch));
        while let Some(runs) = pages.try_next().await? {
            let kind = counts.kind();
            let ids = runs
                .iter()
                .flat_map(|details| list_ids(&details.report, kind));
            ids.for_each(|id| counts.increment(id));
        }
        Ok(())
    }
}

/// Removes keys that name an erased person from a report. Returns whether there were any.
fn redact(report: &mut Value, kind: PersonKind, is_erased: impl Fn(i64) -> bool) -> bool {
    let worst = report.pointer_mut("/drift/worst");
    let Some(worst) = worst.and_then(Value::as_array_mut) else {
        return false;
    };
    let count = worst.len();
    worst.retain(|key| !parse_id(key, kind).is_some_and(&is_erased));
    worst.len() < count
}

/// Returns the people in the keys of a report.
fn list_ids(report: &Value, kind: PersonKind) -> impl Iterator<Item = i64> + use<'_> {
    let worst = report.pointer("/drift/worst").and_then(Value::as_array);
    let keys = worst.into_iter().flatten();
    keys.filter_map(move |key| parse_id(key, kind))
}

/// Returns the person in a key, which a report stores as `column=value` pairs.
fn parse_id(key: &Value, kind: PersonKind) -> Option<i64> {
    let key = key.get("key").and_then(Value::as_str).unwrap_or_default();
    let mut pairs = key.split(' ').filter_map(|pair| pair.split_once('='));
    pairs
        .find(|(name, _)| *name == person_column(kind))?
        .1
        .parse()
        .ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn redacts_keys_that_name_erased_people() {
        let mut report = serde_json::json!({"drift": {"worst": [
            {"key": "owner_id=7 bucket=1 listener_id=42"},
            {"key": "owner_id=42 bucket=1 listener_id=7"},
            {"key": "segment_id=42 athlete_id=9 division=0"},
            {"key": "owner_id=42 bucket=1"},
        ]}});
        let list = |report: &Value, kind| list_ids(report, kind).collect::<Vec<i64>>();
        assert_eq!(list(&report, PersonKind::Listener), [42, 7]);
        assert!(redact(&mut report, PersonKind::Listener, |id| id == 42));
        assert_eq!(list(&report, PersonKind::Listener), [7]);
        assert!(!redact(&mut report, PersonKind::Listener, |id| id == 42));
        assert_eq!(list(&report, PersonKind::Athlete), [9]);
        assert!(redact(&mut report, PersonKind::Athlete, |id| id == 9));
        assert_eq!(report["drift"]["worst"].as_array().map(Vec::len), Some(2));
    }
}
