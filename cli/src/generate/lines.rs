//! Writes rows as JSON lines.

use schemas::source::Source;
use serde::Serialize;

use super::rows::Row;

/// Appends the row as a line with a line end.
pub(crate) fn write_line<R: Serialize>(line: &mut Vec<u8>, source: Source, row: &Row<R>) {
    let begin = line.len();
    // Writing to memory does not fail.
    drop(serde_json::to_writer(&mut *line, &row.record));
    if let Some(fault) = row.fault {
        let whole = line.split_off(begin);
        line.extend(fault.corrupt(source, &whole));
    }
    line.push(b'\n');
}
