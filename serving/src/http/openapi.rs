//! Completes the OpenAPI document that the handlers describe: values, bounds, defaults and examples
//! of parameters, CSV responses, formats of times, and examples of responses.

use std::collections::BTreeSet;

use schemas::achievement::AchievementKind;
use schemas::source::Source;
use schemas::time::{Interval, PeriodName};
use serde_json::{Value, json};
use stores::admin::RequestState;
use utoipa::openapi::OpenApi;

use super::Api;
use super::applications::history;
use super::boards::{NEIGHBORS_DEFAULT, NEIGHBORS_MAX};
use super::params::{LIMIT_DEFAULT, LIMIT_MAX};
use super::problem::ProblemKind;
use super::reconciliations::{BATCH_RUN, RECONCILER};
use crate::board::divisions::{DIVISIONS, WINDOWS};
use crate::metric::Metric;

/// Examples by name of a schema.
const EXAMPLES: &str = include_str!("openapi_examples.json");
/// Properties of strings that are times, besides those that end with `_at`.
const TIME_PROPERTIES: [&str; 5] = ["at", "as_of", "now", "from", "to"];

/// Renders the completed document.
pub(crate) fn complete(api: &Api, openapi: &OpenApi) -> serde_json::Result<String> {
    let mut document = serde_json::to_value(openapi)?;
    let paths = document.get_mut("paths").and_then(Value::as_object_mut);
    for (path, item) in paths.into_iter().flatten() {
        let operations = item.as_object_mut().into_iter().flatten();
        for (_, operation) in operations {
            complete_operation(api, path, operation);
        }
    }
    let schemas = document.pointer_mut("/components/schemas");
    let schemas = schemas.and_then(Value::as_object_mut);
    let mut examples: Value = serde_json::from_str(EXAMPLES)?;
    for (name, schema) in schemas.into_iter().flatten() {
        complete_schema(name, schema);
        if let (Some(example), Some(schema)) = (examples.get_mut(name), schema.as_object_mut()) {
            schema.insert("examples".to_owned(), json!([example.take()]));
        }
    }
    serde_json::to_string_pretty(&document)
}

fn complete_operation(api: &Api, path: &str, operation: &mut Value) {
    let parameters = operation.get_mut("parameters");
    let mut parameters = parameters.and_then(Value::as_array_mut);
    let is_explain = path.ends_with("/explain");
    if let Some(parameters) = parameters.as_mut().filter(|_| is_explain) {
        // It shares the parameters of a period, but explains a single one.
        parameters.retain(|parameter| parameter["name"] != "compare");
    }
    let mut has_csv = false;
    for parameter in parameters.into_iter().flatten() {
        let name = parameter["name"].as_str().unwrap_or_default().to_owned();
        has_csv |= name == "format";
        let constraints = find_constraints(api, path, &name);
        let schema = parameter.get_mut("schema").and_then(Value::as_object_mut);
        let (Some(schema), Value::Object(constraints)) = (schema, constraints) else {
            continue;
        };
        schema.extend(constraints);
        if is_explain {
            // Each of its two forms refuses parameters of the other one, even with their defaults.
            schema.remove("default");
        }
    }
    // Generated clients can send this type as it is, but do not know NDJSON.
    let bytes = operation.pointer_mut("/requestBody/content/application~1octet-stream");
    if let Some(bytes) = bytes {
        *bytes = json!({"schema": {"type": "string", "format": "binary"}});
    }
    let content = operation.pointer_mut("/responses/200/content");
    if let Some(content) = content.and_then(Value::as_object_mut).filter(|_| has_csv) {
        content.insert("text/csv".to_owned(), json!({"schema": {"type": "string"}}));
    }
}

/// Adds the format of times and the values of closed sets to the properties of a schema.
fn complete_schema(name: &str, schema: &mut Value) {
    let properties = schema.get_mut("properties");
    let properties = properties.and_then(Value::as_object_mut);
    for (property, schema) in properties.into_iter().flatten() {
        let is_text = schema["type"] == "string" || schema["type"] == json!(["string", "null"]);
        let Some(schema) = schema.as_object_mut().filter(|_| is_text) else {
            continue;
        };
        if property.ends_with("_at") || TIME_PROPERTIES.contains(&property.as_str()) {
            schema.insert("format".to_owned(), "date-time".into());
        }
        let values = match (name, property.as_str()) {
            ("Achievement", "kind") => json!(AchievementKind::ALL.map(AchievementKind::name)),
            ("CapacityRequestResponse", "state") => {
                json!(RequestState::ALL.map(RequestState::name))
            }
            ("DecisionBody", "state") => json!(["granted", "refused"]),
            ("ReconciliationResponse", "kind") => json!([BATCH_RUN, RECONCILER]),
            _ => continue,
        };
        schema.insert("enum".to_owned(), values);
    }
}

/// Returns what the schema of a parameter has besides its type.
fn find_constraints(api: &Api, path: &str, name: &str) -> Value {
    let metrics = || api.metrics.values();
    match name {
        "limit" if path.ends_with("/history") => limit(history::LIMIT_DEFAULT, history::LIMIT_MAX),
        "limit" => limit(LIMIT_DEFAULT, LIMIT_MAX),
        "around" => json!({
            "minimum": 0, "maximum": NEIGHBORS_MAX, "default": NEIGHBORS_DEFAULT
        }),
        "format" => json!({"enum": ["json", "csv"], "default": "json"}),
        "history" | "dry_run" => json!({"default": false}),
        "metric" => one_of(api.metrics.keys().map(String::as_str)),
        "name" => one_of(api.boards.keys().map(String::as_str)),
        "by" => one_of(metrics().flat_map(Metric::grouping_names)),
        "of" => one_of(metrics().flat_map(Metric::distinct_names)),
        "source" => json!({"enum": Source::ALL.map(Source::name)}),
        "interval" => json!({"enum": Interval::ALL.map(Interval::name), "default": "day"}),
        "period" => json!({"enum": PeriodName::ALL.map(PeriodName::name)}),
        "compare" => json!({"enum": ["previous"]}),
        "prefer" => json!({"enum": ["batch", "realtime", "merged"], "default": "merged"}),
        "board" => json!({"enum": DIVISIONS.map(|(value, ..)| value)}),
        "window" => json!({"enum": WINDOWS.map(|(value, ..)| value)}),
        "sort" => json!({"enum": ["id", "name", "connected", "usage"], "default": "id"}),
        "order" => json!({"enum": ["asc", "desc"]}),
        "state" => json!({"enum": RequestState::ALL.map(RequestState::name)}),
        "kind" if path.ends_with("/achievements") => {
            json!({"enum": AchievementKind::ALL.map(AchievementKind::name)})
        }
        "kind" if path.ends_with("/reconciliations") => json!({"enum": [BATCH_RUN, RECONCILER]}),
        "kind" if path.starts_with("/problems/") => {
            one_of(ProblemKind::ALL.into_iter().map(ProblemKind::slug))
        }
        "kind" => json!({"enum": ["play", "download"]}),
        "date" => json!({"format": "date", "examples": ["2026-11-21"]}),
        "from" | "to" if path.ends_with("/history") => {
            json!({"format": "date", "examples": ["2026-11-21"]})
        }
        "from" | "to" | "since" => json!({
            "anyOf": [
                {"type": "string", "format": "date"},
                {"type": "string", "format": "date-time"}
            ],
            "examples": ["2026-11-21", "2026-11-21T09:15:00Z"]
        }),
        "tz" => json!({"default": "UTC", "examples": ["Europe/Berlin"]}),
        "country" => json!({"pattern": "^[A-Z]{2}$", "examples": ["DE"]}),
        "usage_from" => json!({"examples": [0.8]}),
        "Content-Encoding" => json!({"type": "string", "enum": ["gzip", "zstd"]}),
        "Idempotency-Key" => json!({
            "type": "string",
            "pattern": "^[A-Za-z0-9_.:-]{1,128}$",
            "examples": ["nightly-2026-11-21"]
        }),
        "id" if path.contains("/dead-letters") => json!({
            "examples": ["backstitch.plays.v1.dlq/0@17"]
        }),
        "id" | "key" | "epoch" | "following" => json!({"examples": [42]}),
        _ if name.ends_with("_id") => json!({"examples": [42]}),
        _ => Value::Null,
    }
}

fn limit(default: usize, max: usize) -> Value {
    json!({"format": "int64", "minimum": 1, "maximum": max, "default": default})
}

/// Allows some names. Without any, all texts are allowed.
fn one_of<'a>(names: impl Iterator<Item = &'a str>) -> Value {
    let names: BTreeSet<&str> = names.collect();
    match names.is_empty() {
        true => Value::Null,
        false => json!({ "enum": names }),
    }
}
