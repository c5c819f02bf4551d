//! The JSON Schema of the configuration.

use jobs::counting::{CLASSES_MAX, EVENTS_MAX, LISTED_MAX, NAME_BYTES_MAX, RECOUNTS_PER_DAY_MAX};
use schemars::{Schema, SchemaGenerator, json_schema};
use serde::Serialize;
use serde_json::{Map, Value, json};

use super::Settings;

/// Builds the JSON Schema of a configuration file.
pub(crate) fn build_schema() -> Schema {
    let mut schema = schemars::schema_for!(Settings);
    schema.insert("title".to_owned(), json!("Backstitch configuration"));
    schema
}

/// Builds the schema of counting classes of applications.
pub(super) fn build_counting_schema(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "array",
        "default": [],
        "maxItems": CLASSES_MAX,
        "items": {
            "type": "object",
            "properties": {
                "class": {"type": "string", "minLength": 1, "maxLength": NAME_BYTES_MAX,
                    "description": "Name of the class in answers."},
                "strategy": {"type": "string", "enum": ["increments", "recount"],
                    "description": "increments: every event changes the count; recount: the count is recomputed from time to time."},
                "capacity_from": {"type": "integer", "minimum": 0,
                    "description": "Applications with at least this capacity belong to the class."},
                "applications": {"type": "array", "items": {"type": "integer"}, "maxItems": LISTED_MAX,
                    "description": "Ids of applications that belong to the class."},
                "large_size": {"type": "integer", "minimum": 0,
                    "description": "recount: smaller counts are recomputed after every event."},
                "events_per_athlete_per_day": {"type": "number", "minimum": 1e-6, "maximum": EVENTS_MAX,
                    "description": "recount: expected events per connected athlete and day."},
                "recounts_per_day": {"type": "integer", "minimum": 1, "maximum": RECOUNTS_PER_DAY_MAX,
                    "description": "recount: recounts of a large count per day."},
            },
            "required": ["class", "strategy"],
            "additionalProperties": false,
        },
    })
}

/// Builds the schema of a section of another crate from its default values, so that names and types always match.
pub(super) fn build_section_schema<T: Default + Serialize>(_: &mut SchemaGenerator) -> Schema {
    let mut properties = Map::new();
    if let Ok(Value::Object(defaults)) = serde_json::to_value(T::default()) {
        for (name, default) in defaults {
            // Set once, in `log.partitions`.
            if name == "partitions" {
                continue;
            }
            let json_type = match &default {
                Value::Number(number) if number.is_f64() => Some("number"),
                Value::Number(_) => Some("integer"),
                Value::Bool(_) => Some("boolean"),
                Value::String(_) => Some("string"),
                Value::Array(_) => Some("array"),
                Value::Object(_) => Some("object"),
                Value::Null => None,
            };
            let mut property = Map::from_iter([("default".to_owned(), default)]);
            if let Some(json_type) = json_type {
                property.insert("type".to_owned(), json!(json_type));
            }
            properties.insert(name, Value::Object(property));
        }
    }
    json_schema!({
        "type": "object",
        "properties": properties,
        "additionalProperties": false,
    })
}
