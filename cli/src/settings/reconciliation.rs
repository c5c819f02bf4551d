//! Settings of scheduled reconciliations. They have the names of the options of `reconcile`.

use std::collections::BTreeMap;
use std::collections::BTreeSet;
use std::path::PathBuf;

use batch::{Address, Expected, Policy, ReconcileRequest};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use stores::Secret;

/// Bounds the names of leases, which contain the name of the section.
const NAME_BYTES_MAX: usize = 64;
/// Maximum interval: ten years.
const MINUTES_MAX: u64 = 10 * 366 * 24 * 60;
const DAYS_MAX: u32 = 36_600;

/// A scheduled comparison.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(inline)]
pub(crate) struct ReconciliationSection {
    /// Name: letters, digits, `-` and `_`.
    #[schemars(length(min = 1, max = NAME_BYTES_MAX), regex(pattern = "^[A-Za-z0-9_-]+$"))]
    pub(crate) name: String,
    /// Views to compare, in this order.
    #[schemars(length(min = 1))]
    pub(crate) views: Vec<String>,
    /// `archive`, `canonical` (the entity store), a file, or a URL that begins with `https://` or `http://`.
    #[schemars(length(min = 1))]
    pub(crate) expected: String,
    /// With `canonical`, for counts: the query of the expected values.
    #[serde(default)]
    pub(crate) query: String,
    /// File with the bearer token for the URL.
    #[serde(default)]
    pub(crate) bearer_file: String,
    /// Environment variable with the bearer token for the URL.
    #[serde(default)]
    pub(crate) bearer_env: String,
    /// `COLUMN=FIELD`, as `--rename`.
    #[serde(default)]
    pub(crate) rename: Vec<String>,
    /// `COLUMN=VALUE,…`, as `--keys`.
    #[serde(default)]
    pub(crate) keys: Vec<String>,
    /// `N` or `N%`, as `--tolerance`.
    #[serde(default)]
    pub(crate) tolerance: Vec<String>,
    /// `FIELD=VALUE`, as `--set`.
    #[serde(default)]
    pub(crate) set: Vec<String>,
    /// As `--whole`.
    #[serde(default)]
    pub(crate) whole: bool,
    /// As `--sample`.
    #[schemars(range(max = 1), extend("exclusiveMinimum" = 0))]
    pub(crate) sample: Option<f64>,
    /// Compares only buckets of today (UTC) and of this number of days before.
    #[schemars(range(max = DAYS_MAX))]
    pub(crate) last_days: Option<u32>,
    /// Minutes from the start of a comparison to the start of the next one.
    #[schemars(range(min = 1, max = MINUTES_MAX))]
    pub(crate) interval_minutes: u64,
    /// `report`, or `apply`.
    #[serde(default)]
    #[schemars(with = "String", extend("enum" = ["report", "apply"]))]
    pub(crate) policy: Policy,
    /// With `apply`: repairs only if the differences sum up to at most this number.
    pub(crate) apply_max: Option<u64>,
    /// Reason, for the audit log.
    #[serde(default)]
    pub(crate) reason: String,
}

/// A reconciliation as text values of options or settings.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ReconciliationSpec<'a> {
    pub(crate) expected: &'a str,
    pub(crate) query: Option<&'a str>,
    pub(crate) rename: &'a [String],
    pub(crate) keys: &'a [String],
    pub(crate) tolerance: &'a [String],
    pub(crate) set: &'a [String],
    pub(crate) is_whole: bool,
    pub(crate) bearer: Option<&'a Secret>,
}

/// An invalid option, without dashes, and the reason.
pub(crate) type InvalidOption = (&'static str, String);

impl ReconciliationSection {
    /// Finds the first invalid section: its index, field and the reason.
    pub(super) fn find_invalid(sections: &[Self]) -> Option<(usize, &'static str, String)> {
        let mut names = BTreeSet::new();
        sections.iter().enumerate().find_map(|(index, section)| {
            let is_new = names.insert(&section.name);
            let duplicate = (!is_new).then(|| {
                let reason = format!("{:?} is used twice", section.name);
                ("name", reason)
            });
            let (field, reason) = duplicate.or_else(|| section.find_invalid_field())?;
            Some((index, field, reason))
        })
    }

    fn find_invalid_field(&self) -> Option<InvalidOption> {
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_".contains(&byte);
        let name = &self.name;
        if name.is_empty() || name.len() > NAME_BYTES_MAX || !name.bytes().all(is_plain) {
            let reason = format!(
                "{name:?} is invalid; expected at most {NAME_BYTES_MAX} letters, digits, '-' and '_'"
            );
            return Some(("name", reason));
        }
        if self.views.is_empty() {
            return Some(("views", "is empty; name views".to_owned()));
        }
        if !(1..=MINUTES_MAX).contains(&self.interval_minutes) {
            let reason = format!(
                "{} is out of range; expected 1 to {MINUTES_MAX}",
                self.interval_minutes
            );
            return Some(("interval_minutes", reason));
        }
        if self.last_days.is_some_and(|days| days > DAYS_MAX) {
            return Some(("last_days", format!("expected at most {DAYS_MAX}")));
        }
        if self
            .sample
            .is_some_and(|fraction| !(fraction > 0.0 && fraction <= 1.0))
        {
            return Some((
                "sample",
                "expected a fraction above 0 and up to 1".to_owned(),
            ));
        }
        if self.policy == Policy::Apply && self.apply_max.is_none() {
            let reason = "is required with policy = \"apply\": larger differences need an approval";
            return Some(("apply_max", reason.to_owned()));
        }
        if self.policy == Policy::Report && (self.apply_max.is_some() || !self.set.is_empty()) {
            let reason = "apply_max and set need policy = \"apply\"";
            return Some(("policy", reason.to_owned()));
        }
        if !self.bearer_file.is_empty() && !self.bearer_env.is_empty() {
            return Some((
                "bearer_env",
                "bearer_file is set, too; set only one of them".to_owned(),
            ));
        }
        self.spec(None).parse_request().err()
    }

    /// Returns the text values; `bearer` is the token itself.
    pub(crate) fn spec<'a>(&'a self, bearer: Option<&'a Secret>) -> ReconciliationSpec<'a> {
        ReconciliationSpec {
            expected: &self.expected,
            query: Some(self.query.as_str()).filter(|query| !query.is_empty()),
            rename: &self.rename,
            keys: &self.keys,
            tolerance: &self.tolerance,
            set: &self.set,
            is_whole: self.whole,
            bearer,
        }
    }
}

impl ReconciliationSpec<'_> {
    /// Parses the request.
    ///
    /// # Errors
    /// The first invalid option.
    pub(crate) fn parse_request(&self) -> Result<ReconcileRequest, InvalidOption> {
        let expected = self.parse_expected()?;
        if !expected.is_claimed()
            && (self.is_whole || !self.tolerance.is_empty() || !self.rename.is_empty())
        {
            let reason = "whole, tolerance and rename apply to files, URLs and queries only; values from events and rows are exact";
            return Err(("expected", reason.to_owned()));
        }
        let mut keys: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for pair in self.keys {
            let (name, values) = parse_pair("keys", pair)?;
            let values = values.split(',').map(str::to_owned);
            keys.entry(name).or_default().extend(values);
        }
        let parse_pairs =
            |flag: &'static str, texts: &[String]| -> Result<BTreeMap<_, _>, InvalidOption> {
                let pair = |text: &String| {
                    let (name, value) = parse_pair(flag, text)?;
                    Ok((name, value.to_owned()))
                };
                texts.iter().map(pair).collect()
            };
        Ok(ReconcileRequest {
            expected,
            rename: parse_pairs("rename", self.rename)?,
            is_whole: self.is_whole,
            tolerance: parse_tolerance(self.tolerance)?,
            keys,
            set: parse_pairs("set", self.set)?,
            ..ReconcileRequest::default()
        })
    }

    fn parse_expected(&self) -> Result<Expected, InvalidOption> {
        let is_url = self.expected.starts_with("https://") || self.expected.starts_with("http://");
        if self.bearer.is_some() && !is_url {
            let reason = "a bearer token needs a URL";
            return Err(("expected", reason.to_owned()));
        }
        match (self.expected, self.query) {
            ("canonical", Some(query)) => Ok(Expected::Query(query.to_owned())),
            (_, Some(_)) => Err((
                "query",
                "reads the entity store; it needs expected = canonical".to_owned(),
            )),
            ("archive", None) => Ok(Expected::Archive),
            ("canonical", None) => Ok(Expected::Canonical),
            ("", None) => Err(("expected", "is empty".to_owned())),
            (_, None) if is_url && !stores::http_fetch::HAS_CLIENT => Err((
                "expected",
                "a URL needs the Cargo feature `http`, which this build lacks; build with `--features http`, or name a file".to_owned(),
            )),
            (url, None) if is_url => Ok(Expected::Answer(Address {
                url: Secret::from(url.to_owned()),
                bearer: self.bearer.cloned().unwrap_or_default(),
            })),
            (file, None) => Ok(Expected::File(PathBuf::from(file))),
        }
    }
}

fn parse_pair<'a>(flag: &'static str, pair: &'a str) -> Result<(String, &'a str), InvalidOption> {
    let parts = pair.split_once('=').filter(|(name, _)| !name.is_empty());
    let (name, value) = parts.ok_or_else(|| {
        let reason = format!("{pair}: expected a column and a value, such as owner_id=7");
        (flag, reason)
    })?;
    Ok((name.to_owned(), value))
}

/// Parses tolerances: a count, a fraction of the expected value, or both.
fn parse_tolerance(texts: &[String]) -> Result<(u64, f64), InvalidOption> {
    let mut tolerance = (0, 0.0);
    for text in texts {
        let invalid_tolerance = || {
            let reason =
                format!("{text}: expected a count such as 10, or a percentage such as 0.5%");
            ("tolerance", reason)
        };
        match text.strip_suffix('%') {
            None => tolerance.0 = text.parse().map_err(|_| invalid_tolerance())?,
            Some(number) => {
                let percentage: f64 = number.parse().map_err(|_| invalid_tolerance())?;
                if !(0.0..=100.0).contains(&percentage) {
                    return Err(invalid_tolerance());
                }
                tolerance.1 = percentage / 100.0;
            }
        }
    }
    Ok(tolerance)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn section(extra: serde_json::Value) -> ReconciliationSection {
        let mut fields = serde_json::json!({
            "name": "a", "views": ["plays_owner_day"], "expected": "archive", "interval_minutes": 60,
        });
        let object = fields.as_object_mut().expect("an object");
        object.extend(extra.as_object().expect("an object").clone());
        serde_json::from_value(fields).expect("a section")
    }

    #[test]
    fn invalid_sections_name_their_field() {
        use serde_json::json;
        assert_eq!(
            ReconciliationSection::find_invalid(&[section(json!({}))]),
            None
        );
        for (extra, field) in [
            (json!({"name": "a/b"}), "name"),
            (json!({"views": []}), "views"),
            (json!({"interval_minutes": 0}), "interval_minutes"),
            (json!({"sample": 0.0}), "sample"),
            (json!({"policy": "apply"}), "apply_max"),
            (json!({"apply_max": 1}), "policy"),
            (json!({"query": "SELECT 1"}), "query"),
            (json!({"tolerance": ["1"]}), "expected"),
            (
                json!({"expected": "x.csv", "tolerance": ["1x"]}),
                "tolerance",
            ),
            (json!({"keys": ["owner"]}), "keys"),
        ] {
            let invalid = ReconciliationSection::find_invalid(&[section(extra.clone())]);
            assert_eq!(invalid.map(|(_, field, _)| field), Some(field), "{extra}");
        }
        let duplicates = [section(json!({})), section(json!({}))];
        let invalid = ReconciliationSection::find_invalid(&duplicates).expect("an invalid section");
        assert_eq!((invalid.0, invalid.1), (1, "name"));
    }
}
