//! `keys`: makes keys of the API, lists them and takes them back.

use anyhow::{Context as _, bail};
use schemas::access::Scopes;
use schemas::clock::Clock;
use schemas::shown::moment;
use serde::Serialize;
use stores::keys::{Action, ApiKey, KeptKey, Keys, Rotated, Token};

use super::Context;
use crate::args::KeysCommand;
use crate::clock::SystemClock;
use crate::failure::usage;
use crate::installation::Installation;

/// A key as it is printed.
#[derive(Debug, Serialize)]
struct Shown {
    id: String,
    name: String,
    scopes: Vec<String>,
    /// valid, expired or revoked.
    state: &'static str,
    created_at: String,
    created_by: String,
    expires_at: Option<String>,
    revoked_at: Option<String>,
    revoked_by: Option<String>,
    /// The key that took its place.
    replaced_by: Option<String>,
    /// To about a minute.
    last_used_at: Option<String>,
}

impl Shown {
    fn of(key: &ApiKey, now_ms: i64) -> Self {
        Self {
            id: key.id.clone(),
            name: key.name.clone(),
            scopes: key.scopes.iter().map(ToString::to_string).collect(),
            state: key.state(now_ms).name(),
            created_at: moment(key.made_at_ms),
            created_by: key.made_by.clone(),
            expires_at: key.expires_at_ms.map(moment),
            revoked_at: key.revoked_at_ms.map(moment),
            revoked_by: key.revoked_by.clone(),
            replaced_by: key.replaced_by.clone(),
            last_used_at: key.used_at_ms.map(moment),
        }
    }

    fn line(&self) -> String {
        let mut line = format!(
            "{}  {}  {}: {}",
            self.id,
            self.state,
            self.name.escape_debug(),
            self.scopes.join(", ")
        );
        if let Some(at) = &self.revoked_at {
            let by = self.revoked_by.as_deref().unwrap_or_default();
            line.push_str(&format!(", revoked at {at} by {}", by.escape_debug()));
        } else if let Some(at) = &self.expires_at {
            line.push_str(&format!(", until {at}"));
        }
        if let Some(other) = &self.replaced_by {
            line.push_str(&format!(", replaced by {other}"));
        }
        match &self.last_used_at {
            Some(at) => line.push_str(&format!(", last used at {at}")),
            None => line.push_str(", never used"),
        }
        line
    }
}

/// A key that was made, with what is shown once.
#[derive(Debug, Serialize)]
struct Made {
    /// The key itself.
    key: String,
    #[serde(flatten)]
    shown: Shown,
}

impl Made {
    fn of(token: &Token, kept: &KeptKey, now_ms: i64) -> Self {
        Self {
            key: token.reveal().to_owned(),
            shown: Shown::of(&kept.key, now_ms),
        }
    }

    fn text(&self) -> String {
        format!(
            "{}\nThis is the key; it is not shown again.\n{}",
            self.key,
            self.shown.line()
        )
    }
}

/// Something that an administrator did, as it is printed.
#[derive(Debug, Serialize)]
struct ActionShown {
    number: i64,
    at: String,
    by: String,
    action: String,
    target: String,
    detail: Option<String>,
}

impl ActionShown {
    fn of(action: Action) -> Self {
        Self {
            number: action.number,
            at: moment(action.at_ms),
            by: action.actor,
            action: action.action,
            target: action.target,
            detail: action.detail,
        }
    }

    fn line(&self) -> String {
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
    // The first thing that somebody does with a new installation may be to make a key.
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
            let expires = expires.map(|when| when.at_ms(now_ms));
            let scopes: Scopes = scopes.into_iter().collect();
            let (token, kept) = drawn((name, scopes), expires, by, now_ms)?;
            keys.add_key(&kept).await?;
            let made = Made::of(&token, &kept, now_ms);
            context.output().result(&made, Made::text)
        }
        KeysCommand::List { limit } => {
            let found = keys.keys(None, usize::try_from(limit)?).await?;
            let shown: Vec<Shown> = found.iter().map(|key| Shown::of(key, now_ms)).collect();
            let none = "no keys: only this machine is served, and needs none";
            context.output().list(&shown, none, Shown::line)
        }
        KeysCommand::Rotate {
            id,
            overlap,
            expires,
            by,
        } => {
            let found = keys.key(&id).await?;
            let found = found.with_context(|| unknown(&id))?;
            // Unless said, it lasts as long as the old one was meant to.
            let lasts_ms = |end: i64| end.saturating_sub(found.key.made_at_ms);
            let as_before = found.key.expires_at_ms.map(lasts_ms);
            let as_before = as_before.map(|lasts_ms| now_ms.saturating_add(lasts_ms));
            let of = (found.key.name, found.key.scopes);
            let expires = expires.map(|when| when.at_ms(now_ms)).or(as_before);
            let (token, kept) = drawn(of, expires, by, now_ms)?;
            let until_ms = now_ms.saturating_add(i64::from(overlap) * 3_600_000);
            rotated(keys.rotate_key(&id, until_ms, &kept).await?, &id, now_ms)?;
            let made = Made::of(&token, &kept, now_ms);
            context.output().result(&made, |made| {
                let until = moment(until_ms);
                format!(
                    "{}\nThe old one goes on until {until} at most.",
                    made.text()
                )
            })
        }
        KeysCommand::Revoke { id, by } => {
            let found = keys.revoke_key(&id, &by, now_ms).await?;
            let found = found.with_context(|| unknown(&id))?;
            let shown = Shown::of(&found, now_ms);
            context.output().result(&shown, Shown::line)
        }
        KeysCommand::Audit { limit } => audit(context, keys, usize::try_from(limit)?).await,
    }
}

async fn audit(context: &Context, keys: &dyn Keys, limit: usize) -> anyhow::Result<()> {
    let found = keys.actions(None, limit).await?;
    let shown: Vec<ActionShown> = found.into_iter().map(ActionShown::of).collect();
    context
        .output()
        .list(&shown, "nothing yet", ActionShown::line)
}

/// A new key, which is not kept yet.
fn drawn(
    (name, scopes): (String, Scopes),
    expires_at_ms: Option<i64>,
    by: String,
    now_ms: i64,
) -> anyhow::Result<(Token, KeptKey)> {
    if expires_at_ms.is_some_and(|at| at <= now_ms) {
        return Err(usage("--expires: this moment is over; write a later one"));
    }
    let token = Token::draw();
    let key = ApiKey {
        id: token.id().to_owned(),
        name,
        scopes,
        made_at_ms: now_ms,
        made_by: by,
        expires_at_ms,
        revoked_at_ms: None,
        revoked_by: None,
        replaced_by: None,
        used_at_ms: None,
    };
    let digest = token.digest();
    Ok((token, KeptKey { key, digest }))
}

fn rotated(outcome: Rotated, id: &str, now_ms: i64) -> anyhow::Result<()> {
    match outcome {
        Rotated::Done(_) => Ok(()),
        Rotated::Over(key) => match key.replaced_by {
            Some(other) => bail!("key {id}: {other} took its place already; rotate that one"),
            None => bail!(
                "key {id}: it is {}; make a new one (backstitch keys create)",
                key.state(now_ms).name()
            ),
        },
        Rotated::Unknown => bail!(unknown(id)),
    }
}

fn unknown(id: &str) -> String {
    format!("key {id}: there is none; see `backstitch keys list`")
}
