//! Rows as JSON lines.

use jiff::Timestamp;
use jiff::fmt::temporal::DateTimePrinter;

use super::traffic::{Fault, Play, Row};

static PRINTER: DateTimePrinter = DateTimePrinter::new();

/// Appends the row as a line with its end.
pub(crate) fn write_line(line: &mut Vec<u8>, row: &Row) {
    let begin = line.len();
    if row.fault == Some(Fault::NoJson) {
        line.extend_from_slice(b"event ");
        push_id(line, row.play.id);
        push_field(line, b" of owner ", row.play.owner_id);
    } else {
        write_object(line, &row.play, row.fault);
        if row.fault == Some(Fault::CutOff) {
            let length = line.len() - begin;
            line.truncate(begin + length * 2 / 3);
        }
    }
    line.push(b'\n');
}

fn write_object(line: &mut Vec<u8>, play: &Play, fault: Option<Fault>) {
    line.extend_from_slice(b"{\"event_id\":\"");
    push_id(line, play.id);
    match fault {
        Some(Fault::WrongType) => {
            push_field(line, b"\",\"track_id\":\"", play.track_id);
            line.push(b'"');
        }
        Some(Fault::FractionalId) => {
            push_field(line, b"\",\"track_id\":", play.track_id);
            line.extend_from_slice(b".5");
        }
        Some(Fault::HugeNumber) => {
            push_field(line, b"\",\"track_id\":99000000000000000000", play.track_id);
        }
        _ => push_field(line, b"\",\"track_id\":", play.track_id),
    }
    if fault != Some(Fault::MissingOwner) {
        push_field(line, b",\"owner_id\":", play.owner_id);
    }
    if let Some(listener) = play.listener_id {
        push_field(line, b",\"listener_id\":", listener);
    }
    let country = match fault {
        Some(Fault::WrongCountry) => Some("Germany"),
        _ => play.country,
    };
    if let Some(country) = country {
        push_text(line, b",\"country\":", country);
    }
    if let Some(referrer) = play.referrer {
        push_text(line, b",\"referrer\":", referrer.text(&mut String::new()));
    }
    if let Some(app) = play.app_id {
        push_field(line, b",\"app_id\":", app);
    }
    let kind = match (fault, play.download) {
        (Some(Fault::UnknownKind), _) => "stream",
        (_, true) => "download",
        (_, false) => "play",
    };
    push_text(line, b",\"kind\":", kind);
    line.extend_from_slice(b",\"at\":\"");
    if fault == Some(Fault::ImpossibleDate) {
        line.extend_from_slice(b"2025-02-30T12:00:00Z");
    } else {
        let at = Timestamp::from_millisecond(play.at_ms).unwrap_or_default();
        // Writing into memory does not fail.
        drop(PRINTER.print_timestamp(&at, &mut *line));
    }
    line.push(b'"');
    if let Some(amount) = play.amount {
        push_field(line, b",\"amount\":", amount);
    }
    line.push(b'}');
}

/// An event id, as hexadecimal digits.
fn push_id(line: &mut Vec<u8>, (series, number): (u32, u64)) {
    let mut digits = [b'-'; 25];
    let nibble = |shift: u32, of: u64| {
        let nibble = (of >> shift) & 0xf;
        char::from_digit(u32::try_from(nibble).unwrap_or(0), 16).map_or(b'0', |c| c as u8)
    };
    for (place, digit) in (0..8_u32).zip(digits.iter_mut()) {
        *digit = nibble(28 - 4 * place, series.into());
    }
    for (place, digit) in (0..16_u32).zip(digits.iter_mut().skip(9)) {
        *digit = nibble(60 - 4 * place, number);
    }
    line.extend_from_slice(&digits);
}

/// What comes before it, then a number.
fn push_field(line: &mut Vec<u8>, before: &[u8], number: i64) {
    line.extend_from_slice(before);
    if number < 0 {
        line.push(b'-');
    }
    let begin = line.len();
    let mut rest = number.unsigned_abs();
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

/// What comes before it, then a text as JSON writes it.
fn push_text(line: &mut Vec<u8>, before: &[u8], text: &str) {
    line.extend_from_slice(before);
    // Writing text into memory does not fail.
    drop(serde_json::to_writer(line, text));
}
