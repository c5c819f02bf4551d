//! The commands of `keys`.

use std::time::Duration;

use clap::Subcommand;
use schemas::access::{Scope, ScopeError};
use stores::keys::NAME_BYTES_MAX;

use super::values;

/// The commands of `keys`.
#[derive(Debug, Subcommand)]
pub(crate) enum KeysCommand {
    /// Create a key and show it once. From the first key on, every request needs a key
    Create {
        /// Scope: read:*, read:owner:ID, ingest, ingest:SOURCE or admin; repeatable
        #[arg(long = "scope", required = true, value_name = "SCOPE", value_parser = parse_scope)]
        scopes: Vec<Scope>,
        /// Display name
        #[arg(long, value_name = "NAME", value_parser = parse_name)]
        name: String,
        /// Expiry: an instant, a date in UTC, or a duration such as 90d [default: never]
        #[arg(long, value_name = "TIME", value_parser = values::parse_expiry)]
        expires: Option<values::Expiry>,
        /// Person who creates the key, for the audit log
        #[arg(long, value_name = "NAME", default_value = "keys create", value_parser = parse_actor)]
        by: String,
    },
    /// List keys, newest first, without their secrets
    List {
        /// Number of keys
        #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=100_000))]
        limit: u32,
    },
    /// Create a key with the same scopes, and let the old one expire soon
    Rotate {
        /// Key id, as `list` shows it
        #[arg(value_name = "ID")]
        id: String,
        /// Remaining lifetime of the old key; a number without a unit means hours
        #[arg(long, value_name = "DURATION", default_value = "24h", value_parser = values::duration_parser(super::DAY / 24, Duration::ZERO..=365 * super::DAY))]
        overlap: Duration,
        /// Expiry of the new key [default: the same lifetime as the old key's]
        #[arg(long, value_name = "TIME", value_parser = values::parse_expiry)]
        expires: Option<values::Expiry>,
        /// Person who acts, for the audit log
        #[arg(long, value_name = "NAME", default_value = "keys rotate", value_parser = parse_actor)]
        by: String,
    },
    /// Revoke a key; it is rejected within seconds
    Revoke {
        /// Key id, as `list` shows it
        #[arg(value_name = "ID")]
        id: String,
        /// Person who acts, for the audit log
        #[arg(long, value_name = "NAME", default_value = "keys revoke", value_parser = parse_actor)]
        by: String,
    },
    /// Show the audit log of administrators, newest first
    Audit {
        /// Number of entries
        #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=100_000))]
        limit: u32,
    },
}

fn parse_name(text: &str) -> Result<String, String> {
    parse_text(text, NAME_BYTES_MAX)
}

fn parse_scope(text: &str) -> Result<Scope, String> {
    let scope: Scope = text
        .parse()
        .map_err(|error: ScopeError| error.to_string())?;
    match &scope {
        Scope::ReadOwner(owner) if owner == "*" => {
            Err("* is not an owner; read:* permits every read".to_owned())
        }
        _ => Ok(scope),
    }
}

fn parse_actor(text: &str) -> Result<String, String> {
    parse_text(text, stores::admin::TEXT_BYTES_MAX)
}

fn parse_text(text: &str, bytes_max: usize) -> Result<String, String> {
    let is_plain = !text.trim().is_empty() && !text.contains(char::is_control);
    if is_plain && text.len() <= bytes_max {
        return Ok(text.to_owned());
    }
    Err(format!(
        "expected 1 to {bytes_max} bytes of text without control characters"
    ))
}
