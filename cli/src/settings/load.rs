//! Reads the settings from the file, the environment and flags.

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::{Path, PathBuf};

use serde_json::{Map, Value};

use super::{SECRETS, Settings};
use crate::failure::{one_line, usage};

const ENV_PREFIX: &str = "BACKSTITCH__";
const ENV_SEPARATOR: &str = "__";
/// Edits between the name of a setting and a variable that probably means it.
const TYPO_DISTANCE_MAX: usize = 2;
/// Follows from `log.partitions`.
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
struct Layer {
    values: BTreeMap<String, Value>,
    origins: BTreeMap<String, String>,
    /// True if all values are texts.
    untyped: bool,
}

/// Reads the settings from `file`, the variables and the flags.
///
/// # Errors
/// [`crate::failure::Usage`]: an unreadable file, an unknown key or an invalid value, with its origin.
pub(crate) fn load(
    file: Option<&Path>,
    variables: impl Iterator<Item = (String, String)>,
    flags: &Flags,
) -> anyhow::Result<Loaded> {
    let defaults = shown_values(&Settings::default())?;
    let mut values = defaults.clone();
    let (mut origins, mut warnings) = (BTreeMap::new(), Vec::new());
    let layers = [
        file.map(file_layer).transpose()?,
        Some(env_layer(variables)),
        Some(flag_layer(flags)),
    ];
    for layer in layers.into_iter().flatten() {
        for (key, value) in layer.values {
            let origin = layer.origins.get(&key).cloned().unwrap_or_default();
            let Some(default) = defaults.get(&key) else {
                if let Some(secret) = secret_in_file(&key) {
                    let Value::String(file) = &value else {
                        return Err(expected_text(&key, &origin));
                    };
                    values.insert(secret.to_owned(), read_secret(&key, &origin, file)?);
                    origins.insert(secret.to_owned(), format!("{origin} ({file})"));
                    continue;
                }
                if layer.untyped {
                    warnings.extend(near_miss(&key, &origin, &defaults));
                    continue;
                }
                return Err(unknown(&key, &origin, &defaults));
            };
            let value = match value {
                Value::String(text) if layer.untyped => {
                    typed(text, default).map_err(|why| usage(format!("{origin}: {key}: {why}")))?
                }
                value => value,
            };
            values.insert(key.clone(), value);
            let in_list = format!("{key}[");
            origins.retain(|key: &String, _| !key.starts_with(&in_list));
            let entries = layer.origins.iter();
            let entries = entries.filter(|(key, _)| key.starts_with(&in_list));
            origins.extend(entries.map(|(key, origin)| (key.clone(), origin.clone())));
            origins.insert(key, origin);
        }
    }
    let mut settings: Settings =
        serde_path_to_error::deserialize(nest(&values)).map_err(|error| {
            let key = error.path().to_string();
            // The error text contains the value, so it is not printed for a secret.
            if let Some(secret) = secret_at(&key) {
                let origin = origins.get(secret).map_or("defaults", String::as_str);
                return expected_text(secret, origin);
            }
            let why = schemas::json_error::describe(error.inner());
            wrong(&key, &one_line(&why), &origins)
        })?;
    if let Some((key, why)) = settings.flaw() {
        return Err(wrong(&key, &why, &origins));
    }
    settings.serving.partitions = settings.log.partitions;
    Ok(Loaded {
        settings,
        origins,
        file: file.map(Path::to_path_buf),
        warnings,
    })
}

/// A warning about an environment variable that is not a setting, but is close to one. Other software may use other
/// variables with the prefix.
fn near_miss(key: &str, origin: &str, known: &BTreeMap<String, Value>) -> Option<String> {
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
        let rest = known.strip_prefix(section);
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
    });
    is_section.then(|| {
        format!(
            "{origin} is not a setting and is ignored; `backstitch config show` lists the settings of {section}"
        )
    })
}

/// The secret whose file a key names: `redis.password` for `redis.password_file`.
fn secret_in_file(key: &str) -> Option<&'static str> {
    let secret = key.strip_suffix("_file")?;
    SECRETS.into_iter().find(|known| *known == secret)
}

/// The secret that a key names or is part of: `redis.password` also for `redis.password.x`.
fn secret_at(key: &str) -> Option<&'static str> {
    let is_part = |secret: &&str| {
        let rest = key.strip_prefix(*secret);
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '[']))
    };
    SECRETS.into_iter().find(is_part)
}

/// Reads a secret from a file, without the line end. The error does not print the file name, which may be the secret
/// itself under the wrong key.
fn read_secret(key: &str, origin: &str, file: &str) -> anyhow::Result<Value> {
    let text = std::fs::read_to_string(file).map_err(|error| {
        usage(format!(
            "{origin}: {key}: the named file cannot be read: {error}; name a file that contains only the secret"
        ))
    })?;
    Ok(Value::from(text.trim_end_matches(['\r', '\n'])))
}

/// Error for a secret whose value is not a text.
fn expected_text(key: &str, origin: &str) -> anyhow::Error {
    usage(format!(
        "{origin}: {key}: expected a text; put it in quotes"
    ))
}

fn wrong(key: &str, why: &str, origins: &BTreeMap<String, String>) -> anyhow::Error {
    // A missing field of a list entry has the origin of the entry or of the list.
    let origin = std::iter::successors(Some(key), |key| {
        key.rfind(['.', '[']).and_then(|end| key.get(..end))
    })
    .find_map(|key| origins.get(key));
    let origin = origin.map_or("defaults", String::as_str);
    usage(format!(
        "{origin}: {key}: {why}; `backstitch config schema` describes valid values"
    ))
}

fn unknown(key: &str, origin: &str, known: &BTreeMap<String, Value>) -> anyhow::Error {
    // A table in place of a text may contain the secret.
    let file_key = |secret: &&str| key.starts_with(&format!("{secret}_file."));
    if let Some(secret) = secret_at(key) {
        return expected_text(secret, origin);
    }
    if let Some(secret) = SECRETS.into_iter().find(file_key) {
        return expected_text(&format!("{secret}_file"), origin);
    }
    let is_list = |(name, default): &(&String, &Value)| {
        let rest = key.strip_prefix(name.as_str());
        default.is_array() && rest.is_some_and(|rest| rest.starts_with('.'))
    };
    if let Some((list, _)) = known.iter().find(is_list) {
        return usage(format!(
            "{origin}: {list} is a list; write [[{list}]] with double brackets above each entry"
        ));
    }
    let section = key.split('.').next().unwrap_or(key);
    let near: Vec<&str> = known
        .keys()
        .map(String::as_str)
        .filter(|known| known.split('.').next() == Some(section))
        .collect();
    let advice = if near.is_empty() {
        let mut sections: Vec<&str> = known
            .keys()
            .filter_map(|known| known.split('.').next())
            .collect();
        sections.dedup();
        format!("known sections: {}", sections.join(", "))
    } else {
        format!("known settings: {}", near.join(", "))
    };
    usage(format!("{origin}: unknown setting {key:?}; {advice}"))
}

/// Reads values from a TOML file, with file and line of each.
fn file_layer(path: &Path) -> anyhow::Result<Layer> {
    let shown = path.display();
    let text = std::fs::read_to_string(path).map_err(|error| {
        usage(format!(
            "--config {shown}: {error}; name a readable TOML file"
        ))
    })?;
    // Values and lines may contain secrets. So only messages about syntax are printed, which contain neither.
    toml::de::DeTable::parse(&text)
        .map_err(|error| unreadable(&shown, &text, error.span(), &one_line(error.message())))?;
    let table = toml::from_str::<toml::Table>(&text).map_err(|error| {
        unreadable(
            &shown,
            &text,
            error.span(),
            "no setting has a value of this kind",
        )
    })?;
    let values = serde_json::to_value(table)?;
    let lines = key_lines(&text);
    if let Some(key) = non_finite(&values, "") {
        let line = lines.get(&key).copied().unwrap_or(1);
        return Err(usage(format!(
            "{shown}:{line}: {key}: expected a finite number; `backstitch config schema` describes valid values"
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
            (key.clone(), format!("{shown}:{line}"))
        })
        .collect();
    Ok(Layer {
        values,
        origins,
        untyped: false,
    })
}

/// Error for a file that is not valid TOML. It does not print the text, which may contain secrets.
fn unreadable(
    shown: &std::path::Display<'_>,
    text: &str,
    span: Option<Range<usize>>,
    why: &str,
) -> anyhow::Error {
    let head = span.and_then(|span| text.get(..span.start));
    let origin = head.map_or_else(
        || shown.to_string(),
        |head| {
            let column = head.chars().rev().take_while(|sign| *sign != '\n').count() + 1;
            format!("{shown}:{}:{column}", head.matches('\n').count() + 1)
        },
    );
    usage(format!(
        "{origin}: {why}; expected TOML with texts in quotes (the text is not shown, because it may contain a secret)"
    ))
}

/// The key of a value that is infinite or not a number. JSON has no such numbers and shows them as null, which TOML lacks.
fn non_finite(value: &Value, path: &str) -> Option<String> {
    match value {
        Value::Null => Some(path.to_owned()),
        Value::Array(entries) => {
            let mut entries = entries.iter().enumerate();
            entries.find_map(|(index, entry)| non_finite(entry, &format!("{path}[{index}]")))
        }
        Value::Object(fields) => fields.iter().find_map(|(key, value)| {
            let dot = if path.is_empty() { "" } else { "." };
            non_finite(value, &format!("{path}{dot}{key}"))
        }),
        _ => None,
    }
}

/// The line of each key of a TOML text.
fn key_lines(text: &str) -> BTreeMap<String, usize> {
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
fn env_layer(variables: impl Iterator<Item = (String, String)>) -> Layer {
    let mut layer = Layer {
        values: BTreeMap::new(),
        origins: BTreeMap::new(),
        untyped: true,
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

fn flag_layer(flags: &Flags) -> Layer {
    let origins = flags.keys().map(|key| {
        let flag = key.rsplit('.').next().unwrap_or(key).replace('_', "-");
        ((*key).to_owned(), format!("--{flag}"))
    });
    Layer {
        origins: origins.collect(),
        values: flags
            .iter()
            .map(|(key, value)| ((*key).to_owned(), value.clone()))
            .collect(),
        untyped: false,
    }
}

/// Parses a text from the environment as a value of the default's type. Lists are JSON.
fn typed(text: String, default: &Value) -> Result<Value, String> {
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

/// The settings by dotted key, without derived ones.
pub(super) fn shown_values(settings: &Settings) -> anyhow::Result<BTreeMap<String, Value>> {
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

/// The opposite of [`flatten`].
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
