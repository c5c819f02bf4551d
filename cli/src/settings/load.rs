//! Reading the settings: file, then environment, then flags.

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::{Path, PathBuf};

use serde_json::{Map, Value};

use super::{SECRETS, Settings};
use crate::failure::{one_line, usage};

const ENV_PREFIX: &str = "BACKSTITCH__";
const ENV_SEPARATOR: &str = "__";
/// How many partitions there are is set once, in `log.partitions`.
const DERIVED: &str = "serving.partitions";

/// What flags say about settings: keys and values.
pub(crate) type Flags = BTreeMap<&'static str, Value>;

/// Settings, and where each value comes from.
#[derive(Debug, Clone)]
pub(crate) struct Loaded {
    /// The settings.
    pub(crate) settings: Settings,
    /// By key: the place that the value comes from, where that is not the default. Of lists the places of
    /// entries and of their fields too.
    pub(crate) places: BTreeMap<String, String>,
    /// The file that was read.
    pub(crate) file: Option<PathBuf>,
}

impl Loaded {
    /// Whether somebody has set the key.
    pub(crate) fn is_set(&self, key: &str) -> bool {
        self.places.contains_key(key)
    }

    /// How many settings somebody has set.
    pub(crate) fn set(&self) -> usize {
        let is_setting = |key: &&String| !key.contains('[');
        self.places.keys().filter(is_setting).count()
    }
}

/// One place that values come from.
struct Layer {
    values: BTreeMap<String, Value>,
    places: BTreeMap<String, String>,
    /// Whether every value is text, whatever it stands for.
    untyped: bool,
}

/// Reads the settings from `file`, the variables and the flags.
///
/// # Errors
/// [`crate::failure::Usage`]: a file that can't be read, an unknown key or a wrong value, with its
/// place.
pub(crate) fn load(
    file: Option<&Path>,
    variables: impl Iterator<Item = (String, String)>,
    flags: &Flags,
) -> anyhow::Result<Loaded> {
    let defaults = shown_values(&Settings::default())?;
    let mut values = defaults.clone();
    let mut places = BTreeMap::new();
    let layers = [
        file.map(file_layer).transpose()?,
        Some(env_layer(variables)),
        Some(flag_layer(flags)),
    ];
    for layer in layers.into_iter().flatten() {
        for (key, value) in layer.values {
            let place = layer.places.get(&key).cloned().unwrap_or_default();
            let Some(default) = defaults.get(&key) else {
                if let Some(secret) = secret_in_file(&key) {
                    let Value::String(file) = &value else {
                        return Err(no_text(&key, &place));
                    };
                    values.insert(secret.to_owned(), read_secret(&key, &place, file)?);
                    places.insert(secret.to_owned(), format!("{place} ({file})"));
                    continue;
                }
                return Err(unknown(&key, &place, &defaults));
            };
            let value = match value {
                Value::String(text) if layer.untyped => {
                    typed(text, default).map_err(|why| usage(format!("{place}: {key}: {why}")))?
                }
                value => value,
            };
            values.insert(key.clone(), value);
            let in_list = format!("{key}[");
            places.retain(|key: &String, _| !key.starts_with(&in_list));
            let entries = layer.places.iter();
            let entries = entries.filter(|(key, _)| key.starts_with(&in_list));
            places.extend(entries.map(|(key, place)| (key.clone(), place.clone())));
            places.insert(key, place);
        }
    }
    let mut settings: Settings =
        serde_path_to_error::deserialize(nest(&values)).map_err(|error| {
            let key = error.path().to_string();
            // Of a secret nothing is printed, and the text of the error holds the value.
            if let Some(secret) = secret_at(&key) {
                let place = places.get(secret).map_or("defaults", String::as_str);
                return no_text(secret, place);
            }
            wrong(&key, &one_line(&error.inner().to_string()), &places)
        })?;
    if let Some((key, why)) = settings.flaw() {
        return Err(wrong(&key, &why, &places));
    }
    settings.serving.partitions = settings.log.partitions;
    Ok(Loaded {
        settings,
        places,
        file: file.map(Path::to_path_buf),
    })
}

/// The secret that a key names a file of: `redis.password` for `redis.password_file`.
fn secret_in_file(key: &str) -> Option<&'static str> {
    let secret = key.strip_suffix("_file")?;
    SECRETS.into_iter().find(|known| *known == secret)
}

/// The secret that a key names, or in whose place it stands: `redis.password` for
/// `redis.password.x` too.
fn secret_at(key: &str) -> Option<&'static str> {
    let stands_for = |secret: &&str| {
        let rest = key.strip_prefix(*secret);
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '[']))
    };
    SECRETS.into_iter().find(stands_for)
}

/// The text of a secret's file, without the end of its line. The name of one that can't be read is
/// not printed: it may be the secret itself, written to the wrong key.
fn read_secret(key: &str, place: &str, file: &str) -> anyhow::Result<Value> {
    let text = std::fs::read_to_string(file).map_err(|error| {
        usage(format!(
            "{place}: {key}: the file of this name can't be read: {error}; name a file that holds nothing but the secret"
        ))
    })?;
    Ok(Value::from(text.trim_end_matches(['\r', '\n'])))
}

/// A value that is no text, of a key that has to do with a secret.
fn no_text(key: &str, place: &str) -> anyhow::Error {
    usage(format!(
        "{place}: {key}: a text is expected; put it in quotes"
    ))
}

fn wrong(key: &str, why: &str, places: &BTreeMap<String, String>) -> anyhow::Error {
    // A field that is missing in a list stands nowhere: its entry does, or the list.
    let place = std::iter::successors(Some(key), |key| {
        key.rfind(['.', '[']).and_then(|end| key.get(..end))
    })
    .find_map(|key| places.get(key));
    let place = place.map_or("defaults", String::as_str);
    usage(format!(
        "{place}: {key}: {why}; `backstitch config schema` says what is expected"
    ))
}

fn unknown(key: &str, place: &str, known: &BTreeMap<String, Value>) -> anyhow::Error {
    // A table where a text belongs, perhaps made of the secret.
    let file_key = |secret: &&str| key.starts_with(&format!("{secret}_file."));
    if let Some(secret) = secret_at(key) {
        return no_text(secret, place);
    }
    if let Some(secret) = SECRETS.into_iter().find(file_key) {
        return no_text(&format!("{secret}_file"), place);
    }
    let is_list = |(name, default): &(&String, &Value)| {
        let rest = key.strip_prefix(name.as_str());
        default.is_array() && rest.is_some_and(|rest| rest.starts_with('.'))
    };
    if let Some((list, _)) = known.iter().find(is_list) {
        return usage(format!(
            "{place}: {list} is a list: write [[{list}]] with two brackets above each of its entries"
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
        format!("there are {}", sections.join(", "))
    } else {
        format!("there are {}", near.join(", "))
    };
    usage(format!("{place}: there is no setting {key:?}; {advice}"))
}

/// The values of a TOML file, with file and line of each.
fn file_layer(path: &Path) -> anyhow::Result<Layer> {
    let shown = path.display();
    let text = std::fs::read_to_string(path).map_err(|error| {
        usage(format!(
            "--config {shown}: {error}; name a TOML file that can be read"
        ))
    })?;
    // What errors say of the syntax is the same for every text; those of values show the value, and as
    // a whole they show a line. Secrets stand in both.
    toml::de::DeTable::parse(&text)
        .map_err(|error| unreadable(&shown, &text, error.span(), &one_line(error.message())))?;
    let table = toml::from_str::<toml::Table>(&text)
        .map_err(|error| unreadable(&shown, &text, error.span(), "no setting has such a value"))?;
    let values = serde_json::to_value(table)?;
    let lines = key_lines(&text);
    if let Some(key) = no_number(&values, "") {
        let line = lines.get(&key).copied().unwrap_or(1);
        return Err(usage(format!(
            "{shown}:{line}: {key}: is not a number, or without end; `backstitch config schema` says what is expected"
        )));
    }
    let values = flatten(&values);
    // Of entries of lists there are places, and no values of their own.
    let entries = lines.keys().filter(|key| key.contains('['));
    let places = values
        .keys()
        .chain(entries)
        .map(|key| {
            let line = lines.get(key).copied().unwrap_or(1);
            (key.clone(), format!("{shown}:{line}"))
        })
        .collect();
    Ok(Layer {
        values,
        places,
        untyped: false,
    })
}

/// A file that is no TOML: where and why, and nothing of its text, in which secrets stand.
fn unreadable(
    shown: &std::path::Display<'_>,
    text: &str,
    span: Option<Range<usize>>,
    why: &str,
) -> anyhow::Error {
    let head = span.and_then(|span| text.get(..span.start));
    let place = head.map_or_else(
        || shown.to_string(),
        |head| {
            let column = head.chars().rev().take_while(|sign| *sign != '\n').count() + 1;
            format!("{shown}:{}:{column}", head.matches('\n').count() + 1)
        },
    );
    usage(format!(
        "{place}: {why}; write TOML, with texts in quotes (what stands there is not shown: it may be a secret)"
    ))
}

/// The key of a value that is not a number, or without end: TOML has such ones, and no null, and JSON
/// the other way round.
fn no_number(value: &Value, path: &str) -> Option<String> {
    match value {
        Value::Null => Some(path.to_owned()),
        Value::Array(entries) => {
            let mut entries = entries.iter().enumerate();
            entries.find_map(|(index, entry)| no_number(entry, &format!("{path}[{index}]")))
        }
        Value::Object(fields) => fields.iter().find_map(|(key, value)| {
            let dot = if path.is_empty() { "" } else { "." };
            no_number(value, &format!("{path}{dot}{key}"))
        }),
        _ => None,
    }
}

/// The line on which each key of a TOML text stands.
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

/// The values of variables such as `BACKSTITCH__LOG__PARTITIONS`.
fn env_layer(variables: impl Iterator<Item = (String, String)>) -> Layer {
    let mut layer = Layer {
        values: BTreeMap::new(),
        places: BTreeMap::new(),
        untyped: true,
    };
    for (name, value) in variables {
        let Some(key) = name.strip_prefix(ENV_PREFIX) else {
            continue;
        };
        let key = key.to_lowercase().replace(ENV_SEPARATOR, ".");
        let place = format!("environment variable {name}");
        layer.places.insert(key.clone(), place);
        layer.values.insert(key, Value::String(value));
    }
    layer
}

fn flag_layer(flags: &Flags) -> Layer {
    let places = flags.keys().map(|key| {
        let flag = key.rsplit('.').next().unwrap_or(key).replace('_', "-");
        ((*key).to_owned(), format!("--{flag}"))
    });
    Layer {
        places: places.collect(),
        values: flags
            .iter()
            .map(|(key, value)| ((*key).to_owned(), value.clone()))
            .collect(),
        untyped: false,
    }
}

/// A text from the environment as a value of the default's type, where it can be read as one; a list is
/// written as JSON.
fn typed(text: String, default: &Value) -> Result<Value, String> {
    let parsed = match default {
        Value::Number(_) | Value::Bool(_) => serde_json::from_str(text.trim()).ok(),
        Value::Array(_) => {
            let list = serde_json::from_str(text.trim());
            Some(list.map_err(|error| format!("expected a list as JSON: {error}"))?)
        }
        _ => None,
    };
    Ok(parsed.unwrap_or(Value::String(text)))
}

/// The settings by dotted key, without those that follow from others.
pub(super) fn shown_values(settings: &Settings) -> anyhow::Result<BTreeMap<String, Value>> {
    let mut values = flatten(&serde_json::to_value(settings)?);
    values.remove(DERIVED);
    Ok(values)
}

/// Values by dotted key. Only tables are walked into.
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
