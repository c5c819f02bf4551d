//! What became of the input.

use std::time::Instant;

use schemas::source::Source;
use serde::Serialize;
use stores::intake::Taken;

/// Kinds of reasons that are kept apart, at most.
const REASONS_MAX: usize = 50;

/// What became of the input.
#[derive(Debug, Serialize)]
pub(crate) struct Report {
    pub(crate) source: Source,
    pub(crate) accepted: u64,
    pub(crate) rejected: u64,
    /// Rows that were left out: they are of athletes who were erased.
    erased: u64,
    /// Where the rejected lines went.
    pub(crate) dead_letters: &'static str,
    /// Each input that was begun.
    inputs: Vec<OfInput>,
    reasons: Vec<Reason>,
    seconds: f64,
    lines_per_second: f64,
    #[serde(skip)]
    begun: Instant,
}

/// What became of one input.
#[derive(Debug, Serialize)]
struct OfInput {
    input: String,
    accepted: u64,
    rejected: u64,
    /// The lines, or rows of Parquet, up to this one were processed, and none after it.
    last_line: u64,
    /// Whether the input was processed to its end.
    is_complete: bool,
}

/// Rejected lines with the same fault.
#[derive(Debug, Serialize)]
struct Reason {
    /// The field, or what the line is not.
    fault: String,
    count: u64,
    /// The first such line: where, and why in full.
    first: String,
    reason: String,
}

impl Report {
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
            begun: Instant::now(),
        }
    }

    /// What is added from now on is of this input.
    pub(super) fn begin(&mut self, origin: &str) {
        self.inputs.push(OfInput {
            input: origin.to_owned(),
            accepted: 0,
            rejected: 0,
            last_line: 0,
            is_complete: false,
        });
    }

    /// Notes that the current input was processed to its end.
    pub(super) fn complete(&mut self) {
        if let Some(input) = self.inputs.last_mut() {
            input.is_complete = true;
        }
    }

    /// Adds lines of the current input, up to `last_line`.
    pub(super) fn add(&mut self, origin: &str, taken: &Taken, last_line: u64) {
        self.accepted += taken.accepted;
        self.erased += taken.erased;
        if let Some(input) = self.inputs.last_mut() {
            input.accepted += taken.accepted;
            input.rejected += taken.rejected.len() as u64;
            input.last_line = last_line;
        }
        for rejected in &taken.rejected {
            self.rejected += 1;
            let fault = fault_of(&rejected.reason);
            if let Some(known) = self.reasons.iter_mut().find(|known| known.fault == fault) {
                known.count += 1;
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

    /// Notes the time that it took.
    pub(crate) fn end(&mut self) {
        self.seconds = self.begun.elapsed().as_secs_f64();
        #[expect(clippy::cast_precision_loss, reason = "a rate")]
        let lines = (self.accepted + self.rejected + self.erased) as f64;
        self.lines_per_second = lines / self.seconds.max(1e-9);
    }

    pub(crate) fn text(&self) -> String {
        let mut text = format!(
            "{} lines accepted, {} rejected, in {:.2} s ({:.0} lines a second)\n",
            self.accepted, self.rejected, self.seconds, self.lines_per_second
        );
        if self.erased > 0 {
            text.push_str(&format!(
                "{} left out: they are of athletes who were erased\n",
                self.erased
            ));
        }
        let is_complete = self.inputs.iter().all(|input| input.is_complete);
        if self.inputs.len() > 1 || !is_complete {
            for input in &self.inputs {
                let end = match input.is_complete {
                    true => String::new(),
                    false => format!(" up to line {}, and nothing after it", input.last_line),
                };
                text.push_str(&format!(
                    "  {}: {} accepted, {} rejected{end}\n",
                    input.input, input.accepted, input.rejected
                ));
            }
        }
        if self.rejected > 0 {
            text.push_str(&format!(
                "the rejected ones are kept in {}; `backstitch dead-letters list` shows them\n",
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

/// What reasons of the same kind have in common: the field, or what the line is not.
fn fault_of(reason: &str) -> &str {
    let head = reason.split(": ").next().unwrap_or(reason);
    match head.split_once(|c: char| c.is_ascii_digit() || c == '`' || c == '"') {
        Some((before, _)) if !before.trim().is_empty() => {
            // `missing field `owner_id` at …` differs by field.
            reason
                .split(" at line ")
                .next()
                .filter(|whole| head.starts_with("missing") && whole.len() < 80)
                .unwrap_or(before.trim())
        }
        _ => head,
    }
}

#[cfg(test)]
mod tests {
    use stores::intake::RejectedLine;

    use super::*;

    #[test]
    fn reasons_are_counted_by_fault() {
        let mut report = Report::new(Source::Plays);
        for (line, reason) in [
            (1, "country: \"Germany\" is not an ISO 3166 alpha-2 code"),
            (2, "country: \"France\" is not an ISO 3166 alpha-2 code"),
            (3, "missing field `owner_id` at line 1 column 7"),
            (4, "missing field `owner_id` at line 1 column 9"),
            (5, "missing field `kind` at line 1 column 9"),
            (6, "not JSON: expected value at line 1 column 1"),
            (7, "the line has 5 bytes; at most 3 are taken"),
            (8, "the line has 7 bytes; at most 3 are taken"),
        ] {
            let rejected = vec![RejectedLine {
                line,
                reason: reason.to_owned(),
            }];
            report.add(
                "f",
                &Taken {
                    accepted: 1,
                    rejected,
                    superseded: 0,
                    erased: 0,
                },
                line,
            );
        }
        let found: Vec<(u64, &str)> = report
            .reasons
            .iter()
            .map(|reason| (reason.count, reason.first.as_str()))
            .collect();
        assert_eq!(
            found,
            [(2, "f:1"), (2, "f:3"), (1, "f:5"), (1, "f:6"), (2, "f:7")]
        );
        assert_eq!((report.accepted, report.rejected), (8, 8));
    }
}
