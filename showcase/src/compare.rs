//! Compares served JSON with recounted JSON.

use jiff::Timestamp;
use serde_json::Value;

const RATIO_ERROR_MAX: f64 = 1e-9;

/// Compares each recounted field with the served one. Ignores other served fields.
///
/// # Errors
/// Returns the first difference: its path, the served value and the recounted value.
pub(crate) fn compare(expected: &Value, served: &Value) -> Result<(), String> {
    let is_same = match (expected, served) {
        (Value::Object(fields), Value::Object(served)) => {
            return fields.iter().try_for_each(|(name, value)| {
                compare(value, served.get(name).unwrap_or(&Value::Null))
                    .map_err(|difference| format!("{name}: {difference}"))
            });
        }
        (Value::Array(values), Value::Array(served)) => {
            for (index, (value, served)) in values.iter().zip(served).enumerate() {
                compare(value, served).map_err(|difference| format!("{index}: {difference}"))?;
            }
            if values.len() != served.len() {
                let (served, expected) = (served.len(), values.len());
                return Err(format!("served {served} items, recounted {expected}"));
            }
            true
        }
        (Value::Number(value), Value::Number(served)) if value.is_f64() || served.is_f64() => {
            let (value, served) = (value.as_f64(), served.as_f64());
            value.zip(served).is_some_and(|(value, served)| {
                (value - served).abs() <= RATIO_ERROR_MAX * value.abs().max(1.0)
            })
        }
        (Value::String(value), Value::String(served)) => {
            let parse_time = |text: &str| text.parse::<Timestamp>().ok();
            let (time, served_time) = (parse_time(value), parse_time(served));
            value == served || time.is_some() && time == served_time
        }
        _ => expected == served,
    };
    is_same
        .then_some(())
        .ok_or_else(|| format!("served {served}, recounted {expected}"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn finds_wrong_answers() {
        let row = json!({"key": 7, "count": 3, "share": 0.75, "at": "2026-11-21T00:00:00Z"});
        let expected = json!({"total": 4, "previous": null, "rows": [row]});
        let with = |pointer: &str, value: Value| {
            let mut served = expected.clone();
            *served.pointer_mut(pointer).unwrap() = value;
            served
        };
        for right in [
            expected.clone(),
            with("/rows/0/share", json!(0.750_000_000_000_1)),
            with("/rows/0/at", json!("2026-11-21T01:00:00+01:00")),
        ] {
            assert_eq!(compare(&expected, &right), Ok(()), "{right}");
        }
        for wrong in [
            with("/total", json!(5)),
            with("/total", json!("4")),
            with("/previous", json!(0)),
            with("/rows/0/key", json!("7")),
            with("/rows/0/share", json!(0.7)),
            with("/rows/0/at", json!("2026-11-21T01:00:00Z")),
            with("/rows", json!([])),
            with("/rows", json!([row, row])),
            json!({}),
            json!(null),
        ] {
            assert!(compare(&expected, &wrong).is_err(), "{wrong}");
        }
        let difference = compare(&expected, &with("/rows/0/count", json!(4)));
        let message = "rows: 0: count: served 4, recounted 3";
        assert_eq!(difference, Err(message.to_owned()));
    }
}
