//! The keyspace and its tables: numbered CQL files, each applied once and never changed.
//!
//! Only `migrate` applies them, one process at a time: a lease of the keyspace makes other
//! processes wait. Each statement is idempotent, so the next run completes a migration that was
//! interrupted.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, sleep};

use super::CassandraOptions;
use super::lease::CassandraLeases;
use super::records_move::move_rows;
use super::session::Cql;
use crate::lease::LeaseGuard;
use crate::{Error, Result};

/// The scope of all migrations. A separate server could get another scope.
const SCOPE: &str = "all";
const BOOTSTRAP: &str = include_str!("migrations/bootstrap.cql");
/// The maximum wait for other processes that change the schema.
const LOCK_TIMEOUT: Duration = Duration::from_secs(120);
const RETRY_INTERVAL: Duration = Duration::from_millis(300);

/// A migration.
#[derive(Debug, Clone, Copy)]
pub(super) struct Migration {
    version: i32,
    name: &'static str,
    text: &'static str,
}

/// After the statements of this migration, the rows of earlier tables are moved.
const RECORD_STORE_VERSION: i32 = 7;

pub(super) const MIGRATIONS: &[Migration] = &[
    Migration {
        version: 1,
        name: "records",
        text: include_str!("migrations/V0001__records.cql"),
    },
    Migration {
        version: 2,
        name: "achievements",
        text: include_str!("migrations/V0002__achievements.cql"),
    },
    Migration {
        version: 3,
        name: "earlier_roots",
        text: include_str!("migrations/V0003__earlier_roots.cql"),
    },
    Migration {
        version: 4,
        name: "counts",
        text: include_str!("migrations/V0004__counts.cql"),
    },
    Migration {
        version: 5,
        name: "erasures",
        text: include_str!("migrations/V0005__erasures.cql"),
    },
    Migration {
        version: 6,
        name: "reconciliations",
        text: include_str!("migrations/V0006__reconciliations.cql"),
    },
    Migration {
        version: RECORD_STORE_VERSION,
        name: "record_store",
        text: include_str!("migrations/V0007__record_store.cql"),
    },
];

/// The placeholder for the ending of a view's table names. A statement with it is run for each view
/// whose table lacks the column that it adds.
const VIEW_PLACEHOLDER: &str = "{view}";

impl Migration {
    /// Returns the checksum of its text, which reveals a changed file.
    fn checksum(&self) -> String {
        format!("{:08x}", crc32fast::hash(self.text.as_bytes()))
    }
}

/// Splits a file into statements.
fn split_statements(text: &str) -> Vec<String> {
    let code = text.lines().filter(|line| !line.starts_with("--"));
    let code = code.collect::<Vec<_>>().join("\n");
    let statements = code.split(';').map(str::trim);
    let statements = statements.filter(|statement| !statement.is_empty());
    statements.map(str::to_owned).collect()
}

/// Reads name and checksum of the applied migrations by version; empty before the first `migrate`.
async fn read_applied(cql: &Cql, keyspace: &str) -> Result<BTreeMap<i32, (String, String)>> {
    let operation = "reading which migrations are applied";
    let text = "SELECT table_name FROM system_schema.tables
                 WHERE keyspace_name = ? AND table_name = 'schema_migrations'";
    if cql.read(operation, text, (keyspace,)).await?.rows_num() == 0 {
        return Ok(BTreeMap::new());
    }
    let text = "SELECT version, name, checksum FROM schema_migrations WHERE scope = ?";
    type Row = (i32, Option<String>, Option<String>);
    let statement = cql.prepare_serial(operation, text).await?;
    let rows: Vec<Row> = cql.fetch_all(operation, &statement, &(SCOPE,)).await?;
    let applied = rows.into_iter().map(|(version, name, checksum)| {
        let text = (name.unwrap_or_default(), checksum.unwrap_or_default());
        (version, text)
    });
    Ok(applied.collect())
}

/// Returns problems of the keyspace; none if every migration is applied and unchanged.
pub(super) async fn diagnostics(cql: &Cql, keyspace: &str) -> Result<Vec<String>> {
    let applied = read_applied(cql, keyspace).await?;
    let mut diagnostics = find_changed(&applied, keyspace, MIGRATIONS);
    let missing = MIGRATIONS
        .iter()
        .filter(|migration| !applied.contains_key(&migration.version));
    let missing: Vec<&str> = missing.map(|migration| migration.name).collect();
    if !missing.is_empty() {
        diagnostics.push(format!(
            "the keyspace {keyspace} lacks the migrations {}: run `backstitch migrate`",
            missing.join(", ")
        ));
    }
    Ok(diagnostics)
}

/// Reports applied migrations that differ from those of this program.
fn find_changed(
    applied: &BTreeMap<i32, (String, String)>,
    keyspace: &str,
    migrations: &[Migration],
) -> Vec<String> {
    let mut diagnostics = Vec::new();
    for (version, (name, checksum)) in applied {
        let known = migrations.iter().find(|known| known.version == *version);
        match known {
            None => diagnostics.push(format!(
                "the keyspace {keyspace} has the migration {version} ({name}) of a newer version of \
                 Backstitch: use that one"
            )),
            Some(known) if known.checksum() != *checksum => diagnostics.push(format!(
                "the migration {version} ({name}) was changed after it was applied to the keyspace \
                 {keyspace} (its checksum was {checksum} and is {}): use the version of Backstitch \
                 that it was applied with",
                known.checksum()
            )),
            Some(_) => {}
        }
    }
    diagnostics
}

/// Creates the keyspace if it does not exist, and returns whether it was created.
async fn create_keyspace(cql: &Cql, options: &CassandraOptions, keyspace: &str) -> Result<bool> {
    if cql.use_keyspace(keyspace).await? {
        return Ok(false);
    }
    let operation = format!("creating the keyspace {keyspace}");
    let replication = if options.replication.is_empty() {
        let mut replication = default_replication(cql, options).await?;
        if has_tablets(cql).await? {
            // Many versions do not support lightweight transactions with tablets.
            replication.push_str(" AND tablets = {'enabled': false}");
        }
        replication
    } else {
        options.replication.clone()
    };
    let text = format!("CREATE KEYSPACE IF NOT EXISTS {keyspace} WITH replication = {replication}");
    cql.run_ddl(&operation, &text).await?;
    // A node may learn of the keyspace a moment later.
    let deadline = Instant::now() + LOCK_TIMEOUT;
    while !cql.use_keyspace(keyspace).await? {
        if Instant::now() > deadline {
            return Err(cql
                .retry_policy()
                .unavailable(&operation, "no node has the new keyspace"));
        }
        sleep(RETRY_INTERVAL).await;
    }
    Ok(true)
}

/// Returns whether the servers are ScyllaDB with tablets: only then does this system table have the
/// column.
async fn has_tablets(cql: &Cql) -> Result<bool> {
    let operation = "checking for tablets";
    let text = "SELECT column_name FROM system_schema.columns
                WHERE keyspace_name = 'system_schema' AND table_name = 'scylla_keyspaces'
                AND column_name = 'initial_tablets'";
    Ok(cql.read(operation, text, ()).await?.rows_num() > 0)
}

async fn default_replication(cql: &Cql, options: &CassandraOptions) -> Result<String> {
    let state = cql.session().await?.get_cluster_state();
    let nodes = state.get_nodes_info();
    if let [_] = nodes {
        return Ok("{'class': 'SimpleStrategy', 'replication_factor': 1}".to_owned());
    }
    let mut centers: Vec<&str> = nodes
        .iter()
        .filter_map(|node| node.datacenter.as_deref())
        .collect();
    centers.sort_unstable();
    centers.dedup();
    let center = match (options.local_datacenter.as_str(), centers.as_slice()) {
        ("", [only]) => *only,
        ("", _) => {
            return Err(cql.broken(
                "choosing the replication",
                format!(
                    "the cluster has the data centers {}; set `local_datacenter` or `replication`",
                    centers.join(", ")
                ),
            ));
        }
        (named, _) if centers.contains(&named) => named,
        (named, _) => {
            return Err(cql.broken(
                "choosing the replication",
                format!(
                    "the data center {named:?} does not exist; the cluster has {}",
                    centers.join(", ")
                ),
            ));
        }
    };
    let center = center.replace('\'', "''");
    Ok(format!(
        "{{'class': 'NetworkTopologyStrategy', '{center}': 3}}"
    ))
}

/// Applies missing migrations, and returns whether there were any. It is idempotent, and several
/// processes may call it at once.
pub(super) async fn migrate(
    cql: &Arc<Cql>,
    leases: &CassandraLeases,
    options: &CassandraOptions,
    keyspace: &str,
) -> Result<bool> {
    let is_created = create_keyspace(cql, options, keyspace).await?;
    for statement in split_statements(BOOTSTRAP) {
        cql.run_ddl("creating the tables of `migrate`", &statement)
            .await?;
    }
    let lease = lock(leases, "migrating").await?;
    let lost = lease.lost();
    let result = tokio::select! {
        result = apply(cql, keyspace) => result,
        () = lost.cancelled() => Err(Error::Unavailable {
            operation: cql.retry_policy().describe("migrating"),
            reason: lease.loss_reason().unwrap_or_default(),
        }),
    };
    lease.release().await;
    Ok(result? || is_created)
}

async fn apply(cql: &Arc<Cql>, keyspace: &str) -> Result<bool> {
    let applied = read_applied(cql, keyspace).await?;
    if let Some(problem) = find_changed(&applied, keyspace, MIGRATIONS)
        .into_iter()
        .next()
    {
        return Err(Error::Broken {
            operation: cql.retry_policy().describe("migrating"),
            reason: problem,
        });
    }
    let mut has_applied = false;
    for migration in MIGRATIONS {
        if applied.contains_key(&migration.version) {
            continue;
        }
        has_applied = true;
        let operation = format!("applying the migration {}", migration.name);
        for statement in split_statements(migration.text) {
            for statement in expand_for_views(cql, keyspace, &operation, statement).await? {
                cql.run_ddl(&operation, &statement).await?;
            }
        }
        if migration.version == RECORD_STORE_VERSION {
            move_rows(cql, keyspace).await?;
        }
        record_migration(cql, &operation, migration).await?;
    }
    Ok(has_applied)
}

/// Returns a statement unchanged, or one for each view whose table lacks the column that it adds.
/// No views are created meanwhile, because that needs the same lock.
async fn expand_for_views(
    cql: &Cql,
    keyspace: &str,
    operation: &str,
    statement: String,
) -> Result<Vec<String>> {
    let Some((table, column)) = added_column(&statement) else {
        return Ok(vec![statement]);
    };
    let text = "SELECT table_name, column_name FROM system_schema.columns WHERE keyspace_name = ?";
    let text = cql.prepare(operation, text).await?;
    let mut has_column: BTreeMap<String, bool> = BTreeMap::new();
    let columns: Vec<(String, String)> = cql.fetch_all(operation, &text, &(keyspace,)).await?;
    for (name, column_name) in &columns {
        if let Some(view) = name.strip_prefix(table) {
            *has_column.entry(view.to_owned()).or_default() |= column_name == column;
        }
    }
    let views_without_column = has_column.into_iter().filter(|(_, has_column)| !has_column);
    Ok(views_without_column
        .map(|(view, _)| statement.replace(VIEW_PLACEHOLDER, &view))
        .collect())
}

/// Returns the prefix of the tables to which a statement adds a column for each view, and the first
/// column that it adds.
fn added_column(statement: &str) -> Option<(&str, &str)> {
    let (before, after) = statement.split_once(VIEW_PLACEHOLDER)?;
    let table = before.rsplit(char::is_whitespace).next()?;
    let columns = after.trim_start().strip_prefix("ADD (")?;
    Some((table, columns.split_whitespace().next()?))
}

/// Records that a migration is applied. Only the holder of the lock calls it, so it is idempotent.
async fn record_migration(cql: &Cql, operation: &str, migration: &Migration) -> Result<()> {
    let text = "INSERT INTO schema_migrations (scope, version, name, checksum)
                VALUES (?, ?, ?, ?) IF NOT EXISTS";
    let checksum = migration.checksum();
    let values = (SCOPE, migration.version, migration.name, &checksum);
    cql.compare_and_set_until_known(operation, text, values)
        .await
        .map(drop)
}

/// Waits for the lock of the schema, so that one process at a time changes it.
pub(super) async fn lock(leases: &CassandraLeases, operation: &str) -> Result<Box<dyn LeaseGuard>> {
    let deadline = Instant::now() + LOCK_TIMEOUT;
    loop {
        match leases.acquire_named("schema", operation).await? {
            Ok(lease) => return Ok(lease),
            Err(holder) if Instant::now() > deadline => {
                let operation_text = format!("{operation}: waiting for the lock of the schema");
                let reason = format!("another process holds it: {holder}");
                return Err(Error::Unavailable {
                    operation: operation_text,
                    reason,
                });
            }
            Err(_) => sleep(RETRY_INTERVAL).await,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_split_into_statements() {
        let statements =
            split_statements("-- a comment; with a semicolon\nCREATE a;\n\nCREATE\n  b;\n");
        assert_eq!(statements, ["CREATE a", "CREATE\n  b"]);
        for migration in MIGRATIONS {
            for statement in split_statements(migration.text) {
                let is_repeatable = statement.contains("IF NOT EXISTS");
                assert!(
                    is_repeatable || added_column(&statement).is_some(),
                    "{statement}"
                );
            }
        }
    }

    #[test]
    fn parses_columns_added_to_tables_of_views() {
        let statement = "ALTER TABLE heads_{view}\n    ADD (a bigint, b blob)";
        assert_eq!(added_column(statement), Some(("heads_", "a")));
        assert_eq!(added_column("CREATE TABLE heads (a bigint)"), None);
    }

    #[test]
    fn reports_changed_migrations() {
        let applied = |version, checksum: &str| {
            BTreeMap::from([(version, ("records".to_owned(), checksum.to_owned()))])
        };
        let right = MIGRATIONS[0].checksum();
        assert!(find_changed(&applied(1, &right), "k", MIGRATIONS).is_empty());
        let diagnostics = find_changed(&applied(1, "00000000"), "k", MIGRATIONS);
        assert!(
            diagnostics[0].contains("was changed after"),
            "{diagnostics:?}"
        );
        let diagnostics = find_changed(&applied(99, &right), "k", MIGRATIONS);
        assert!(diagnostics[0].contains("newer version"), "{diagnostics:?}");
    }
}
