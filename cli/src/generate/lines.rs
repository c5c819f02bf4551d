//! Rows as JSON lines.

use std::io::Write;

use jiff::Timestamp;

use super::traffic::{Fault, Play, Row};

/// Appends the row as a line with its end.
pub(crate) fn write_line(line: &mut Vec<u8>, row: &Row) {
    let begin = line.len();
    if row.fault == Some(Fault::NoJson) {
        put(line, format_args!("event {:016x} of owner {}", row.play.id.1, row.play.owner_id));
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
    put(line, format_args!("{{\"event_id\":\"{:08x}-{:016x}\"", play.id.0, play.id.1));
    match fault {
        Some(Fault::WrongType) => put(line, format_args!(",\"track_id\":\"{}\"", play.track_id)),
        Some(Fault::FractionalId) => put(line, format_args!(",\"track_id\":{}.5", play.track_id)),
        Some(Fault::HugeNumber) => {
            put(line, format_args!(",\"track_id\":99{:020}", play.track_id));
        }
        _ => put(line, format_args!(",\"track_id\":{}", play.track_id)),
    }
    if fault != Some(Fault::MissingOwner) {
        put(line, format_args!(",\"owner_id\":{}", play.owner_id));
    }
    if let Some(listener) = play.listener_id {
        put(line, format_args!(",\"listener_id\":{listener}"));
    }
    if fault == Some(Fault::WrongCountry) {
        put(line, format_args!(",\"country\":\"Germany\""));
    } else if let Some(country) = play.country {
        put(line, format_args!(",\"country\":\"{country}\""));
    }
    if let Some(referrer) = play.referrer {
        let mut buffer = String::new();
        put(line, format_args!(",\"referrer\":"));
        // Writing text into memory does not fail.
        drop(serde_json::to_writer(&mut *line, referrer.text(&mut buffer)));
    }
    if let Some(app) = play.app_id {
        put(line, format_args!(",\"app_id\":{app}"));
    }
    let kind = match (fault, play.download) {
        (Some(Fault::UnknownKind), _) => "stream",
        (_, true) => "download",
        (_, false) => "play",
    };
    put(line, format_args!(",\"kind\":\"{kind}\""));
    if fault == Some(Fault::ImpossibleDate) {
        put(line, format_args!(",\"at\":\"2025-02-30T12:00:00Z\""));
    } else {
        let at = Timestamp::from_millisecond(play.at_ms).unwrap_or_default();
        put(line, format_args!(",\"at\":\"{at}\""));
    }
    if let Some(amount) = play.amount {
        put(line, format_args!(",\"amount\":{amount}"));
    }
    line.push(b'}');
}

fn put(line: &mut Vec<u8>, text: std::fmt::Arguments<'_>) {
    // Writing into memory does not fail.
    drop(line.write_fmt(text));
}
