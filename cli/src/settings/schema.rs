//! The JSON Schema of the configuration.

use schemars::{Schema, SchemaGenerator, json_schema};
use serde::Serialize;
use serde_json::{Map, Value, json};

use super::Settings;

/// The JSON Schema of a configuration file.
pub(crate) fn schema() -> Schema {
    let mut schema = schemars::schema_for!(Settings);
    schema.insert("title".to_owned(), json!("Backstitch configuration"));
    schema
}

/// The schema of a section that another crate owns, read off its defaults: names and types cannot
/// differ from what is read.
pub(super) fn section<T: Default + Serialize>(_: &mut SchemaGenerator) -> Schema {
    let mut properties = Map::new();
    if let Ok(Value::Object(defaults)) = serde_json::to_value(T::default()) {
        for (name, default) in defaults {
            // Set once, in `log.partitions`.
            if name == "partitions" {
                continue;
            }
            let kind = match &default {
                Value::Number(number) if number.is_f64() => Some("number"),
                Value::Number(_) => Some("integer"),
                Value::Bool(_) => Some("boolean"),
                Value::String(_) => Some("string"),
                Value::Array(_) => Some("array"),
                Value::Object(_) => Some("object"),
                Value::Null => None,
            };
            let mut property = Map::from_iter([("default".to_owned(), default)]);
            if let Some(kind) = kind {
                property.insert("type".to_owned(), json!(kind));
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
