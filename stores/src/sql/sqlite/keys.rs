//! The database of API keys.

use crate::embedded::db::{DatabaseSpec, Upgrade};

pub(in crate::sql) static KEYS: DatabaseSpec = DatabaseSpec {
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
    is_replaceable: false,
    page_bytes: 4096,
    cache_kib: 1024,
    readers: 2,
    row_buffer: 128,
    remedy: "stop every process that uses this folder and restore keys.db from a backup; without one, \
             delete it and create new keys",
};

#[cfg(test)]
mod tests {
    use std::path::Path;

    use sqlx::sqlite::SqliteConnectOptions;
    use sqlx::{ConnectOptions, Connection};

    use super::*;
    use crate::keys::{AdminAction, Keys};
    use crate::sql::ApiKeyStore;

    /// Downgrades a file to version 1, in which actions have no ids.
    async fn downgrade_to_1(folder: &Path) -> Result<(), sqlx::Error> {
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
    async fn upgrade_preserves_recorded_actions() {
        let folder = tempfile::tempdir().expect("a folder");
        std::fs::create_dir(folder.path().join(crate::embedded::db::LOCKS)).expect("a folder");
        let action = |target: &str| AdminAction {
            number: 0,
            at_ms: 1,
            actor: "a".to_owned(),
            action: "replay".to_owned(),
            target: target.to_owned(),
            detail: None,
        };
        let keys = ApiKeyStore::open_file(folder.path())
            .await
            .expect("a new file");
        keys.record_action(&action("old")).await.expect("recording");
        drop(keys);
        downgrade_to_1(folder.path()).await.expect("an older file");
        for count in 2..4 {
            let keys = ApiKeyStore::open_file(folder.path())
                .await
                .expect("opening");
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
