//! Rows as JSON lines.

use jiff::Timestamp;
use jiff::fmt::temporal::DateTimePrinter;

use super::fault::Fault;
use super::rows::{Cell, Record, Row, Sink};

static PRINTER: DateTimePrinter = DateTimePrinter::new();

/// Appends the row as a line with its end.
pub(crate) fn write_line<R: Record>(line: &mut Vec<u8>, row: &Row<R>) {
    let begin = line.len();
    match row.fault {
        Some(Fault::NoJson) => row.record.put(&mut Fields::new(line, false)),
        Some(Fault::CutOff) => {
            line.push(b'{');
            row.record.put(&mut Fields::new(line, true));
            let length = line.len() - begin;
            line.truncate(begin + length * 2 / 3);
        }
        _ => {
            line.push(b'{');
            row.put(&mut Fields::new(line, true));
            line.push(b'}');
        }
    }
    line.push(b'\n');
}

/// The fields of an object, or its values alone.
struct Fields<'a> {
    line: &'a mut Vec<u8>,
    begin: usize,
    with_names: bool,
}

impl<'a> Fields<'a> {
    fn new(line: &'a mut Vec<u8>, with_names: bool) -> Self {
        Self {
            begin: line.len(),
            line,
            with_names,
        }
    }
}

impl Sink for Fields<'_> {
    fn put(&mut self, name: &'static str, cell: Cell<'_>) {
        if cell == Cell::Absent {
            return;
        }
        if self.line.len() > self.begin {
            self.line.push(b',');
        }
        if self.with_names {
            self.line.push(b'"');
            self.line.extend_from_slice(name.as_bytes());
            self.line.extend_from_slice(b"\":");
        }
        push_value(self.line, cell);
    }
}

fn push_value(line: &mut Vec<u8>, cell: Cell<'_>) {
    match cell {
        Cell::Absent => line.extend_from_slice(b"null"),
        Cell::Int(n) => push_int(line, n),
        // Writing into memory does not fail, here and below.
        Cell::Number(x) => drop(serde_json::to_writer(line, &x)),
        Cell::Text(text) => drop(serde_json::to_writer(line, text)),
        Cell::Time(ms) => {
            let at = Timestamp::from_millisecond(ms).unwrap_or_default();
            line.push(b'"');
            drop(PRINTER.print_timestamp(&at, &mut *line));
            line.push(b'"');
        }
        Cell::Bool(is) => line.extend_from_slice(if is { b"true" } else { b"false" }),
        Cell::Json(json) => line.extend_from_slice(json.as_bytes()),
    }
}

fn push_int(line: &mut Vec<u8>, n: i64) {
    if n < 0 {
        line.push(b'-');
    }
    let begin = line.len();
    let mut rest = n.unsigned_abs();
    loop {
        line.push(b'0' + u8::try_from(rest % 10).unwrap_or(0));
        rest /= 10;
        if rest == 0 {
            break;
        }
    }
    if let Some(digits) = line.get_mut(begin..) {
        digits.reverse();
    }
}
