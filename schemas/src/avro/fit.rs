//! Fits our reader schema to the schema of a writer.
//!
//! Record names do not matter. Fields that only the writer has are skipped; optional fields that it
//! lacks are absent. The types of the fields are checked here, before the Avro library resolves the
//! two schemas: the library also accepts types with an ambiguous meaning, such as a time without a
//! unit.

use serde_json::Value;

use crate::json_error;

/// Returns our schema, fitted to a writer's. The Avro library uses it as the reader schema.
///
/// # Errors
/// The reason why the writer's records cannot be read.
pub(super) fn fit_schema(reader: &str, writer: &str) -> Result<String, String> {
    let parse = |text: &str| json_error::decode::<Value>(text.as_bytes());
    let writer = parse(writer).map_err(|error| format!("it is not an Avro schema: {error}"))?;
    let mut reader = parse(reader)?;
    let Some(writer_fields) = record_fields(&writer) else {
        return Err("it is not a record".to_owned());
    };
    if has_array(&writer) && has_empty_type(&writer) {
        return Err("it has arrays and types without bytes, which is not supported".to_owned());
    }
    let Some(reader_fields) = reader.get_mut("fields").and_then(Value::as_array_mut) else {
        return Err("the schema of Backstitch is not a record".to_owned());
    };
    for field in reader_fields {
        let name = field_name(field);
        let Some(writer_field) = writer_fields.iter().find(|field| field_name(field) == name)
        else {
            if field.get("default").is_some() {
                continue;
            }
            return Err(format!("it has no field {name}"));
        };
        let expected = field.get("type").and_then(FieldKind::parse);
        let actual = writer_field.get("type").and_then(FieldKind::parse);
        match (expected, actual) {
            (Some(FieldKind::Text), Some(FieldKind::Text))
            | (Some(FieldKind::Integer), Some(FieldKind::Integer)) => {}
            (
                Some(FieldKind::Micros),
                Some(FieldKind::Micros | FieldKind::Millis | FieldKind::Text),
            ) => {
                let writer_type = actual.map_or(Value::Null, FieldKind::to_type);
                if let Some(reader_type) = field.get_mut("type") {
                    *reader_type = writer_type;
                }
            }
            (expected, _) => {
                let expected = expected.map_or("another type", FieldKind::description);
                let actual = writer_field.get("type").unwrap_or(&Value::Null);
                return Err(format!(
                    "{name}: must be {expected}, or a union of that and null; got {actual}"
                ));
            }
        }
    }
    // The Avro library compares record names, which have no meaning here.
    let Some(object) = reader.as_object_mut() else {
        return Err("the schema of Backstitch is not a record".to_owned());
    };
    for key in ["name", "namespace"] {
        match writer.get(key) {
            Some(value) => object.insert(key.to_owned(), value.clone()),
            None => object.remove(key),
        };
    }
    Ok(reader.to_string())
}

/// The type of a field, optional or required.
#[derive(Clone, Copy)]
enum FieldKind {
    Text,
    Integer,
    Micros,
    Millis,
}

impl FieldKind {
    /// Returns the kind of a declared type; none if the type is not supported or is a reference.
    fn parse(declared: &Value) -> Option<Self> {
        let (name, logical) = match declared {
            Value::String(name) => (name.as_str(), None),
            Value::Object(object) => (
                object.get("type")?.as_str()?,
                object.get("logicalType").and_then(Value::as_str),
            ),
            Value::Array(variants) => {
                return match variants.as_slice() {
                    [Value::String(null), optional] | [optional, Value::String(null)]
                        if null == "null" && !optional.is_array() =>
                    {
                        Self::parse(optional)
                    }
                    _ => None,
                };
            }
            _ => return None,
        };
        match (name, logical) {
            ("string", _) => Some(Self::Text),
            ("long", Some("timestamp-micros")) => Some(Self::Micros),
            ("long", Some("timestamp-millis")) => Some(Self::Millis),
            ("int" | "long", None) => Some(Self::Integer),
            _ => None,
        }
    }

    fn to_type(self) -> Value {
        let timestamp = |logical: &str| serde_json::json!({"type": "long", "logicalType": logical});
        match self {
            Self::Text => "string".into(),
            Self::Integer => "long".into(),
            Self::Micros => timestamp("timestamp-micros"),
            Self::Millis => timestamp("timestamp-millis"),
        }
    }

    const fn description(self) -> &'static str {
        match self {
            Self::Text => "a string",
            Self::Integer => "an int or a long",
            Self::Micros | Self::Millis => {
                "a long that is a timestamp-micros or timestamp-millis, or a string"
            }
        }
    }
}

/// Returns the fields of a record schema; none for other schemas.
fn record_fields(schema: &Value) -> Option<&Vec<Value>> {
    let is_record = schema.get("type").and_then(Value::as_str) == Some("record");
    schema.get("fields").filter(|_| is_record)?.as_array()
}

fn field_name(field: &Value) -> &str {
    field
        .get("name")
        .and_then(Value::as_str)
        .unwrap_or_default()
}

/// Returns whether a schema declares an array anywhere.
fn has_array(schema: &Value) -> bool {
    any_value(schema, &|declared| {
        declared.get("type").and_then(Value::as_str) == Some("array")
    })
}

/// Returns whether a schema declares a type whose values have no bytes. A few bytes could then
/// declare an array of 2^60 such values.
fn has_empty_type(schema: &Value) -> bool {
    let is_null = |declared: Option<&Value>| declared.and_then(Value::as_str) == Some("null");
    any_value(schema, &|declared| {
        let has_no_size = declared.get("size").and_then(Value::as_u64) == Some(0);
        let has_no_field = record_fields(declared).is_some_and(Vec::is_empty);
        has_no_size
            || has_no_field
            || is_null(declared.get("type"))
            || is_null(declared.get("items"))
    })
}

/// Returns whether a predicate is true for a JSON value or any value in it.
fn any_value(value: &Value, predicate: &dyn Fn(&Value) -> bool) -> bool {
    predicate(value)
        || match value {
            Value::Object(object) => object.values().any(|inner| any_value(inner, predicate)),
            Value::Array(array) => array.iter().any(|inner| any_value(inner, predicate)),
            _ => false,
        }
}
