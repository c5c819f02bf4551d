//! Reports of runs: they name the keys that drifted most.

use std::pin::pin;

use futures::TryStreamExt;
use schemas::source::Source;
use serde_json::Value;
use stores::erasures::{Kind, Sought};

use super::{Eraser, column_of};
use crate::Result;
use crate::pages::pages;

/// Stories of runs that are read at once.
const STORIES: usize = 200;

impl Eraser {
    /// Takes out of the reports of runs which keys had drifted, where they name who is wanted.
    pub(super) async fn redact_reports(
        &self,
        source: Source,
        kind: Kind,
        is_wanted: impl Fn(i64) -> bool,
    ) -> Result<()> {
        let views = &self.batch.ports.views;
        let read = |before| views.stories(source, before, STORIES);
        let mut pages = pin!(pages(read, |story| story.run.epoch));
        while let Some(stories) = pages.try_next().await? {
            for mut story in stories {
                if redact(&mut story.report, kind, &is_wanted) {
                    views.report(source, story.run.epoch, &story.report).await?;
                }
            }
        }
        Ok(())
    }

    /// Counts the keys that the reports of runs name of each who is sought.
    pub(super) async fn in_reports(&self, source: Source, found: &mut Sought) -> Result<()> {
        let views = &self.batch.ports.views;
        let read = |before| views.stories(source, before, STORIES);
        let mut pages = pin!(pages(read, |story| story.run.epoch));
        while let Some(stories) = pages.try_next().await? {
            let kind = found.kind();
            let named = stories.iter().flat_map(|story| named(&story.report, kind));
            named.for_each(|id| found.note(id));
        }
        Ok(())
    }
}

/// Takes keys out of a report that name who is wanted; answers whether there were any.
fn redact(report: &mut Value, kind: Kind, is_wanted: impl Fn(i64) -> bool) -> bool {
    let worst = report.pointer_mut("/drift/worst");
    let Some(worst) = worst.and_then(Value::as_array_mut) else {
        return false;
    };
    let before = worst.len();
    worst.retain(|key| !id_in(key, kind).is_some_and(&is_wanted));
    worst.len() < before
}

/// Whom the keys name that a report names.
fn named(report: &Value, kind: Kind) -> impl Iterator<Item = i64> + use<'_> {
    let worst = report.pointer("/drift/worst").and_then(Value::as_array);
    let keys = worst.into_iter().flatten();
    keys.filter_map(move |key| id_in(key, kind))
}

/// Whom a key names, which a report holds as `column=value` pairs.
fn id_in(key: &Value, kind: Kind) -> Option<i64> {
    let key = key.get("key").and_then(Value::as_str).unwrap_or_default();
    let mut pairs = key.split(' ').filter_map(|pair| pair.split_once('='));
    pairs
        .find(|(name, _)| *name == column_of(kind))?
        .1
        .parse()
        .ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reports_name_nobody_who_is_erased() {
        let mut report = serde_json::json!({"drift": {"worst": [
            {"key": "owner_id=7 bucket=1 listener_id=42"},
            {"key": "owner_id=42 bucket=1 listener_id=7"},
            {"key": "segment_id=42 athlete_id=9 division=0"},
            {"key": "owner_id=42 bucket=1"},
        ]}});
        let of = |report: &Value, kind| named(report, kind).collect::<Vec<i64>>();
        assert_eq!(of(&report, Kind::Listener), [42, 7]);
        assert!(redact(&mut report, Kind::Listener, |id| id == 42));
        assert_eq!(of(&report, Kind::Listener), [7]);
        assert!(!redact(&mut report, Kind::Listener, |id| id == 42));
        assert_eq!(of(&report, Kind::Athlete), [9]);
        assert!(redact(&mut report, Kind::Athlete, |id| id == 9));
        assert_eq!(report["drift"]["worst"].as_array().map(Vec::len), Some(2));
    }
}
