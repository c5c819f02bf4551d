//! Reports of runs: they name the keys that drifted most.

use schemas::source::Source;
use serde_json::Value;

use super::Eraser;
use crate::Result;

/// Stories of runs that are read at once.
const STORIES: usize = 200;

/// A key that a report names, as `column=value` pairs.
#[derive(Debug, Clone, Copy)]
pub(super) struct Named<'a>(&'a str);

impl Named<'_> {
    fn id(self, column: &str) -> Option<i64> {
        let mut pairs = self.0.split(' ').filter_map(|pair| pair.split_once('='));
        pairs.find(|(name, _)| *name == column)?.1.parse().ok()
    }

    pub(super) fn listener(self) -> Option<i64> {
        self.id("listener_id")
    }

    pub(super) fn athlete(self) -> Option<i64> {
        self.id("athlete_id")
    }
}

impl Eraser {
    /// Takes out of the reports of runs which keys had drifted, where they name somebody.
    pub(super) async fn redact_reports(
        &self,
        source: Source,
        is_wanted: impl Fn(Named<'_>) -> bool,
    ) -> Result<()> {
        let views = &self.batch.ports.views;
        let mut before = None;
        loop {
            let stories = views.stories(source, before, STORIES).await?;
            let Some(last) = stories.last() else {
                return Ok(());
            };
            before = Some(last.run.epoch);
            for mut story in stories {
                if redact(&mut story.report, &is_wanted) {
                    views.report(source, story.run.epoch, &story.report).await?;
                }
            }
        }
    }

    /// How many of the keys that the reports of runs name are of somebody.
    pub(super) async fn in_reports(
        &self,
        source: Source,
        is_wanted: impl Fn(Named<'_>) -> bool,
    ) -> Result<u64> {
        let views = &self.batch.ports.views;
        let (mut found, mut before) = (0, None);
        loop {
            let stories = views.stories(source, before, STORIES).await?;
            let Some(last) = stories.last() else {
                return Ok(found);
            };
            before = Some(last.run.epoch);
            for story in &stories {
                found += named(&story.report, &is_wanted);
            }
        }
    }
}

/// Takes keys out of a report that name somebody; answers whether there were any.
fn redact(report: &mut Value, is_wanted: impl Fn(Named<'_>) -> bool) -> bool {
    let worst = report.pointer_mut("/drift/worst");
    let Some(worst) = worst.and_then(Value::as_array_mut) else {
        return false;
    };
    let before = worst.len();
    worst.retain(|key| !names(key, &is_wanted));
    worst.len() < before
}

/// How many of the keys that a report names are of somebody.
fn named(report: &Value, is_wanted: impl Fn(Named<'_>) -> bool) -> u64 {
    let worst = report.pointer("/drift/worst").and_then(Value::as_array);
    let keys = worst.into_iter().flatten();
    keys.filter(|key| names(key, &is_wanted)).count() as u64
}

fn names(key: &Value, is_wanted: &impl Fn(Named<'_>) -> bool) -> bool {
    let key = key.get("key").and_then(Value::as_str).unwrap_or_default();
    is_wanted(Named(key))
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
        let is_listener = |named: Named<'_>| named.listener() == Some(42);
        let is_athlete = |named: Named<'_>| named.athlete() == Some(9);
        assert_eq!(named(&report, is_listener), 1);
        assert!(redact(&mut report, is_listener));
        assert_eq!(named(&report, is_listener), 0);
        assert!(!redact(&mut report, is_listener));
        assert!(redact(&mut report, is_athlete));
        assert_eq!(report["drift"]["worst"].as_array().map(Vec::len), Some(2));
    }
}
