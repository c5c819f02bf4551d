//! The commands of `keys`.

use clap::Subcommand;
use schemas::access::{Scope, ScopeError};
use stores::keys::NAME_BYTES_MAX;

use super::values;

/// The commands of `keys`.
#[derive(Debug, Subcommand)]
pub(crate) enum KeysCommand {
    /// Make a key, which is shown once. From the first one on every request needs a key
    Create {
        /// What it permits, more than once for several: read:*, read:owner:ID, ingest, ingest:SOURCE or admin
        #[arg(long = "scope", required = true, value_name = "SCOPE", value_parser = scope)]
        scopes: Vec<Scope>,
        /// What people call it
        #[arg(long, value_name = "NAME", value_parser = name)]
        name: String,
        /// When it ends by itself: an instant, a date in UTC, or after so many days as in 90d [default: never]
        #[arg(long, value_name = "WHEN", value_parser = values::when)]
        expires: Option<values::When>,
        /// Who makes it, for the record
        #[arg(long, value_name = "WHO", default_value = "keys create", value_parser = actor)]
        by: String,
    },
    /// Show keys, newest first, without what they are
    List {
        /// How many to show
        #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=100_000))]
        limit: u32,
    },
    /// Make a key with the same scopes in the place of one, which goes on for a while
    Rotate {
        /// The key, as `list` shows it
        #[arg(value_name = "ID")]
        id: String,
        /// How many hours the old one goes on
        #[arg(long, value_name = "HOURS", default_value_t = 24, value_parser = clap::value_parser!(u32).range(0..=8_760))]
        overlap: u32,
        /// When the new one ends by itself [default: after as long as the old one was given]
        #[arg(long, value_name = "WHEN", value_parser = values::when)]
        expires: Option<values::When>,
        /// Who does it, for the record
        #[arg(long, value_name = "WHO", default_value = "keys rotate", value_parser = actor)]
        by: String,
    },
    /// Take a key back: it is refused some seconds later
    Revoke {
        /// The key, as `list` shows it
        #[arg(value_name = "ID")]
        id: String,
        /// Who does it, for the record
        #[arg(long, value_name = "WHO", default_value = "keys revoke", value_parser = actor)]
        by: String,
    },
    /// Show what administrators did, newest first
    Audit {
        /// How much to show
        #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=100_000))]
        limit: u32,
    },
}

fn name(text: &str) -> Result<String, String> {
    bounded(text, NAME_BYTES_MAX)
}

fn scope(text: &str) -> Result<Scope, String> {
    let scope: Scope = text
        .parse()
        .map_err(|error: ScopeError| error.to_string())?;
    match &scope {
        Scope::ReadOwner(owner) if owner == "*" => {
            Err("no owner is called *: read:* permits every read".to_owned())
        }
        _ => Ok(scope),
    }
}

fn actor(text: &str) -> Result<String, String> {
    bounded(text, stores::admin::TEXT_BYTES_MAX)
}

fn bounded(text: &str, bytes_max: usize) -> Result<String, String> {
    let is_plain = !text.trim().is_empty() && !text.contains(char::is_control);
    if is_plain && text.len() <= bytes_max {
        return Ok(text.to_owned());
    }
    Err(format!(
        "a text of 1 to {bytes_max} bytes without control characters is expected"
    ))
}
