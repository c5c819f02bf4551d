//! What a restoration is asked for.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;

use schemas::time::UnixSeconds;
use stores::Secret;

/// What is expected to be served.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Expected {
    /// What the events in the archive give.
    #[default]
    Archive,
    /// What the rows of the canonical store give: boards.
    Canonical,
    /// What a file says: CSV, JSON lines or Parquet, with columns of the view and `expected`.
    File(PathBuf),
    /// What another system answers, with the same columns: CSV, JSON lines or JSON.
    Answer(Address),
    /// What a query of the canonical store gives, with the same columns.
    Query(String),
}

/// Where another system is asked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Address {
    /// The address; it may hold a token.
    pub url: Secret,
    /// Who asks, as a bearer token; empty for none.
    pub bearer: Secret,
}

impl Address {
    /// The address without what may be a secret: user, password and query.
    fn shown(&self) -> &str {
        let url = self.url.reveal();
        let url = url.split(['?', '#']).next().unwrap_or_default();
        match url.split_once("://") {
            Some((_, rest)) if rest.split('/').next().unwrap_or_default().contains('@') => {
                // Whoever writes a password into an address knows where it is.
                "an address with a password"
            }
            _ => url,
        }
    }
}

impl Expected {
    /// Whether somebody else says it, so that it is put right by corrections.
    #[must_use]
    pub const fn is_claimed(&self) -> bool {
        matches!(self, Self::File(_) | Self::Answer(_) | Self::Query(_))
    }
}

impl fmt::Display for Expected {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Archive => f.write_str("archive"),
            Self::Canonical => f.write_str("canonical"),
            Self::File(path) => path.display().fmt(f),
            Self::Answer(address) => f.write_str(address.shown()),
            Self::Query(_) => f.write_str("canonical query"),
        }
    }
}

/// What a restoration is asked to do.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ReconcileRequest {
    /// The view, by the name of its job.
    pub view: String,
    /// What is expected.
    pub expected: Expected,
    /// By the name of a column of what is expected, the view's column that it is.
    pub rename: BTreeMap<String, String>,
    /// Whether a file names every key, so that those that it does not name are expected to be 0.
    pub is_whole: bool,
    /// Differences from a file up to so much, and up to this part of what is expected, are none.
    pub tolerance: (u64, f64),
    /// By column, the values that are looked at; an empty one stands for none.
    pub keys: BTreeMap<String, Vec<String>>,
    /// Only buckets that begin at this instant or later (seconds since the Unix epoch).
    pub from: Option<UnixSeconds>,
    /// Only buckets that begin before this instant.
    pub to: Option<UnixSeconds>,
    /// Only so large a part of the keys, chosen by their hash.
    pub sample: Option<f64>,
    /// How many differences are told.
    pub limit: usize,
    /// Whether what differs is put right.
    pub apply: bool,
    /// Only if it is so much in all, at most.
    pub apply_max: Option<u64>,
    /// Fields of corrections that neither view nor file say.
    pub set: BTreeMap<String, String>,
    /// Who asks for it, and why: for the record.
    pub by: String,
    /// Why.
    pub reason: String,
    /// The schedule that it is of; nothing if it is by hand.
    pub schedule: Option<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_shown_without_its_secrets() {
        let shown = |url: &str| {
            let address = Address {
                url: Secret::from(url.to_owned()),
                bearer: Secret::from("sesame".to_owned()),
            };
            let expected = Expected::Answer(address);
            let all = format!("{expected} {expected:?}");
            assert!(!all.contains("sesame"), "{all}");
            expected.to_string()
        };
        assert_eq!(
            shown("https://x.example/a/b?token=sesame#sesame"),
            "https://x.example/a/b"
        );
        assert!(!shown("https://me:sesame@x.example/a").contains("me"));
    }
}
