//! Reads the settings from the file, the environment and flags.

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::{Path, PathBuf};

use serde_json::{Map, Value};

use super::{SECRETS, Settings};
use crate::failure::{join_lines, usage_error};

const ENV_PREFIX: &str = "BACKSTITCH__";
const ENV_SEPARATOR: &str = "__";
/// Maximum edits between the name of a setting and a variable that probably means it.
const TYPO_DISTANCE_MAX: usize = 2;
/// A setting that is derived from `log.partitions` and not shown.
const DERIVED: &str = "serving.partitions";

/// Settings from flags: keys and values.
pub(crate) type Flags = BTreeMap<&'static str, Value>;

/// Settings and the origin of each value.
#[derive(Debug, Clone)]
pub(crate) struct Loaded {
    /// The settings.
    pub(crate) settings: Settings,
    /// Origin by key of each value that is not a default; for lists also of entries and their fields.
    pub(crate) origins: BTreeMap<String, String>,
    /// The file that was read.
    pub(crate) file: Option<PathBuf>,
    /// Environment variables that look like settings, but are none.
    pub(crate) warnings: Vec<String>,
}

impl Loaded {
    /// True if the key has a value that is not a default.
    pub(crate) fn is_set(&self, key: &str) -> bool {
        self.origins.contains_key(key)
    }

    /// Number of settings that are not defaults.
    pub(crate) fn count_set(&self) -> usize {
        let is_setting = |key: &&String| !key.contains('[');
        self.origins.keys().filter(is_setting).count()
    }
}

/// Values of one origin.
struct SettingsLayer {
    values: BTreeMap<String, Value>,
    origins: BTreeMap<String, String>,
    /// True if all values are texts.
    is_untyped: bool,
}

/// Reads the settings from `file`, the variables and the flags.
///
/// # Errors
/// [`crate::failure::UsageError`]: an unreadable file, an unknown key or an invalid value, with its origin.
pub(crate) fn load(
    file: Option<&Path>,
    variables: impl Iterator<Item = (String, String)>,
    flags: &Flags,
) -> anyhow::Result<Loaded> {
    let defaults = flatten_settings(&Settings::default())?;
    let mut values = defaults.clone();
    let (mut origins, mut warnings) = (BTreeMap::new(), Vec::new());
    let layers = [
        file.map(read_file_layer).transpose()?,
        Some(read_env_layer(variables)),
        Some(build_flag_layer(flags)),
    ];
    for layer in layers.into_iter().flatten() {
        for (key, value) in layer.values {
            let origin = layer.origins.get(&key).cloned().unwrap_or_default();
            let Some(default) = defaults.get(&key) else {
                if let Some(secret) = find_secret_of_file_key(&key) {
                    let Value::String(file) = &value else {
                        return Err(text_expected_error(&key, &origin));
                    };
                    values.insert(secret.to_owned(), read_secret(&key, &origin, file)?);
                    origins.insert(secret.to_owned(), format!("{origin} ({file})"));
                    continue;
                }
                if layer.is_untyped {
                    warnings.extend(describe_near_miss(&key, &origin, &defaults));
                    continue;
                }
                return Err(unknown_setting_error(&key, &origin, &defaults));
            };
            let value = match value {
                Value::String(text) if layer.is_untyped => parse_typed(text, default)
                    .map_err(|reason| usage_error(format!("{origin}: {key}: {reason}")))?,
                value => value,
            };
            values.insert(key.clone(), value);
            let entry_prefix = format!("{key}[");
            origins.retain(|key: &String, _| !key.starts_with(&entry_prefix));
            let entries = layer.origins.iter();
            let entries = entries.filter(|(key, _)| key.starts_with(&entry_prefix));
            origins.extend(entries.map(|(key, origin)| (key.clone(), origin.clone())));
            origins.insert(key, origin);
        }
    }
    let mut settings: Settings =
        serde_path_to_error::deserialize(nest(&values)).map_err(|error| {
            let key = error.path().to_string();
            // The error text contains the value, so it is not printed for a secret.
            if let Some(secret) = find_secret_with_part(&key) {
                let origin = origins.get(secret).map_or("defaults", String::as_str);
                return text_expected_error(secret, origin);
            }
            let reason = schemas::json_error::describe(error.inner());
            invalid_value_error(&key, &join_lines(&reason), &origins)
        })?;
    if let Some((key, reason)) = settings.find_invalid_value() {
        return Err(invalid_value_error(&key, &reason, &origins));
    }
    settings.serving.partitions = settings.log.partitions;
    Ok(Loaded {
        settings,
        origins,
        file: file.map(Path::to_path_buf),
        warnings,
    })
}

/// Describes an environment variable that is not a setting, but is close to one. Other software may use other
/// variables with the prefix.
fn describe_near_miss(key: &str, origin: &str, known: &BTreeMap<String, Value>) -> Option<String> {
    let secrets = SECRETS.map(|secret| format!("{secret}_file"));
    let distance = |known: &str| strsim::damerau_levenshtein(known, key);
    let nearest = known
        .keys()
        .chain(&secrets)
        .min_by_key(|known| distance(known))
        .filter(|known| distance(known) <= TYPO_DISTANCE_MAX);
    if let Some(nearest) = nearest {
        let variable = nearest.to_uppercase().replace('.', ENV_SEPARATOR);
        return Some(format!(
            "{origin} is not a setting and is ignored; did you mean {ENV_PREFIX}{variable}?"
        ));
    }
    let (section, _) = key.split_once('.')?;
    let is_section = known.keys().any(|known| {
        let suffix = known.strip_prefix(section);
        suffix.is_some_and(|suffix| suffix.is_empty() || suffix.starts_with('.'))
    });
    is_section.then(|| {
        format!(
            "{origin} is not a setting and is ignored; `backstitch config show` lists the settings of {section}"
        )
    })
}

/// Finds the secret whose file a key names: `redis.password` for `redis.password_file`.
fn find_secret_of_file_key(key: &str) -> Option<&'static str> {
    let secret = key.strip_suffix("_file")?;
    SECRETS.into_iter().find(|known| *known == secret)
}

/// Finds the secret that a key names or is part of: `redis.password` also for `redis.password.x`.
fn find_secret_with_part(key: &str) -> Option<&'static str> {
    let contains_key = |secret: &&str| {
        let suffix = key.strip_prefix(*secret);
        suffix.is_some_and(|suffix| suffix.is_empty() || suffix.starts_with(['.', '[']))
    };
    SECRETS.into_iter().find(contains_key)
}

/// Reads a secret from a file, without the line end. The error does not print the file name, which may be the secret
/// itself under the wrong key.
fn read_secret(key: &str, origin: &str, file: &str) -> anyhow::Result<Value> {
    let text = std::fs::read_to_string(file).map_err(|error| {
        usage_error(format!(
            "{origin}: {key}: the named file cannot be read: {error}; name a file that contains only the secret"
        ))
    })?;
    Ok(Value::from(text.trim_end_matches(['\r', '\n'])))
}

/// Error for a secret whose value is not a text.
fn text_expected_error(key: &str, origin: &str) -> anyhow::Error {
    usage_error(format!(
        "{origin}: {key}: expected a text; put it in quotes"
    ))
}

fn invalid_value_error(
    key: &str,
    reason: &str,
    origins: &BTreeMap<String, String>,
) -> anyhow::Error {
    // A missing field of a list entry has the origin of the entry or of the list.
    let origin = std::iter::successors(Some(key), |key| {
        key.rfind(['.', '[']).and_then(|end| key.get(..end))
    })
    .find_map(|key| origins.get(key));
    let origin = origin.map_or("defaults", String::as_str);
    usage_error(format!(
        "{origin}: {key}: {reason}; `backstitch config schema` describes valid values"
    ))
}

fn unknown_setting_error(
    key: &str,
    origin: &str,
    known: &BTreeMap<String, Value>,
) -> anyhow::Error {
    // A table in place of a text may contain the secret.
    let file_key = |secret: &&str| key.starts_with(&format!("{secret}_file."));
    if let Some(secret) = find_secret_with_part(key) {
        return text_expected_error(secret, origin);
    }
    if let Some(secret) = SECRETS.into_iter().find(file_key) {
        return text_expected_error(&format!("{secret}_file"), origin);
    }
    let is_list = |(name, default): &(&String, &Value)| {
        let suffix = key.strip_prefix(name.as_str());
        default.is_array() && suffix.is_some_and(|suffix| suffix.starts_with('.'))
    };
    if let Some((list, _)) = known.iter().find(is_list) {
        return usage_error(format!(
            "{origin}: {list} is a list; write [[{list}]] with double brackets above each entry"
        ));
    }
    let section = key.split('.').next().unwrap_or(key);
    let section_settings: Vec<&str> = known
        .keys()
        .map(String::as_str)
        .filter(|known| known.split('.').next() == Some(section))
        .collect();
    let advice = if section_settings.is_empty() {
        let mut sections: Vec<&str> = known
            .keys()
            .filter_map(|known| known.split('.').next())
            .collect();
        sections.dedup();
        format!("known sections: {}", sections.join(", "))
    } else {
        format!("known settings: {}", section_settings.join(", "))
    };
    usage_error(format!("{origin}: unknown setting {key:?}; {advice}"))
}

/// Reads values from a TOML file, with file and line of each.
fn read_file_layer(path: &Path) -> anyhow::Result<SettingsLayer> {
    let shown_path = path.display();
    let text = std::fs::read_to_string(path).map_err(|error| {
        usage_error(format!(
            "--config {shown_path}: {error}; name a readable TOML file"
        ))
    })?;
    // Values and lines may contain secrets. So only messages about syntax are printed, which contain neither.
    toml::de::DeTable::parse(&text).map_err(|error| {
        invalid_toml_error(
            &shown_path,
            &text,
            error.span(),
            &join_lines(error.message()),
        )
    })?;
    let table = toml::from_str::<toml::Table>(&text).map_err(|error| {
        invalid_toml_error(
            &shown_path,
            &text,
            error.span(),
            "no setting has a value of this kind",
        )
    })?;
    let values = serde_json::to_value(table)?;
    let lines = find_key_lines(&text);
    if let Some(key) = find_non_finite(&values, "") {
        let line = lines.get(&key).copied().unwrap_or(1);
        return Err(usage_error(format!(
            "{shown_path}:{line}: {key}: expected a finite number; `backstitch config schema` describes valid values"
        )));
    }
    let values = flatten(&values);
    // List entries have origins, but no values of their own.
    let entries = lines.keys().filter(|key| key.contains('['));
    let origins = values
        .keys()
        .chain(entries)
        .map(|key| {
            let line = lines.get(key).copied().unwrap_or(1);
            (key.clone(), format!("{shown_path}:{line}"))
        })
        .collect();
    Ok(SettingsLayer {
        values,
        origins,
        is_untyped: false,
    })
}

/// Error for a file that is not valid TOML. It does not print the text, which may contain secrets.
fn invalid_toml_error(
    path: &std::path::Display<'_>,
    text: &str,
    span: Option<Range<usize>>,
    reason: &str,
) -> anyhow::Error {
    let head = span.and_then(|span| text.get(..span.start));
    let origin = head.map_or_else(
        || path.to_string(),
        |head| {
            let column = head
                .chars()
                .rev()
                .take_while(|character| *character != '\n')
                .count()
                + 1;
            format!("{path}:{}:{column}", head.matches('\n').count() + 1)
        },
    );
    usage_error(format!(
        "{origin}: {reason}; expected TOML with texts in quotes (the text is not shown, because it may contain a secret)"
    ))
}

/// Finds the key of a value that is infinite or not a number. JSON has no such numbers and shows them as null, which TOML lacks.
fn find_non_finite(value: &Value, path: &str) -> Option<String> {
    match value {
        Value::Null => Some(path.to_owned()),
        Value::Array(entries) => {
            let mut entries = entries.iter().enumerate();
            entries.find_map(|(index, entry)| find_non_finite(entry, &format!("{path}[{index}]")))
        }
        Value::Object(fields) => fields.iter().find_map(|(key, value)| {
            let dot = if path.is_empty() { "" } else { "." };
            find_non_finite(value, &format!("{path}{dot}{key}"))
        }),
        _ => None,
    }
}

/// Finds the line of each key of a TOML text.
fn find_key_lines(text: &str) -> BTreeMap<String, usize> {
    fn walk(
        table: &toml::de::DeTable<'_>,
        prefix: &str,
        text: &str,
        lines: &mut BTreeMap<String, usize>,
    ) {
        for (key, value) in table {
            let path = format!("{prefix}{}", key.get_ref());
            let head = text.get(..key.span().start).unwrap_or_default();
            lines.insert(path.clone(), head.matches('\n').count() + 1);
            match value.get_ref() {
                toml::de::DeValue::Table(inner) => walk(inner, &format!("{path}."), text, lines),
                toml::de::DeValue::Array(entries) => {
                    for (index, entry) in entries.iter().enumerate() {
                        let path = format!("{path}[{index}]");
                        let head = text.get(..entry.span().start).unwrap_or_default();
                        lines.insert(path.clone(), head.matches('\n').count() + 1);
                        if let toml::de::DeValue::Table(inner) = entry.get_ref() {
                            walk(inner, &format!("{path}."), text, lines);
                        }
                    }
                }
                _ => {}
            }
        }
    }
    let mut lines = BTreeMap::new();
    if let Ok(table) = toml::de::DeTable::parse(text) {
        walk(table.get_ref(), "", text, &mut lines);
    }
    lines
}

/// Reads values from variables such as `BACKSTITCH__LOG__PARTITIONS`.
fn read_env_layer(variables: impl Iterator<Item = (String, String)>) -> SettingsLayer {
    let mut layer = SettingsLayer {
        values: BTreeMap::new(),
        origins: BTreeMap::new(),
        is_untyped: true,
    };
    for (name, value) in variables {
        let Some(key) = name.strip_prefix(ENV_PREFIX) else {
            continue;
        };
        let key = key.to_lowercase().replace(ENV_SEPARATOR, ".");
        let origin = format!("environment variable {name}");
        layer.origins.insert(key.clone(), origin);
        layer.values.insert(key, Value::String(value));
    }
    layer
}

fn build_flag_layer(flags: &Flags) -> SettingsLayer {
    let origins = flags.keys().map(|key| {
        let flag = key.rsplit('.').next().unwrap_or(key).replace('_', "-");
        ((*key).to_owned(), format!("--{flag}"))
    });
    SettingsLayer {
        origins: origins.collect(),
        values: flags
            .iter()
            .map(|(key, value)| ((*key).to_owned(), value.clone()))
            .collect(),
        is_untyped: false,
    }
}

/// Parses a text from the environment as a value of the default's type. Lists are JSON.
fn parse_typed(text: String, default: &Value) -> Result<Value, String> {
    let parsed = match default {
        Value::Number(_) | Value::Bool(_) => serde_json::from_str(text.trim()).ok(),
        Value::Array(_) => {
            let list = serde_json::from_str(text.trim());
            Some(list.map_err(|error| {
                format!(
                    "expected a JSON list: {}",
                    schemas::json_error::describe(&error)
                )
            })?)
        }
        _ => None,
    };
    Ok(parsed.unwrap_or(Value::String(text)))
}

/// Returns the settings by dotted key, without derived ones.
pub(super) fn flatten_settings(settings: &Settings) -> anyhow::Result<BTreeMap<String, Value>> {
    let mut values = flatten(&serde_json::to_value(settings)?);
    values.remove(DERIVED);
    Ok(values)
}

/// Flattens tables to values by dotted key.
fn flatten(value: &Value) -> BTreeMap<String, Value> {
    fn walk(value: &Value, path: &str, flat: &mut BTreeMap<String, Value>) {
        match value {
            Value::Object(table) => {
                for (key, value) in table {
                    let path = if path.is_empty() {
                        key.clone()
                    } else {
                        format!("{path}.{key}")
                    };
                    walk(value, &path, flat);
                }
            }
            value => {
                flat.insert(path.to_owned(), value.clone());
            }
        }
    }
    let mut flat = BTreeMap::new();
    walk(value, "", &mut flat);
    flat
}

/// Nests values by dotted key into tables; the opposite of [`flatten`].
pub(super) fn nest(flat: &BTreeMap<String, Value>) -> Value {
    let mut root = Map::new();
    for (key, value) in flat {
        let mut table = &mut root;
        let mut parts = key.split('.').peekable();
        while let Some(part) = parts.next() {
            if parts.peek().is_none() {
                table.insert(part.to_owned(), value.clone());
                break;
            }
            let inner = table
                .entry(part.to_owned())
                .or_insert_with(|| Value::Object(Map::new()));
            match inner {
                Value::Object(inner) => table = inner,
                _ => break,
            }
        }
    }
    Value::Object(root)
}

#[cfg(test)]
#[path = "load_tests.rs"]
mod tests;
