//! Prints the effective settings.

use std::collections::BTreeMap;

use serde::Serialize;
use serde_json::Value;

use super::load::{Loaded, flatten_settings, nest};

/// The effective settings and the origin of each.
#[derive(Debug, Serialize)]
pub(crate) struct EffectiveSettings {
    settings: Value,
    #[serde(skip)]
    flat: BTreeMap<String, Value>,
    sources: BTreeMap<String, String>,
}

impl Loaded {
    /// Returns the settings for output.
    pub(crate) fn effective_settings(&self) -> anyhow::Result<EffectiveSettings> {
        let flat = flatten_settings(&self.settings)?;
        let sources = flat
            .keys()
            .map(|key| {
                let origin = self.origins.get(key).map_or("default", String::as_str);
                (key.clone(), origin.to_owned())
            })
            .collect();
        Ok(EffectiveSettings {
            settings: nest(&flat),
            flat,
            sources,
        })
    }
}

impl EffectiveSettings {
    /// Formats a configuration file in TOML, with the origin of each value as a comment.
    pub(crate) fn to_toml(&self) -> String {
        let flat = &self.flat;
        let line = |name: &str, key: &str, value: &Value| {
            let source = self.sources.get(key).map_or("default", String::as_str);
            match format_toml_value(value) {
                Some(value) => format!("{name} = {value}  # {source}\n"),
                None => format!("# {name} is not set\n"),
            }
        };
        let mut text = String::new();
        for (key, value) in flat.iter().filter(|(key, _)| !key.contains('.')) {
            text.push_str(&line(key, key, value));
        }
        let mut section = "";
        for (key, value) in flat {
            let Some((table, name)) = key.rsplit_once('.') else {
                continue;
            };
            if table != section {
                section = table;
                text.push_str(&format!("\n[{table}]\n"));
            }
            text.push_str(&line(name, key, value));
        }
        text
    }
}

/// Formats a value as TOML; `None` if it is not set.
fn format_toml_value(value: &Value) -> Option<String> {
    toml::Value::try_from(value)
        .ok()
        .map(|value| value.to_string())
}
