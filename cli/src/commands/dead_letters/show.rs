//! `dead-letters show`: shows one dead letter.

use anyhow::Context as _;
use schemas::dead_letter::{DeadLetterId, reason_kind};
use schemas::json_value::format_timestamp_ms;
use serde::Serialize;
use stores::dead_letters::find;

use super::{DeadLetterEntry, unknown_dead_letter};
use crate::commands::Context;
use crate::failure::usage_error;
use crate::installation::Installation;
use crate::output;

/// A dead letter with its details.
#[derive(Debug, Serialize)]
struct Details {
    #[serde(flatten)]
    letter: DeadLetterEntry,
    /// The kind of reason, as in `count`.
    kind: String,
    /// Time of the record in the log.
    logged_at_ms: i64,
    /// Size of the original input.
    raw_bytes: usize,
}

/// Shows a dead letter, or only its bytes.
pub(super) async fn show(
    context: &Context,
    installation: &Installation,
    id: DeadLetterId,
    raw: bool,
) -> anyhow::Result<()> {
    if raw && context.output().is_json() {
        return Err(usage_error("--raw prints bytes, not JSON; omit --json"));
    }
    let letter = find(&*installation.stores().log, id).await?;
    let letter = letter.with_context(|| unknown_dead_letter(id))?;
    if raw {
        return output::write_stdout(&letter.content.raw);
    }
    let details = Details {
        kind: reason_kind(&letter.content.reason),
        logged_at_ms: letter.logged_at_ms,
        raw_bytes: letter.content.raw.len(),
        letter: letter.into(),
    };
    context.output().print_result(&details, Details::to_text)
}

impl Details {
    fn to_text(&self) -> String {
        let content = &self.letter.content;
        let (encoding, bytes) = format_bytes(&content.raw);
        format!(
            "id:        {}\nsource:    {}\norigin:    {}\nrejected:  {}\nlogged:    {}\nreason:    {}\nkind:      {}\nbytes:     {}, as {encoding}\n\n{bytes}\n",
            self.letter.id,
            self.letter.id.source,
            content.origin,
            format_timestamp_ms(content.at_ms),
            format_timestamp_ms(self.logged_at_ms),
            content.reason,
            self.kind,
            self.raw_bytes,
        )
    }
}

/// Formats UTF-8 bytes as text with control characters escaped, other bytes as hexadecimal with 32
/// bytes per line.
fn format_bytes(raw: &[u8]) -> (&'static str, String) {
    let is_plain = |c: char| !c.is_control() || matches!(c, '\n' | '\t');
    match std::str::from_utf8(raw) {
        Ok(text) => {
            let mut escaped = String::with_capacity(text.len());
            for c in text.chars() {
                if is_plain(c) {
                    escaped.push(c);
                } else {
                    escaped.extend(c.escape_default());
                }
            }
            ("text", escaped)
        }
        Err(_) => {
            let format_line =
                |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect();
            let lines: Vec<String> = raw.chunks(32).map(format_line).collect();
            ("hexadecimal", lines.join("\n"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_are_escaped() {
        assert_eq!(
            format_bytes("a\tö\n\u{1b}[2J".as_bytes()),
            ("text", "a\tö\n\\u{1b}[2J".to_owned())
        );
        let (encoding, text) = format_bytes(&[0xff; 33]);
        assert_eq!(encoding, "hexadecimal");
        assert_eq!(text, format!("{}\nff", "ff".repeat(32)));
    }
}
