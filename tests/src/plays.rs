//! Lines of plays.

use std::fmt::Display;

use serde_json::{Value, json};

/// Returns a play with the given event id; `fields` are added or replace the default ones.
pub fn play(event: impl Display, fields: Value) -> String {
    let mut play = json!({
        "event_id": event.to_string(), "track_id": 1, "owner_id": 1, "kind": "play",
        "at": "2026-03-05T11:00:00Z",
    });
    let (Value::Object(object), Value::Object(fields)) = (&mut play, fields) else {
        panic!("the fields of a play are an object");
    };
    object.extend(fields);
    play.to_string()
}
