//! Why a run is not published, in words, and what to do about it.

use schemas::seam::{Epoch, RunState};
use serde_json::Value;

use crate::views::RunStory;

/// What keeps a run from being published.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outcome {
    /// Why.
    pub reason: String,
    /// What is to be done; nothing where a later run holds its events already.
    pub to_do: Option<String>,
}

impl RunStory {
    /// What keeps the run from being published, if something does; `newest` is the newest complete run of the source.
    #[must_use]
    pub fn outcome(&self, newest: Epoch) -> Option<Outcome> {
        let (reason, to_do) = match self.run.state {
            RunState::Complete => return None,
            RunState::Abandoned => self.abandoned(),
            RunState::Proposed => self.unfinished("its cuts are not fixed yet"),
            RunState::Sealed => {
                self.unfinished("its cuts are fixed, and not all of it is published")
            }
        };
        let is_over = self.run.epoch < newest;
        Some(Outcome {
            reason,
            to_do: (!is_over).then_some(to_do),
        })
    }

    fn abandoned(&self) -> (String, String) {
        // Older reports have what was found among the warnings.
        let found = [self.texts("faults"), self.texts("warnings")];
        let found = found.into_iter().find(|texts| !texts.is_empty());
        let reason = found.map_or_else(
            || "it failed its check".to_owned(),
            |texts| format!("it failed its check: {}", texts.join("; ")),
        );
        let to_do = "`backstitch batch run` makes a new run that holds its events too; with --force it is published in spite of the check, if what that finds is meant so";
        (reason, to_do.to_owned())
    }

    fn unfinished(&self, how_far: &str) -> (String, String) {
        let error = self.report.get("error").and_then(Value::as_str);
        match error {
            Some(error) => (
                format!("the last try stopped: {error}"),
                "put that right; then `backstitch batch run` finishes it".to_owned(),
            ),
            None => (
                format!("it is under way, or its process ended early: {how_far}"),
                "if no process is at it, `backstitch batch run` finishes it".to_owned(),
            ),
        }
    }

    fn texts(&self, name: &str) -> Vec<String> {
        let texts = self.report.get(name).and_then(Value::as_array);
        let texts = texts.into_iter().flatten().filter_map(Value::as_str);
        texts.map(str::to_owned).collect()
    }
}

#[cfg(test)]
mod tests {
    use schemas::seam::Run;
    use serde_json::json;

    use super::*;

    fn story(state: RunState, report: Value) -> RunStory {
        RunStory {
            run: Run {
                epoch: 4,
                state,
                cuts: Vec::new(),
                stamp_us: 1,
                token: String::new(),
            },
            started_at_ms: 0,
            ended_at_ms: None,
            report,
        }
    }

    fn reason(state: RunState, report: Value) -> String {
        let outcome = story(state, report)
            .outcome(3)
            .expect("it is not published");
        assert!(outcome.to_do.is_some(), "{outcome:?}");
        outcome.reason
    }

    #[test]
    fn what_the_check_found_is_the_reason() {
        let report = json!({"faults": ["a", "b"], "warnings": ["other", "a", "b"]});
        let told = reason(RunState::Abandoned, report);
        assert_eq!(told, "it failed its check: a; b");
        let before = json!({"warnings": ["a"]});
        assert_eq!(
            reason(RunState::Abandoned, before),
            "it failed its check: a"
        );
        assert_eq!(
            reason(RunState::Abandoned, Value::Null),
            "it failed its check"
        );
    }

    #[test]
    fn what_stopped_a_run_is_the_reason() {
        let told = reason(RunState::Sealed, json!({"error": "no room"}));
        assert_eq!(told, "the last try stopped: no room");
        assert!(reason(RunState::Sealed, Value::Null).contains("under way"));
        assert!(reason(RunState::Proposed, Value::Null).contains("under way"));
    }

    #[test]
    fn what_a_later_run_holds_is_done() {
        assert_eq!(story(RunState::Complete, Value::Null).outcome(4), None);
        let outcome = story(RunState::Abandoned, Value::Null).outcome(5);
        assert_eq!(outcome.expect("a reason").to_do, None);
    }
}
