//! The OpenAPI document: rules that every operation follows, and values that the service accepts as
//! documented.

use std::collections::BTreeSet;

use axum::http::StatusCode;
use serde_json::{Map, Value};
use serving::Serving;

use super::start_service;
use crate::requests::{get, get_json, no_wait_options};

/// Maximum length of a summary.
const SUMMARY_CHARS_MAX: usize = 60;

/// An operation of the document.
struct Operation {
    path: String,
    method: String,
    content: Value,
}

impl Operation {
    fn parameters(&self) -> &[Value] {
        self.content["parameters"]
            .as_array()
            .map_or(&[], Vec::as_slice)
    }

    fn has_parameter(&self, name: &str) -> bool {
        self.parameters()
            .iter()
            .any(|parameter| parameter["name"] == name)
    }

    /// Returns a URI with valid values of all required parameters, and of those that `parameter`
    /// is only valid with.
    fn example_uri(&self, parameter: &str, value: &str) -> String {
        let mut path = self.path.clone();
        for (name, text) in [
            (parameter, value),
            ("metric", "plays"),
            ("name", "segments"),
            ("source", "plays"),
            ("kind", "busy"),
        ] {
            path = path.replace(&format!("{{{name}}}"), text);
        }
        path = path.replace(
            "/dead-letters/{id}",
            "/dead-letters/backstitch.plays.v1.dlq%2F0@1",
        );
        while let (Some(start), Some(end)) = (path.find('{'), path.find('}')) {
            path.replace_range(start..=end, "1");
        }
        let mut query = match self.path.as_str() {
            "/api/v1/explain" => match parameter {
                "owner_id" | "segment_id" | "application_id" => Vec::new(),
                "board" | "window" | "club_id" | "following" | "athlete_id" => {
                    vec!["segment_id=1".to_owned()]
                }
                _ => vec!["owner_id=1".to_owned()],
            },
            path if path.contains("/stats/") && parameter != "owner_id" => {
                vec!["owner_id=1".to_owned()]
            }
            _ => Vec::new(),
        };
        if self.has_parameter("by") && parameter != "by" {
            query.push("by=track".to_owned());
        }
        match (parameter, value) {
            ("period", "custom") => query.push("from=2026-07-01".to_owned()),
            ("date", _) if self.has_parameter("period") => query.push("period=month".to_owned()),
            ("from", _) => query.push("to=2026-12-31".to_owned()),
            _ => {}
        }
        let is_query = |found: &Value| found["name"] == parameter && found["in"] == "query";
        if self.parameters().iter().any(is_query) {
            query.push(format!("{parameter}={}", value.replace('+', "%2B")));
        }
        format!("{path}?{}", query.join("&"))
    }
}

async fn read_document(serving: &Serving) -> Value {
    let (status, document) = get_json(serving, "/openapi.json").await;
    assert_eq!(status, StatusCode::OK);
    document
}

fn list_operations(document: &Value) -> Vec<Operation> {
    let mut operations = Vec::new();
    for (path, methods) in document["paths"].as_object().unwrap() {
        for (method, content) in methods.as_object().unwrap() {
            operations.push(Operation {
                path: path.clone(),
                method: method.clone(),
                content: content.clone(),
            });
        }
    }
    operations
}

/// Returns whether a schema names a type, or alternatives that do.
fn has_type(schema: &Value) -> bool {
    let alternatives = schema["anyOf"].as_array().or(schema["oneOf"].as_array());
    schema["type"].is_string()
        || schema["type"].is_array()
        || schema["$ref"].is_string()
        || alternatives.is_some_and(|schemas| schemas.iter().all(has_type))
}

fn text_of(value: &Value) -> String {
    value
        .as_str()
        .map_or_else(|| value.to_string(), str::to_owned)
}

#[tokio::test]
async fn every_operation_is_described() {
    let (serving, _) = start_service(no_wait_options());
    let document = read_document(&serving).await;
    let mut ids = BTreeSet::new();
    for operation in list_operations(&document) {
        let (path, content) = (&operation.path, &operation.content);
        let id = content["operationId"].as_str().unwrap();
        assert!(ids.insert(id.to_owned()), "{id}");
        let summary = content["summary"].as_str().unwrap();
        assert!(!summary.contains('\n'), "{id}: {summary}");
        assert!(
            summary.chars().count() <= SUMMARY_CHARS_MAX,
            "{id}: {summary}"
        );
        let responses = content["responses"].as_object().unwrap();
        if content["security"].is_array() && path.starts_with("/api/") {
            for status in ["400", "401", "403", "429", "503"] {
                let problem = &responses[status]["content"]["application/problem+json"];
                assert!(has_type(&problem["schema"]), "{id}: {status}");
            }
        }
        for parameter in operation.parameters() {
            let (name, schema) = (&parameter["name"], &parameter["schema"]);
            assert!(has_type(schema), "{id}: {name}");
            assert!(parameter["description"].is_string(), "{id}: {name}");
            if name == "limit" {
                let has_bounds = schema["default"].is_u64() && schema["maximum"].is_u64();
                assert!(has_bounds && schema["minimum"] == 1, "{id}: {schema}");
            }
            if name == "format" {
                let csv = &content["responses"]["200"]["content"]["text/csv"];
                assert_eq!(csv["schema"]["type"], "string", "{id}");
            }
        }
        if let Some(contents) = content["requestBody"]["content"].as_object() {
            for (media_type, body) in contents {
                assert!(has_type(&body["schema"]), "{id}: {media_type}");
            }
        }
    }
    let ingest = &document["paths"]["/api/v1/ingest/{source}"]["post"];
    let bodies = &ingest["requestBody"]["content"];
    assert_eq!(
        bodies["application/octet-stream"]["schema"]["format"],
        "binary"
    );
    assert!(
        bodies["application/x-ndjson"]["schema"].is_object(),
        "{bodies}"
    );
}

/// Sends each documented value, bound and example of each parameter, and values beyond them.
#[tokio::test]
async fn parameters_accept_their_documented_values() {
    let (serving, _) = start_service(no_wait_options());
    let document = read_document(&serving).await;
    let operations = list_operations(&document);
    let mut accepted_count = 0;
    for operation in operations
        .iter()
        .filter(|operation| operation.method == "get")
    {
        for parameter in operation.parameters() {
            let (name, schema) = (parameter["name"].as_str().unwrap(), &parameter["schema"]);
            let lists = [&schema["enum"], &schema["examples"]];
            let lists = lists.into_iter().filter_map(Value::as_array).flatten();
            let bounds = [&schema["default"], &schema["minimum"], &schema["maximum"]];
            let bounds = bounds.into_iter().filter(|value| !value.is_null());
            for value in lists.chain(bounds) {
                let uri = operation.example_uri(name, &text_of(value));
                let (response, text) = get(&serving, &uri).await;
                assert_ne!(response.status(), StatusCode::BAD_REQUEST, "{uri}: {text}");
                accepted_count += 1;
            }
            let mut invalid: Vec<String> = Vec::new();
            if schema["enum"].is_array() {
                invalid.push("no-such-value".to_owned());
            }
            if let (Some(maximum), Some(minimum)) =
                (schema["maximum"].as_i64(), schema["minimum"].as_i64())
            {
                invalid.extend([maximum + 1, minimum - 1].map(|value| value.to_string()));
            }
            for value in invalid {
                let uri = operation.example_uri(name, &value);
                let (response, text) = get(&serving, &uri).await;
                assert!(
                    matches!(response.status().as_u16(), 400 | 404),
                    "{uri}: {text}"
                );
                if response.status() == StatusCode::BAD_REQUEST {
                    let problem: Value = serde_json::from_str(&text).unwrap();
                    assert_eq!(problem["parameter"], name, "{uri}: {text}");
                }
            }
        }
    }
    assert!(accepted_count > 200, "{accepted_count}");
}

/// Generated clients send every default.
#[tokio::test]
async fn all_defaults_may_be_sent_together() {
    let (serving, _) = start_service(no_wait_options());
    let document = read_document(&serving).await;
    let operations = list_operations(&document);
    for operation in operations
        .iter()
        .filter(|operation| operation.method == "get")
    {
        let plain = operation.example_uri("", "");
        let mut with_defaults = plain.clone();
        for parameter in operation.parameters() {
            let default = &parameter["schema"]["default"];
            if !default.is_null() {
                let name = text_of(&parameter["name"]);
                with_defaults.push_str(&format!("&{name}={}", text_of(default)));
            }
        }
        let (response, _) = get(&serving, &plain).await;
        let (response_to_defaults, text) = get(&serving, &with_defaults).await;
        let statuses = (response.status(), response_to_defaults.status());
        assert_eq!(statuses.0, statuses.1, "{with_defaults}: {text}");
    }
}

/// Returns the properties of an object schema, and the names of those that are required.
fn list_properties(document: &Value, schema: &Value) -> (Map<String, Value>, BTreeSet<String>) {
    if let Some(name) = schema["$ref"].as_str() {
        return list_properties(document, document.pointer(&name[1..]).unwrap());
    }
    let mut properties = schema["properties"]
        .as_object()
        .cloned()
        .unwrap_or_default();
    let required = schema["required"].as_array().into_iter().flatten();
    let mut required: BTreeSet<String> = required.map(text_of).collect();
    for part in schema["allOf"].as_array().into_iter().flatten() {
        let (others, others_required) = list_properties(document, part);
        properties.extend(others);
        required.extend(others_required);
    }
    (properties, required)
}

/// Checks that an example has all required properties of its schema, and no others.
fn check_example(document: &Value, schema: &Value, example: &Value) {
    if let Some(items) = example.as_array() {
        for item in items {
            check_example(document, &schema["items"], item);
        }
        return;
    }
    let (properties, required) = list_properties(document, schema);
    let Some(example) = example.as_object().filter(|_| !properties.is_empty()) else {
        return;
    };
    for name in &required {
        assert!(example.contains_key(name), "{name} of {schema}");
    }
    for (name, value) in example {
        let property = properties
            .get(name)
            .unwrap_or_else(|| panic!("{name} of {schema}"));
        check_example(document, property, value);
    }
}

#[tokio::test]
async fn schemas_have_formats_and_valid_examples() {
    let (serving, _) = start_service(no_wait_options());
    let document = read_document(&serving).await;
    let mut example_count = 0;
    for (name, schema) in document["components"]["schemas"].as_object().unwrap() {
        for example in schema["examples"].as_array().into_iter().flatten() {
            check_example(&document, schema, example);
            example_count += 1;
        }
        let (properties, _) = list_properties(&document, schema);
        for (property, schema) in properties {
            let is_text = schema["type"] == "string" || schema["type"][0] == "string";
            if is_text && (property == "at" || property.ends_with("_at")) {
                assert_eq!(schema["format"], "date-time", "{name}.{property}");
            }
        }
    }
    assert_eq!(example_count, 10);
}
