//! Keys of the API, in `keys.db`.

use std::path::Path;

use async_trait::async_trait;
use sqlx::Connection;
use uuid::Uuid;

use super::canon_statement::Embedded;
use super::db::{BEGIN_WRITE, Db, Kind, Upgrade};
use crate::Result;
use crate::canon_sql::keys;
use crate::keys::{Action, ApiKey, KeptKey, Keys, Rotated};

static KEYS: Kind = Kind {
    name: "keys.db",
    version: 2,
    tables: "
        CREATE TABLE api_keys (
            number INTEGER PRIMARY KEY AUTOINCREMENT,
            id TEXT NOT NULL UNIQUE,
            name TEXT NOT NULL,
            scopes TEXT NOT NULL,
            digest TEXT NOT NULL,
            made_at_ms INTEGER NOT NULL,
            made_by TEXT NOT NULL,
            expires_at_ms INTEGER,
            revoked_at_ms INTEGER,
            revoked_by TEXT,
            replaced_by TEXT,
            used_at_ms INTEGER
        ) STRICT;
        CREATE TABLE admin_actions (
            number INTEGER PRIMARY KEY AUTOINCREMENT,
            at_ms INTEGER NOT NULL,
            actor TEXT NOT NULL,
            action TEXT NOT NULL,
            target TEXT NOT NULL,
            detail TEXT,
            id TEXT
        ) STRICT;
        CREATE UNIQUE INDEX admin_actions_by_id ON admin_actions (id);",
    upgrades: &[(
        1,
        Upgrade::Statements(
            "ALTER TABLE admin_actions ADD COLUMN id TEXT;
             CREATE UNIQUE INDEX admin_actions_by_id ON admin_actions (id);",
        ),
    )],
    replaceable: false,
    page_bytes: 4096,
    cache_kib: 1024,
    readers: 2,
    rows_ahead: 128,
    remedy: "stop every process of this folder and restore keys.db from a copy; without one, remove it \
             and make new keys",
};

/// The keys of a data folder.
#[derive(Debug)]
pub struct SqliteKeys {
    db: Db,
}

impl SqliteKeys {
    pub(super) async fn open(folder: &Path) -> Result<Self> {
        let db = Db::open(folder, &KEYS).await?;
        Ok(Self { db })
    }
}

/// Runs a call that reads.
macro_rules! read {
    ($this:ident, $doing:expr, $link:ident => $call:expr) => {{
        let db = $this.db.current().await?;
        let mut connection = db.reader().await?;
        let $link = &mut Embedded(&mut connection);
        $call.await.map_err(db.fault($doing))
    }};
}

/// Runs a call that writes, in one transaction.
macro_rules! write {
    ($this:ident, $link:ident => $call:expr) => {{
        let db = $this.db.current().await?;
        let fault = db.fault(keys::CHANGING);
        let mut connection = db.writer().await?;
        let mut tx = connection.begin_with(BEGIN_WRITE).await.map_err(fault)?;
        let $link = &mut Embedded(&mut tx);
        let done = $call.await.map_err(fault)?;
        tx.commit().await.map_err(fault)?;
        Ok(done)
    }};
}

#[async_trait]
impl Keys for SqliteKeys {
    async fn any_key(&self) -> Result<bool> {
        read!(self, keys::READING, link => keys::any(link))
    }

    async fn key(&self, id: &str) -> Result<Option<KeptKey>> {
        read!(self, keys::READING, link => keys::key(link, id))
    }

    async fn keys(&self, before: Option<&str>, limit: usize) -> Result<Vec<ApiKey>> {
        read!(self, keys::READING, link => keys::keys(link, before, limit))
    }

    async fn add_key(&self, key: &KeptKey) -> Result<()> {
        write!(self, link => keys::add(link, key))
    }

    async fn rotate_key(&self, id: &str, until_ms: i64, by: &KeptKey) -> Result<Rotated> {
        write!(self, link => keys::rotate(link, id, until_ms, by))
    }

    async fn revoke_key(&self, id: &str, by: &str, now_ms: i64) -> Result<Option<ApiKey>> {
        write!(self, link => keys::revoke(link, id, by, now_ms))
    }

    async fn key_used(&self, id: &str, at_ms: i64) -> Result<()> {
        write!(self, link => keys::used(link, id, at_ms))
    }

    async fn record_action(&self, action: &Action) -> Result<()> {
        let id = &Uuid::new_v4().to_string();
        write!(self, link => keys::record_once(link, id, action))
    }

    async fn actions(&self, before: Option<i64>, limit: usize) -> Result<Vec<Action>> {
        read!(self, keys::ACTIONS, link => keys::actions(link, before, limit))
    }
}

#[cfg(test)]
mod tests {
    use sqlx::ConnectOptions;
    use sqlx::sqlite::SqliteConnectOptions;

    use super::*;

    /// Makes of a file one as it was before actions had ids.
    async fn age(folder: &Path) -> Result<(), sqlx::Error> {
        let path = folder.join(KEYS.name);
        let mut file = SqliteConnectOptions::new().filename(path).connect().await?;
        sqlx::raw_sql(
            "DROP INDEX admin_actions_by_id; ALTER TABLE admin_actions DROP COLUMN id;
             PRAGMA user_version = 1;",
        )
        .execute(&mut file)
        .await?;
        file.close().await
    }

    #[tokio::test]
    async fn an_older_file_keeps_what_was_recorded() {
        let folder = tempfile::tempdir().expect("a folder");
        std::fs::create_dir(folder.path().join(super::super::db::LOCKS)).expect("a folder");
        let action = |target: &str| Action {
            number: 0,
            at_ms: 1,
            actor: "a".to_owned(),
            action: "replay".to_owned(),
            target: target.to_owned(),
            detail: None,
        };
        let keys = SqliteKeys::open(folder.path()).await.expect("a new file");
        keys.record_action(&action("old")).await.expect("recording");
        drop(keys);
        age(folder.path()).await.expect("an older file");
        for count in 2..4 {
            let keys = SqliteKeys::open(folder.path()).await.expect("opening");
            keys.record_action(&action("new")).await.expect("recording");
            let actions = keys.actions(None, 10).await.expect("reading");
            assert_eq!(actions.len(), count);
            assert_eq!(
                actions.last().map(|first| first.target.as_str()),
                Some("old")
            );
        }
    }
}
