//! `dead-letters show`: everything about one letter.

use anyhow::Context as _;
use schemas::dead_letter::{LetterId, kind_of};
use schemas::shown::moment;
use serde::Serialize;
use stores::dead_letters::find;

use super::{Shown, unknown};
use crate::commands::Context;
use crate::failure::usage;
use crate::installation::Installation;
use crate::output;

/// A letter with all that is known of it.
#[derive(Debug, Serialize)]
struct Whole {
    #[serde(flatten)]
    letter: Shown,
    /// The reason as it is counted.
    kind: String,
    /// When it was appended to the log.
    logged_at_ms: i64,
    /// How many bytes are kept.
    raw_bytes: usize,
}

/// Shows a letter, or its bytes alone.
pub(super) async fn show(
    context: &Context,
    installation: &Installation,
    id: LetterId,
    raw: bool,
) -> anyhow::Result<()> {
    if raw && context.output().is_json() {
        return Err(usage("--raw: bytes are no JSON; leave --json out"));
    }
    let letter = find(&*installation.stores().log, id).await?;
    let letter = letter.with_context(|| unknown(id))?;
    if raw {
        return output::raw(&letter.content.raw);
    }
    let whole = Whole {
        kind: kind_of(&letter.content.reason),
        logged_at_ms: letter.logged_at_ms,
        raw_bytes: letter.content.raw.len(),
        letter: letter.into(),
    };
    context.output().result(&whole, Whole::text)
}

impl Whole {
    fn text(&self) -> String {
        let content = &self.letter.content;
        let (form, bytes) = readable(&content.raw);
        format!(
            "id:        {}\nsource:    {}\norigin:    {}\nset aside: {}\nlogged:    {}\nreason:    {}\nkind:      {}\nbytes:     {}, as {form}\n\n{bytes}\n",
            self.letter.id,
            self.letter.id.source,
            content.origin,
            moment(content.at_ms),
            moment(self.logged_at_ms),
            content.reason,
            self.kind,
            self.raw_bytes,
        )
    }
}

/// Bytes as text if they are UTF-8, with what would move a terminal's cursor escaped; else as
/// hexadecimal, 32 bytes a line.
fn readable(raw: &[u8]) -> (&'static str, String) {
    let plain = |c: char| !c.is_control() || matches!(c, '\n' | '\t');
    match std::str::from_utf8(raw) {
        Ok(text) => {
            let mut shown = String::with_capacity(text.len());
            for c in text.chars() {
                if plain(c) {
                    shown.push(c);
                } else {
                    shown.extend(c.escape_default());
                }
            }
            ("text", shown)
        }
        Err(_) => {
            let line = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect();
            let lines: Vec<String> = raw.chunks(32).map(line).collect();
            ("hexadecimal", lines.join("\n"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_can_be_read() {
        assert_eq!(
            readable("a\tö\n\u{1b}[2J".as_bytes()),
            ("text", "a\tö\n\\u{1b}[2J".to_owned())
        );
        let (form, shown) = readable(&[0xff; 33]);
        assert_eq!(form, "hexadecimal");
        assert_eq!(shown, format!("{}\nff", "ff".repeat(32)));
    }
}
