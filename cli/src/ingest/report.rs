//! The report of an ingestion.

use std::time::Instant;

use schemas::source::Source;
use serde::Serialize;
use stores::intake::IntakeReport;

/// Maximum number of distinct reasons.
const REASONS_MAX: usize = 50;

/// Result of an ingestion.
#[derive(Debug, Serialize)]
pub(crate) struct IngestReport {
    pub(crate) source: Source,
    pub(crate) accepted: u64,
    pub(crate) rejected: u64,
    /// Rows that were skipped because they belong to erased athletes.
    erased: u64,
    /// Topic of rejected lines.
    pub(crate) dead_letters: &'static str,
    /// Started inputs.
    inputs: Vec<InputReport>,
    reasons: Vec<Reason>,
    seconds: f64,
    lines_per_second: f64,
    #[serde(skip)]
    started: Instant,
}

/// Result of one input.
#[derive(Debug, Serialize)]
struct InputReport {
    input: String,
    accepted: u64,
    rejected: u64,
    /// Last processed line, or row of Parquet.
    last_line: u64,
    /// True if the whole input was processed.
    is_complete: bool,
}

/// Rejected lines with the same fault.
#[derive(Debug, Serialize)]
struct Reason {
    /// The field or the kind of fault.
    fault: String,
    count: u64,
    /// The first such line with its full reason.
    first: String,
    reason: String,
}

impl IngestReport {
    pub(crate) fn new(source: Source) -> Self {
        Self {
            source,
            accepted: 0,
            rejected: 0,
            erased: 0,
            dead_letters: source.dead_letter_topic(),
            inputs: Vec::new(),
            reasons: Vec::new(),
            seconds: 0.0,
            lines_per_second: 0.0,
            started: Instant::now(),
        }
    }

    /// Starts an input.
    pub(super) fn start_input(&mut self, origin: &str) {
        self.inputs.push(InputReport {
            input: origin.to_owned(),
            accepted: 0,
            rejected: 0,
            last_line: 0,
            is_complete: false,
        });
    }

    /// Marks the current input as complete.
    pub(super) fn complete_input(&mut self) {
        if let Some(input) = self.inputs.last_mut() {
            input.is_complete = true;
        }
    }

    /// Adds lines of the current input, up to `last_line`.
    pub(super) fn add_lines(&mut self, origin: &str, added: &IntakeReport, last_line: u64) {
        self.accepted += added.accepted;
        self.erased += added.erased;
        if let Some(input) = self.inputs.last_mut() {
            input.accepted += added.accepted;
            input.rejected += added.rejected.len() as u64;
            input.last_line = last_line;
        }
        for rejected in &added.rejected {
            self.rejected += 1;
            let fault = extract_fault(&rejected.reason);
            if let Some(same) = self.reasons.iter_mut().find(|reason| reason.fault == fault) {
                same.count += 1;
            } else if self.reasons.len() < REASONS_MAX {
                self.reasons.push(Reason {
                    fault: fault.to_owned(),
                    count: 1,
                    first: format!("{origin}:{}", rejected.line),
                    reason: rejected.reason.clone(),
                });
            }
        }
    }

    /// Sets the duration up to now, and the rate.
    pub(crate) fn set_duration(&mut self) {
        self.seconds = self.started.elapsed().as_secs_f64();
        #[expect(clippy::cast_precision_loss, reason = "a rate")]
        let lines = (self.accepted + self.rejected + self.erased) as f64;
        self.lines_per_second = lines / self.seconds.max(1e-9);
    }

    pub(crate) fn to_text(&self) -> String {
        let mut text = format!(
            "{} lines accepted, {} rejected, in {:.2} s ({:.0} lines per second)\n",
            self.accepted, self.rejected, self.seconds, self.lines_per_second
        );
        if self.erased > 0 {
            text.push_str(&format!(
                "{} skipped: they belong to erased athletes\n",
                self.erased
            ));
        }
        let is_complete = self.inputs.iter().all(|input| input.is_complete);
        if self.inputs.len() > 1 || !is_complete {
            for input in &self.inputs {
                let end = match input.is_complete {
                    true => String::new(),
                    false => format!(" up to line {} (incomplete)", input.last_line),
                };
                text.push_str(&format!(
                    "  {}: {} accepted, {} rejected{end}\n",
                    input.input, input.accepted, input.rejected
                ));
            }
        }
        if self.rejected > 0 {
            text.push_str(&format!(
                "rejected lines are in {}; list them with `backstitch dead-letters list`\n",
                self.dead_letters
            ));
            for reason in &self.reasons {
                text.push_str(&format!(
                    "  {} × {}; first: {}\n",
                    reason.count, reason.reason, reason.first
                ));
            }
        }
        text
    }
}

/// Extracts the common part of reasons of one kind: the field or the kind of fault.
fn extract_fault(reason: &str) -> &str {
    let separators = [": ", " must be ", " (column ", " (line "];
    let end = separators
        .iter()
        .filter_map(|separator| reason.find(separator))
        .min();
    let head = end.and_then(|end| reason.get(..end)).unwrap_or(reason);
    match head.split_once(|c: char| c.is_ascii_digit() || c == '`' || c == '"') {
        Some((prefix, _)) if !prefix.trim().is_empty() => prefix.trim(),
        _ => head,
    }
}

#[cfg(test)]
mod tests {
    use stores::intake::RejectedLine;

    use super::*;

    #[test]
    fn reasons_are_counted_by_fault() {
        let mut report = IngestReport::new(Source::Plays);
        for (line, reason) in [
            (1, "country: \"Germany\" is not an ISO 3166 alpha-2 code"),
            (2, "country: \"France\" is not an ISO 3166 alpha-2 code"),
            (3, "the required field owner_id is missing (column 7)"),
            (4, "the required field owner_id is missing (column 9)"),
            (5, "the required field kind is missing (column 9)"),
            (6, "not JSON: a value is expected (column 1)"),
            (7, "the line has 5 bytes; at most 3 are accepted"),
            (8, "the line has 7 bytes; at most 3 are accepted"),
        ] {
            let rejected = vec![RejectedLine {
                line,
                reason: reason.to_owned(),
            }];
            report.add_lines(
                "f",
                &IntakeReport {
                    accepted: 1,
                    rejected,
                    superseded: 0,
                    erased: 0,
                },
                line,
            );
        }
        let counts: Vec<(u64, &str)> = report
            .reasons
            .iter()
            .map(|reason| (reason.count, reason.first.as_str()))
            .collect();
        assert_eq!(
            counts,
            [(2, "f:1"), (2, "f:3"), (1, "f:5"), (1, "f:6"), (2, "f:7")]
        );
        assert_eq!((report.accepted, report.rejected), (8, 8));
    }
}
