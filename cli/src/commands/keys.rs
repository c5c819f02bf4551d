//! `keys`: creates, lists, rotates and revokes API keys.

use anyhow::{Context as _, bail};
use schemas::access::Scopes;
use schemas::clock::Clock;
use schemas::json_value::format_timestamp_ms;
use serde::Serialize;
use stores::keys::{AdminAction, ApiKey, ApiKeyRecord, Keys, RotateOutcome, Token};

use super::Context;
use crate::args::{Expiry, KeysCommand};
use crate::clock::SystemClock;
use crate::failure::usage_error;
use crate::installation::Installation;

/// A key in the output.
#[derive(Debug, Serialize)]
struct KeyEntry {
    id: String,
    name: String,
    scopes: Vec<String>,
    /// `valid`, `expired` or `revoked`.
    state: &'static str,
    created_at: String,
    created_by: String,
    expires_at: Option<String>,
    revoked_at: Option<String>,
    revoked_by: Option<String>,
    /// Id of the key that replaces it.
    replaced_by: Option<String>,
    /// Accurate to about a minute.
    last_used_at: Option<String>,
}

impl KeyEntry {
    fn new(key: &ApiKey, now_ms: i64) -> Self {
        Self {
            id: key.id.clone(),
            name: key.name.clone(),
            scopes: key.scopes.iter().map(ToString::to_string).collect(),
            state: key.state(now_ms).name(),
            created_at: format_timestamp_ms(key.created_at_ms),
            created_by: key.created_by.clone(),
            expires_at: key.expires_at_ms.map(format_timestamp_ms),
            revoked_at: key.revoked_at_ms.map(format_timestamp_ms),
            revoked_by: key.revoked_by.clone(),
            replaced_by: key.replaced_by.clone(),
            last_used_at: key.used_at_ms.map(format_timestamp_ms),
        }
    }

    fn format_line(&self) -> String {
        let mut line = format!(
            "{}  {}  {}: {}",
            self.id,
            self.state,
            self.name.escape_debug(),
            self.scopes.join(", ")
        );
        if let Some(time) = &self.revoked_at {
            let by = self.revoked_by.as_deref().unwrap_or_default();
            line.push_str(&format!(", revoked at {time} by {}", by.escape_debug()));
        } else if let Some(time) = &self.expires_at {
            line.push_str(&format!(", until {time}"));
        }
        if let Some(new_id) = &self.replaced_by {
            line.push_str(&format!(", replaced by {new_id}"));
        }
        match &self.last_used_at {
            Some(time) => line.push_str(&format!(", last used at {time}")),
            None => line.push_str(", never used"),
        }
        line
    }
}

/// A new key with its secret, which is shown once.
#[derive(Debug, Serialize)]
struct NewKey {
    /// The secret.
    key: String,
    #[serde(flatten)]
    entry: KeyEntry,
}

impl NewKey {
    fn new(token: &Token, stored: &ApiKeyRecord, now_ms: i64) -> Self {
        Self {
            key: token.reveal().to_owned(),
            entry: KeyEntry::new(&stored.key, now_ms),
        }
    }

    fn to_text(&self) -> String {
        format!(
            "{}\nThis is the key; it is not shown again.\n{}",
            self.key,
            self.entry.format_line()
        )
    }
}

/// An entry of the audit log in the output.
#[derive(Debug, Serialize)]
struct AuditLine {
    number: i64,
    at: String,
    by: String,
    action: String,
    target: String,
    detail: Option<String>,
}

impl From<AdminAction> for AuditLine {
    fn from(action: AdminAction) -> Self {
        Self {
            number: action.number,
            at: format_timestamp_ms(action.at_ms),
            by: action.actor,
            action: action.action,
            target: action.target,
            detail: action.detail,
        }
    }
}

impl AuditLine {
    fn format_line(&self) -> String {
        let detail = self.detail.as_ref().map_or_else(String::new, |detail| {
            format!(" ({})", detail.escape_debug())
        });
        format!(
            "{}  {}  {} {}{detail}",
            self.at,
            self.by.escape_debug(),
            self.action,
            self.target.escape_debug()
        )
    }
}

/// Runs the command.
pub(super) async fn run(command: KeysCommand, context: &Context) -> anyhow::Result<()> {
    // Creating a key may be the first command of a new installation.
    let installation = match command {
        KeysCommand::Create { .. } => Installation::open(context.settings()).await?,
        _ => Installation::open_existing(context.settings()).await?,
    };
    let keys = &*installation.stores().keys;
    let now_ms = SystemClock.now_ms();
    match command {
        KeysCommand::Create {
            scopes,
            name,
            expires,
            by,
        } => {
            let expires = expires.map(|expiry| expiry.to_time_ms(now_ms));
            let scopes: Scopes = scopes.into_iter().collect();
            let (token, record) = create_key(name, scopes, expires, by, now_ms)?;
            keys.add_key(&record).await?;
            let new_key = NewKey::new(&token, &record, now_ms);
            context.output().print_result(&new_key, NewKey::to_text)
        }
        KeysCommand::List { limit } => {
            let stored = keys.keys(None, usize::try_from(limit)?).await?;
            let entries: Vec<KeyEntry> = stored
                .iter()
                .map(|key| KeyEntry::new(key, now_ms))
                .collect();
            let empty_text = "no keys: only loopback requests are served, without authentication";
            context
                .output()
                .print_list(&entries, empty_text, KeyEntry::format_line)
        }
        KeysCommand::Rotate {
            id,
            overlap,
            expires,
            by,
        } => {
            let old = keys.key(&id).await?;
            let old = old.with_context(|| unknown_key(&id))?;
            // The default lifetime is that of the old key.
            let lifetime_ms = |end_ms: i64| end_ms.saturating_sub(old.key.created_at_ms);
            let default_expiry = old.key.expires_at_ms.map(lifetime_ms);
            let default_expiry =
                default_expiry.map(|lifetime_ms| now_ms.saturating_add(lifetime_ms));
            let expires = expires
                .map(|expiry| expiry.to_time_ms(now_ms))
                .or(default_expiry);
            let (token, record) = create_key(old.key.name, old.key.scopes, expires, by, now_ms)?;
            let until_ms = Expiry::After(overlap).to_time_ms(now_ms);
            check_rotation(keys.rotate_key(&id, until_ms, &record).await?, &id, now_ms)?;
            let new_key = NewKey::new(&token, &record, now_ms);
            context.output().print_result(&new_key, |new_key| {
                let until = format_timestamp_ms(until_ms);
                format!(
                    "{}\nThe old key is valid until {until} at the latest.",
                    new_key.to_text()
                )
            })
        }
        KeysCommand::Revoke { id, by } => {
            let revoked = keys.revoke_key(&id, &by, now_ms).await?;
            let revoked = revoked.with_context(|| unknown_key(&id))?;
            let entry = KeyEntry::new(&revoked, now_ms);
            context.output().print_result(&entry, KeyEntry::format_line)
        }
        KeysCommand::Audit { limit } => {
            print_audit_log(context, keys, usize::try_from(limit)?).await
        }
    }
}

async fn print_audit_log(context: &Context, keys: &dyn Keys, limit: usize) -> anyhow::Result<()> {
    let actions = keys.actions(None, limit).await?;
    let entries: Vec<AuditLine> = actions.into_iter().map(AuditLine::from).collect();
    context
        .output()
        .print_list(&entries, "no entries yet", AuditLine::format_line)
}

/// Creates a key, which is not stored yet.
fn create_key(
    name: String,
    scopes: Scopes,
    expires_at_ms: Option<i64>,
    by: String,
    now_ms: i64,
) -> anyhow::Result<(Token, ApiKeyRecord)> {
    if expires_at_ms.is_some_and(|time_ms| time_ms <= now_ms) {
        return Err(usage_error("--expires: the time is in the past"));
    }
    let token = Token::generate();
    let key = ApiKey {
        id: token.id().to_owned(),
        name,
        scopes,
        created_at_ms: now_ms,
        created_by: by,
        expires_at_ms,
        revoked_at_ms: None,
        revoked_by: None,
        replaced_by: None,
        used_at_ms: None,
    };
    let digest = token.digest();
    Ok((token, ApiKeyRecord { key, digest }))
}

fn check_rotation(outcome: RotateOutcome, id: &str, now_ms: i64) -> anyhow::Result<()> {
    match outcome {
        RotateOutcome::Done(_) => Ok(()),
        RotateOutcome::Inactive(key) => match key.replaced_by {
            Some(new_id) => bail!("key {id} was already replaced by {new_id}; rotate that one"),
            None => bail!(
                "key {id} is {}; create a new one (backstitch keys create)",
                key.state(now_ms).name()
            ),
        },
        RotateOutcome::Unknown => bail!(unknown_key(id)),
    }
}

fn unknown_key(id: &str) -> String {
    format!("key {id} does not exist; see `backstitch keys list`")
}
