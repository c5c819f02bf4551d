//! Writes rows as JSON lines.

use schemas::source::Source;
use serde::Serialize;

use super::rows::Row;

/// Appends the row as a line, with its line feed.
pub(crate) fn write_line<R: Serialize>(lines: &mut Vec<u8>, source: Source, row: &Row<R>) {
    let start = lines.len();
    // Writing to memory does not fail.
    drop(serde_json::to_writer(&mut *lines, &row.record));
    if let Some(fault) = row.fault {
        let valid_line = lines.split_off(start);
        lines.extend(fault.corrupt(source, &valid_line));
    }
    lines.push(b'\n');
}
