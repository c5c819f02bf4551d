//! The keyspace and its tables: numbered files of CQL, each applied once and never changed.
//!
//! They are applied by `migrate` alone, one process at a time: a lease of the keyspace keeps others
//! waiting. Each statement may be repeated, so that a migration that died is finished by the next.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, sleep};

use super::CassandraOptions;
use super::lease::CassandraLeases;
use super::records_move::move_rows;
use super::session::Cql;
use crate::lease::Held;
use crate::{Error, Result};

/// All are applied in this scope; another one may come with a server of its own.
const SCOPE: &str = "all";
const BOOTSTRAP: &str = include_str!("migrations/bootstrap.cql");
/// Others that change the schema are waited for.
const WAIT: Duration = Duration::from_secs(120);
const LOOK_AGAIN: Duration = Duration::from_millis(300);

/// A migration.
#[derive(Debug, Clone, Copy)]
pub(super) struct Migration {
    version: i32,
    name: &'static str,
    text: &'static str,
}

/// The migration after whose statements the rows of earlier tables are moved.
const RECORD_STORE: i32 = 7;

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
        version: RECORD_STORE,
        name: "record_store",
        text: include_str!("migrations/V0007__record_store.cql"),
    },
];

/// In a migration, what the names of a view's tables end in: such a statement is one for each view that
/// has a table of that name without the column that it adds.
const VIEW: &str = "{view}";

impl Migration {
    /// The checksum of its text, without which a changed file would go unnoticed.
    fn checksum(&self) -> String {
        format!("{:08x}", crc32fast::hash(self.text.as_bytes()))
    }
}

/// The statements of a file.
fn statements(text: &str) -> Vec<String> {
    let code = text.lines().filter(|line| !line.starts_with("--"));
    let code = code.collect::<Vec<_>>().join("\n");
    let statements = code.split(';').map(str::trim);
    let statements = statements.filter(|statement| !statement.is_empty());
    statements.map(str::to_owned).collect()
}

/// What is applied, by version: name and checksum. Nothing where nobody has migrated yet.
async fn applied(cql: &Cql, keyspace: &str) -> Result<BTreeMap<i32, (String, String)>> {
    let doing = "reading which migrations are applied";
    let there = "SELECT table_name FROM system_schema.tables
                 WHERE keyspace_name = ? AND table_name = 'schema_migrations'";
    if cql.read(doing, there, (keyspace,)).await?.rows_num() == 0 {
        return Ok(BTreeMap::new());
    }
    let text = "SELECT version, name, checksum FROM schema_migrations WHERE scope = ?";
    type Row = (i32, Option<String>, Option<String>);
    let statement = cql.prepare_serial(doing, text).await?;
    let rows: Vec<Row> = cql.all(doing, &statement, &(SCOPE,)).await?;
    let applied = rows.into_iter().map(|(version, name, checksum)| {
        let text = (name.unwrap_or_default(), checksum.unwrap_or_default());
        (version, text)
    });
    Ok(applied.collect())
}

/// What is wrong with the keyspace: nothing if every migration is applied as it is here.
pub(super) async fn flaws(cql: &Cql, keyspace: &str) -> Result<Vec<String>> {
    let applied = applied(cql, keyspace).await?;
    let mut flaws = changed(&applied, keyspace, MIGRATIONS);
    let missing = MIGRATIONS
        .iter()
        .filter(|migration| !applied.contains_key(&migration.version));
    let missing: Vec<&str> = missing.map(|migration| migration.name).collect();
    if !missing.is_empty() {
        flaws.push(format!(
            "the keyspace {keyspace} lacks the migrations {}: run `backstitch migrate`",
            missing.join(", ")
        ));
    }
    Ok(flaws)
}

/// Migrations that are applied and not as they are here.
fn changed(
    applied: &BTreeMap<i32, (String, String)>,
    keyspace: &str,
    migrations: &[Migration],
) -> Vec<String> {
    let mut flaws = Vec::new();
    for (version, (name, checksum)) in applied {
        let known = migrations.iter().find(|known| known.version == *version);
        match known {
            None => flaws.push(format!(
                "the keyspace {keyspace} has the migration {version} ({name}) of a newer version of \
                 Backstitch: use that one"
            )),
            Some(known) if known.checksum() != *checksum => flaws.push(format!(
                "the migration {version} ({name}) was changed after it was applied to the keyspace \
                 {keyspace} (its checksum was {checksum} and is {}): use the version of Backstitch \
                 that it was applied with",
                known.checksum()
            )),
            Some(_) => {}
        }
    }
    flaws
}

/// Makes the keyspace, unless it is there; answers whether it was made.
async fn make_keyspace(cql: &Cql, options: &CassandraOptions, keyspace: &str) -> Result<bool> {
    if cql.use_keyspace(keyspace).await? {
        return Ok(false);
    }
    let doing = format!("making the keyspace {keyspace}");
    let replication = if options.replication.is_empty() {
        let mut replication = default_replication(cql, options).await?;
        if has_tablets(cql).await? {
            // Many versions have no lightweight transactions on them.
            replication.push_str(" AND tablets = {'enabled': false}");
        }
        replication
    } else {
        options.replication.clone()
    };
    let text = format!("CREATE KEYSPACE IF NOT EXISTS {keyspace} WITH replication = {replication}");
    cql.define(&doing, &text).await?;
    // A node may hear of it a moment later.
    let deadline = Instant::now() + WAIT;
    while !cql.use_keyspace(keyspace).await? {
        if Instant::now() > deadline {
            return Err(cql.patience().unavailable(&doing, "no node tells of it"));
        }
        sleep(LOOK_AGAIN).await;
    }
    Ok(true)
}

/// Whether the servers are of a ScyllaDB that knows tablets: what is recorded of them is a column of
/// a table that no other server has.
async fn has_tablets(cql: &Cql) -> Result<bool> {
    let doing = "looking whether keyspaces may have tablets";
    let text = "SELECT column_name FROM system_schema.columns
                WHERE keyspace_name = 'system_schema' AND table_name = 'scylla_keyspaces'
                AND column_name = 'initial_tablets'";
    Ok(cql.read(doing, text, ()).await?.rows_num() > 0)
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
                    "there are the data centers {}; set `local_datacenter` or `replication`",
                    centers.join(", ")
                ),
            ));
        }
        (named, _) if centers.contains(&named) => named,
        (named, _) => {
            return Err(cql.broken(
                "choosing the replication",
                format!(
                    "there is no data center {named:?}; there are {}",
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

/// Applies what is not applied yet; answers whether there was anything. It may be done again, and by
/// several at once.
pub(super) async fn migrate(
    cql: &Arc<Cql>,
    leases: &CassandraLeases,
    options: &CassandraOptions,
    keyspace: &str,
) -> Result<bool> {
    let made = make_keyspace(cql, options, keyspace).await?;
    for statement in statements(BOOTSTRAP) {
        cql.define("making the tables of `migrate`", &statement)
            .await?;
    }
    let held = lock(leases, "migrating").await?;
    let lost = held.lost();
    let done = tokio::select! {
        done = apply(cql, keyspace) => done,
        () = lost.cancelled() => Err(Error::Unavailable {
            what: cql.patience().what("migrating"),
            why: held.why_lost().unwrap_or_default(),
        }),
    };
    held.let_go().await;
    Ok(done? || made)
}

async fn apply(cql: &Arc<Cql>, keyspace: &str) -> Result<bool> {
    let applied = applied(cql, keyspace).await?;
    if let Some(flaw) = changed(&applied, keyspace, MIGRATIONS).into_iter().next() {
        return Err(Error::Broken {
            what: cql.patience().what("migrating"),
            why: flaw,
        });
    }
    let mut any = false;
    for migration in MIGRATIONS {
        if applied.contains_key(&migration.version) {
            continue;
        }
        any = true;
        let doing = format!("applying the migration {}", migration.name);
        for statement in statements(migration.text) {
            for statement in for_views(cql, keyspace, &doing, statement).await? {
                cql.define(&doing, &statement).await?;
            }
        }
        if migration.version == RECORD_STORE {
            move_rows(cql, keyspace).await?;
        }
        note(cql, &doing, migration).await?;
    }
    Ok(any)
}

/// A statement as it is, or one for each view whose table lacks the column that it adds. Views are not
/// made meanwhile: that takes the same lock.
async fn for_views(
    cql: &Cql,
    keyspace: &str,
    doing: &str,
    statement: String,
) -> Result<Vec<String>> {
    let Some((table, column)) = added(&statement) else {
        return Ok(vec![statement]);
    };
    let text = "SELECT table_name, column_name FROM system_schema.columns WHERE keyspace_name = ?";
    let text = cql.prepare(doing, text).await?;
    let mut has: BTreeMap<String, bool> = BTreeMap::new();
    let columns: Vec<(String, String)> = cql.all(doing, &text, &(keyspace,)).await?;
    for (name, of_it) in &columns {
        if let Some(view) = name.strip_prefix(table) {
            *has.entry(view.to_owned()).or_default() |= of_it == column;
        }
    }
    let lacking = has.into_iter().filter(|(_, has)| !has);
    Ok(lacking
        .map(|(view, _)| statement.replace(VIEW, &view))
        .collect())
}

/// How the names of the tables begin to which a statement adds a column for each view, and the first
/// column that it adds.
fn added(statement: &str) -> Option<(&str, &str)> {
    let (before, after) = statement.split_once(VIEW)?;
    let table = before.rsplit(char::is_whitespace).next()?;
    let columns = after.trim_start().strip_prefix("ADD (")?;
    Some((table, columns.split_whitespace().next()?))
}

/// Notes that a migration is applied. Only the holder of the lock does, so it may be done again.
async fn note(cql: &Cql, doing: &str, migration: &Migration) -> Result<()> {
    let text = "INSERT INTO schema_migrations (scope, version, name, checksum)
                VALUES (?, ?, ?, ?) IF NOT EXISTS";
    let checksum = migration.checksum();
    let values = (SCOPE, migration.version, migration.name, &checksum);
    cql.agree_again(doing, text, values).await.map(drop)
}

/// The lock of the schema: one process at a time changes it. Others are waited for.
pub(super) async fn lock(leases: &CassandraLeases, doing: &str) -> Result<Box<dyn Held>> {
    let deadline = Instant::now() + WAIT;
    loop {
        match leases.take("schema", doing).await? {
            Ok(held) => return Ok(held),
            Err(holder) if Instant::now() > deadline => {
                let what = format!("{doing}: waiting for the lock of the schema");
                let why = format!("somebody else holds it: {holder}");
                return Err(Error::Unavailable { what, why });
            }
            Err(_) => sleep(LOOK_AGAIN).await,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_cut_into_statements() {
        let found = statements("-- a comment; with a semicolon\nCREATE a;\n\nCREATE\n  b;\n");
        assert_eq!(found, ["CREATE a", "CREATE\n  b"]);
        for migration in MIGRATIONS {
            for statement in statements(migration.text) {
                let is_repeatable = statement.contains("IF NOT EXISTS");
                assert!(is_repeatable || added(&statement).is_some(), "{statement}");
            }
        }
    }

    #[test]
    fn what_is_added_to_the_tables_of_views_is_read() {
        let statement = "ALTER TABLE heads_{view}\n    ADD (a bigint, b blob)";
        assert_eq!(added(statement), Some(("heads_", "a")));
        assert_eq!(added("CREATE TABLE heads (a bigint)"), None);
    }

    #[test]
    fn changes_of_what_is_applied_are_found() {
        let applied = |version, checksum: &str| {
            BTreeMap::from([(version, ("records".to_owned(), checksum.to_owned()))])
        };
        let right = MIGRATIONS[0].checksum();
        assert!(changed(&applied(1, &right), "k", MIGRATIONS).is_empty());
        let flaws = changed(&applied(1, "00000000"), "k", MIGRATIONS);
        assert!(flaws[0].contains("was changed after"), "{flaws:?}");
        let flaws = changed(&applied(99, &right), "k", MIGRATIONS);
        assert!(flaws[0].contains("newer version"), "{flaws:?}");
    }
}
