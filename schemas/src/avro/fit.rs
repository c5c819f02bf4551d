//! A writer's schema, and ours as it reads records of that writer.
//!
//! Names of records don't matter, fields that only the writer has are passed over, and optional ones
//! that it has not are absent. What each field that we read may be is checked here, before the
//! library resolves the two: it takes more than can be read rightly, such as a number without a unit
//! for a time.

use serde_json::Value;

/// Our schema, fitted to a writer's: to be given to the library as the reader's schema.
///
/// # Errors
/// The reason for which the writer's records can't be read.
pub(super) fn fitted(ours: &str, writer: &str) -> Result<String, String> {
    let parse = |text: &str| serde_json::from_str::<Value>(text).map_err(|error| error.to_string());
    let writer = parse(writer).map_err(|error| format!("it is no Avro schema: {error}"))?;
    let mut ours = parse(ours)?;
    let Some(written) = fields(&writer) else {
        return Err("it is no record".to_owned());
    };
    if has_array(&writer) && has_nothing(&writer) {
        return Err("it has arrays, and types that take no space: that is not read".to_owned());
    }
    let Some(own) = ours.get_mut("fields").and_then(Value::as_array_mut) else {
        return Err("ours is no record".to_owned());
    };
    for field in own {
        let name = field
            .get("name")
            .and_then(Value::as_str)
            .unwrap_or_default();
        let Some(found) = written.iter().find(|one| name_of(one) == name) else {
            if field.get("default").is_some() {
                continue;
            }
            return Err(format!("it has no field {name}"));
        };
        let wanted = field.get("type").and_then(Kind::of);
        let kind = found.get("type").and_then(Kind::of);
        match (wanted, kind) {
            (Some(Kind::Text), Some(Kind::Text)) | (Some(Kind::Whole), Some(Kind::Whole)) => {}
            (Some(Kind::Micros), Some(Kind::Micros | Kind::Millis | Kind::Text)) => {
                let read_as = kind.map_or(Value::Null, Kind::to_type);
                if let Some(own_type) = field.get_mut("type") {
                    *own_type = read_as;
                }
            }
            (wanted, _) => {
                let expected = wanted.map_or("another type", Kind::expected);
                let is = found.get("type").unwrap_or(&Value::Null);
                return Err(format!(
                    "{name}: is {is}; expected is {expected}, or a union of that and null"
                ));
            }
        }
    }
    // The library compares names, but what a writer calls its records says nothing about them.
    let Some(own) = ours.as_object_mut() else {
        return Err("ours is no record".to_owned());
    };
    for key in ["name", "namespace"] {
        match writer.get(key) {
            Some(value) => own.insert(key.to_owned(), value.clone()),
            None => own.remove(key),
        };
    }
    Ok(ours.to_string())
}

/// What a field holds, be it optional or not.
#[derive(Clone, Copy)]
enum Kind {
    Text,
    Whole,
    Micros,
    Millis,
}

impl Kind {
    /// What values of a type are, where that is read; a name of a type stands for none of these.
    fn of(declared: &Value) -> Option<Self> {
        let (name, logical) = match declared {
            Value::String(name) => (name.as_str(), None),
            Value::Object(object) => (
                object.get("type")?.as_str()?,
                object.get("logicalType").and_then(Value::as_str),
            ),
            Value::Array(variants) => {
                return match variants.as_slice() {
                    [Value::String(null), other] | [other, Value::String(null)]
                        if null == "null" && !other.is_array() =>
                    {
                        Self::of(other)
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
            ("int" | "long", None) => Some(Self::Whole),
            _ => None,
        }
    }

    fn to_type(self) -> Value {
        let time = |logical: &str| serde_json::json!({"type": "long", "logicalType": logical});
        match self {
            Self::Text => "string".into(),
            Self::Whole => "long".into(),
            Self::Micros => time("timestamp-micros"),
            Self::Millis => time("timestamp-millis"),
        }
    }

    const fn expected(self) -> &'static str {
        match self {
            Self::Text => "a string",
            Self::Whole => "an int or a long",
            Self::Micros | Self::Millis => {
                "a long that is a timestamp-micros or timestamp-millis, or a string"
            }
        }
    }
}

fn fields(schema: &Value) -> Option<&Vec<Value>> {
    let is_record = schema.get("type").and_then(Value::as_str) == Some("record");
    schema.get("fields").filter(|_| is_record)?.as_array()
}

fn name_of(field: &Value) -> &str {
    field
        .get("name")
        .and_then(Value::as_str)
        .unwrap_or_default()
}

/// Whether an array is declared anywhere in a schema.
fn has_array(schema: &Value) -> bool {
    any(schema, &|declared| {
        declared.get("type").and_then(Value::as_str) == Some("array")
    })
}

/// Whether a type is declared whose values take no space: a few bytes could say that an array has
/// 2^60 of them.
fn has_nothing(schema: &Value) -> bool {
    let is_null = |declared: Option<&Value>| declared.and_then(Value::as_str) == Some("null");
    any(schema, &|declared| {
        let has_no_size = declared.get("size").and_then(Value::as_u64) == Some(0);
        let has_no_field = fields(declared).is_some_and(Vec::is_empty);
        has_no_size
            || has_no_field
            || is_null(declared.get("type"))
            || is_null(declared.get("items"))
    })
}

fn any(value: &Value, holds: &dyn Fn(&Value) -> bool) -> bool {
    holds(value)
        || match value {
            Value::Object(object) => object.values().any(|inner| any(inner, holds)),
            Value::Array(array) => array.iter().any(|inner| any(inner, holds)),
            _ => false,
        }
}
