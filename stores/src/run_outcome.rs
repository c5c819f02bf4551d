//! Explains why a run is not published, and what to do.

use schemas::seam::{Epoch, RunState};
use serde_json::Value;

use crate::views::RunDetails;

/// Why a run is not published.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnpublishedReason {
    /// The reason.
    pub reason: String,
    /// The remedy; `None` if a later run covers the events.
    pub to_do: Option<String>,
}

impl RunDetails {
    /// Explains why the run is not published, if it is not; `newest` is the newest complete run of
    /// the source. `is_running` is true if a process holds the lease of the source's runs.
    #[must_use]
    pub fn unpublished_reason(&self, newest: Epoch, is_running: bool) -> Option<UnpublishedReason> {
        let (reason, to_do) = match self.run.state {
            RunState::Complete => return None,
            RunState::Abandoned => self.explain_abandoned(),
            RunState::Proposed => {
                self.explain_unfinished("its cuts are not sealed yet", is_running)
            }
            RunState::Sealed => self.explain_unfinished(
                "its cuts are sealed, and it is not completely published",
                is_running,
            ),
        };
        let is_over = self.run.epoch < newest;
        Some(UnpublishedReason {
            reason,
            to_do: (!is_over).then_some(to_do),
        })
    }

    fn explain_abandoned(&self) -> (String, String) {
        // Older reports list the findings of the check among the warnings.
        let findings = [self.list_texts("faults"), self.list_texts("warnings")];
        let findings = findings.into_iter().find(|texts| !texts.is_empty());
        let reason = findings.map_or_else(
            || "its result failed the check".to_owned(),
            |texts| format!("its result failed the check: {}", texts.join("; ")),
        );
        let to_do = "`backstitch batch run` starts a new run that covers its events too; if the findings are correct, --force publishes it despite the check";
        (reason, to_do.to_owned())
    }

    fn explain_unfinished(&self, progress: &str, is_running: bool) -> (String, String) {
        let error = self.report.get("error").and_then(Value::as_str);
        match error {
            _ if is_running => (
                format!("it is running: {progress}"),
                "wait until it ends".to_owned(),
            ),
            Some(error) => (
                format!("the last try stopped: {error}"),
                "fix the cause, then `backstitch batch run` finishes it".to_owned(),
            ),
            None => (
                format!("its process ended early: {progress}"),
                "`backstitch batch run` finishes it".to_owned(),
            ),
        }
    }

    fn list_texts(&self, name: &str) -> Vec<String> {
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

    fn details(state: RunState, report: Value) -> RunDetails {
        RunDetails {
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
        let outcome = details(state, report)
            .unpublished_reason(3, false)
            .expect("it is not published");
        assert!(outcome.to_do.is_some(), "{outcome:?}");
        outcome.reason
    }

    #[test]
    fn findings_of_the_check_are_the_reason() {
        let report = json!({"faults": ["a", "b"], "warnings": ["other", "a", "b"]});
        let explanation = reason(RunState::Abandoned, report);
        assert_eq!(explanation, "its result failed the check: a; b");
        let older_report = json!({"warnings": ["a"]});
        assert_eq!(
            reason(RunState::Abandoned, older_report),
            "its result failed the check: a"
        );
        assert_eq!(
            reason(RunState::Abandoned, Value::Null),
            "its result failed the check"
        );
    }

    #[test]
    fn the_error_of_a_try_is_the_reason() {
        let explained = reason(RunState::Sealed, json!({"error": "no room"}));
        assert_eq!(explained, "the last try stopped: no room");
        for state in [RunState::Sealed, RunState::Proposed] {
            assert!(reason(state, Value::Null).starts_with("its process ended early: "));
            // The error is that of an earlier attempt.
            let running = details(state, json!({"error": "no room"})).unpublished_reason(3, true);
            assert!(
                running
                    .expect("it is not published")
                    .reason
                    .starts_with("it is running: ")
            );
        }
    }

    #[test]
    fn a_later_run_needs_no_remedy() {
        assert_eq!(
            details(RunState::Complete, Value::Null).unpublished_reason(4, true),
            None
        );
        let outcome = details(RunState::Abandoned, Value::Null).unpublished_reason(5, false);
        assert_eq!(outcome.expect("a reason").to_do, None);
    }
}
