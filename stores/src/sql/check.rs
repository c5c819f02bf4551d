//! Making the schema, and telling what is wrong with it.
//!
//! Migrations are numbered, checked in, and kept with their checksums in the table
//! `_sqlx_migrations` of the schema. Only `migrate` applies them, under a lock.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::time::Duration;

use sqlx::SqlSafeStr;
use sqlx::migrate::{MigrateError, Migration, MigrationType, Migrator};
use tokio::time::timeout;

use super::SqlServer;
use super::connection::{OwnedConnection, Sql, SqlConnection, in_time};
use super::database::{Purpose, sql_call};
use super::fault::{Meaning, meaning};
#[cfg(feature = "mysql")]
use super::mysql;
#[cfg(feature = "postgres")]
use super::postgres;
use super::server::Server;
use super::{counters, view_columns};
use crate::{Error, Result};

/// Large tables may take their time.
const MIGRATE_FOR: Duration = Duration::from_secs(3600);

const OPENING: &str = "opening the canonical store";
const MIGRATING: &str = "making the schema";
const COUNTING: &str = "counting connected athletes";

/// So many applications whose counters are wrong are named.
const NAMED: i64 = 10;

/// The tables; a column of each, and what is written of a whole row: of some the server gives numbers.
const TABLES: [(&str, &str, &str); 17] = [
    ("efforts", "version", "*"),
    ("athletes", "version", "*"),
    ("disqualified", "athlete_id", "*"),
    ("clubs", "version", "*"),
    ("follows", "version", "*"),
    ("authorizations", "version", "*"),
    ("applications", "version", "*"),
    ("connected", "athletes", "*"),
    ("connections", "live", "*"),
    ("unlimited", "application_id", "*"),
    (
        "application_audit",
        "reason",
        "application_id, at_ms, actor, action, value_before, value_after, owner_before, owner_after",
    ),
    (
        "capacity_requests",
        "reason",
        "application_id, athlete_capacity, asked_by, asked_at_ms, state",
    ),
    (
        "capacity_notices",
        "done",
        "application_id, threshold, athlete_capacity, connected, made_at_ms",
    ),
    ("recounts", "ticket", "*"),
    (
        "api_keys",
        "name",
        "id, name, scopes, digest, made_at_ms, made_by",
    ),
    (
        "admin_actions",
        "target",
        "id, at_ms, actor, action, target",
    ),
    ("names", "name", "*"),
];

fn migrations(server: SqlServer) -> Vec<Migration> {
    let of: &'static [super::Migration] = match server {
        #[cfg(feature = "postgres")]
        SqlServer::Postgres => postgres::MIGRATIONS,
        #[cfg(feature = "mysql")]
        SqlServer::MySql => mysql::MIGRATIONS,
        #[cfg(not(all(feature = "postgres", feature = "mysql")))]
        _ => &[],
    };
    let numbered = (1..).zip(of);
    let one = |(number, (name, text)): (i64, &super::Migration)| {
        let (name, text) = (Cow::Borrowed(*name), text.into_sql_str());
        Migration::new(number, name, MigrationType::Simple, text, false)
    };
    numbered.map(one).collect()
}

/// A migration that was applied: its number, its checksum and whether it went well.
type AppliedRow = (i64, Vec<u8>, bool);

async fn applied(connection: &mut SqlConnection<'_>) -> Sql<Vec<AppliedRow>> {
    let statement = "SELECT version, checksum, success FROM _sqlx_migrations ORDER BY version";
    connection.rows(statement, &[]).await
}

/// What speaks against using the schema as it is.
fn stands_against(known: &[Migration], applied: &[AppliedRow]) -> Option<String> {
    for (number, checksum, went_well) in applied {
        let Some(known) = known.iter().find(|known| known.version == *number) else {
            return Some(format!(
                "the schema is newer (migration {number}) than this program; install the newer version"
            ));
        };
        if *known.checksum != **checksum {
            return Some(format!(
                "migration {number} was applied in another form than this program has; use the program that made the schema, or make it anew and apply all rows again"
            ));
        }
        if !went_well {
            return Some(format!(
                "migration {number} was broken off; run `backstitch migrate` again"
            ));
        }
    }
    if applied.len() < known.len() {
        let at = applied.last().map_or(0, |row| row.0);
        return Some(format!(
            "the schema is older (migration {at}) than this program; run `backstitch migrate`"
        ));
    }
    None
}

/// Looks whether the schema can be used; answers the names that are views.
pub(crate) async fn opened(server: &Server) -> Result<BTreeSet<String>> {
    let known = migrations(server.options.server);
    let (applied, views, flaws) = server
        .read(OPENING, sql_call!(connection => look(connection)))
        .await?;
    let unreadable = (!flaws.is_empty()).then(|| flaws.join("; "));
    if let Some(why) = stands_against(&known, &applied).or(unreadable) {
        return Err(Error::broken(format!("{OPENING} ({})", server.name()), why));
    }
    Ok(views)
}

async fn look(
    connection: &mut SqlConnection<'_>,
) -> Sql<(Vec<AppliedRow>, BTreeSet<String>, Vec<String>)> {
    let applied = applied(connection).await?;
    let (views, flaws) = view_columns::views(connection).await?;
    Ok((applied, views, flaws))
}

/// Brings the schema to this version; answers whether there was anything to do.
pub(crate) async fn migrate(server: &Server) -> Result<bool> {
    let known = migrations(server.options.server);
    let mut own = server
        .tried(MIGRATING, || server.connect(Purpose::Migrate))
        .await?;
    let migrating = async {
        make_schema(&mut own, &server.schema).await?;
        let before = applied(&mut own.borrow()).await.map_or(0, |rows| {
            rows.iter().filter(|(.., went_well)| *went_well).count()
        });
        let migrator = Migrator::with_migrations(known.clone());
        match &mut own {
            #[cfg(feature = "postgres")]
            OwnedConnection::Postgres(connection) => {
                migrator.run_direct(None, connection, false).await?
            }
            #[cfg(feature = "mysql")]
            OwnedConnection::MySql(connection) => {
                mysql::lock_schema(connection, &server.schema, MIGRATE_FOR).await?;
                let mut migrator = migrator;
                migrator.set_locking(false);
                migrator.run_direct(None, connection, false).await?;
            }
        }
        Ok(before < known.len())
    };
    let migrating = in_time(MIGRATE_FOR, async { Ok(migrating.await) });
    let done = migrating.await.map_err(MigrateError::from);
    let done: std::result::Result<bool, MigrateError> = done.and_then(|done| done);
    done.map_err(|error| match error {
        MigrateError::Execute(error) | MigrateError::ExecuteMigration(error, _) => {
            server.fault(MIGRATING, &error)
        }
        MigrateError::VersionMissing(number) => Error::broken(
            format!("{MIGRATING} ({})", server.name()),
            format!("the schema is newer (migration {number}) than this program"),
        ),
        error => Error::broken(format!("{MIGRATING} ({})", server.name()), error),
    })
}

/// Makes the schema itself, if it is not there. Two may do so at once: one of them fails, and finds
/// it there.
async fn make_schema(own: &mut OwnedConnection, schema: &str) -> Sql<()> {
    let statement = match own {
        #[cfg(feature = "postgres")]
        OwnedConnection::Postgres(_) => format!("CREATE SCHEMA IF NOT EXISTS \"{schema}\""),
        #[cfg(feature = "mysql")]
        OwnedConnection::MySql(_) => format!(
            "CREATE DATABASE IF NOT EXISTS `{schema}` CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;
             USE `{schema}`"
        ),
    };
    let mut connection = own.borrow();
    match connection.raw(&statement).await {
        Err(error) if meaning(&error) == Meaning::Later => connection.raw(&statement).await,
        done => done,
    }
}

/// What is wrong, in sentences.
pub(crate) async fn flaws(server: &Server) -> Result<Vec<String>> {
    let told = |why: String| format!("{}: {why}", server.name());
    let wait = Duration::from_millis(server.options.request_timeout_ms);
    let connected = server.connect(Purpose::Calls).await;
    let mut own = match connected {
        Ok(own) => own,
        Err(error) => return Ok(vec![server.fault("connecting", &error).to_string()]),
    };
    let asking = async {
        let mut flaws = match &mut own {
            #[cfg(feature = "postgres")]
            OwnedConnection::Postgres(connection) => postgres::flaws(connection).await?,
            #[cfg(feature = "mysql")]
            OwnedConnection::MySql(connection) => mysql::flaws(connection).await?,
        };
        let mut connection = own.borrow();
        match applied(&mut connection).await {
            Ok(applied) => {
                let stands = stands_against(&migrations(server.options.server), &applied);
                if let Some(stands) = stands {
                    // What else is missing comes with the migrations.
                    flaws.push(stands);
                    return Ok(flaws);
                }
            }
            Err(error) if meaning(&error) == Meaning::NoSchema => {
                flaws.push("the schema is missing; run `backstitch migrate`".to_owned());
                return Ok(flaws);
            }
            Err(error) if meaning(&error) == Meaning::NoRight => {
                flaws.push(format!("{error}; give this user rights on the schema"));
                return Ok(flaws);
            }
            Err(error) => return Err(error),
        }
        let (views, unreadable) = view_columns::views(&mut connection).await?;
        flaws.extend(unreadable);
        flaws.extend(missing_rights(&mut connection, &views).await?);
        // Whoever may not read can't ask how it would be read either.
        if flaws.is_empty() {
            flaws.extend(view_columns::slow(&mut own, &views).await?);
        }
        if flaws.is_empty() && !views.contains("authorizations") {
            flaws.extend(miscounted(&mut own.borrow(), wait / 2).await?);
        }
        Ok(flaws)
    };
    match timeout(wait, asking).await {
        Ok(Ok(flaws)) => Ok(flaws.into_iter().map(told).collect()),
        Ok(Err(error)) => Ok(vec![server.fault("checking", &error).to_string()]),
        Err(_) => Ok(vec![told("it does not answer".to_owned())]),
    }
}

/// Which counters of connected athletes are wrong. With very many authorizations that may take longer
/// than somebody who checks wants to wait: then it is not told.
async fn miscounted(connection: &mut SqlConnection<'_>, wait: Duration) -> Sql<Option<String>> {
    let differing = match timeout(wait, counters::differing(connection, NAMED)).await {
        Ok(Err(error)) if meaning(&error) != Meaning::Later => return Err(error),
        Ok(Ok(differing)) => differing,
        Ok(Err(_)) | Err(_) => {
            tracing::warn!("counting authorizations takes too long; counters were not compared");
            return Ok(None);
        }
    };
    if differing.is_empty() {
        return Ok(None);
    }
    let ids: Vec<String> = differing.iter().map(i64::to_string).collect();
    Ok(Some(format!(
        "connected athletes are counted wrongly of the applications {}, since something changed authorizations without firing triggers (a foreign key's cascade on MySQL, or TRUNCATE), or the deletion of an athlete was not told of; run `backstitch migrate`, which counts them anew",
        ids.join(", ")
    )))
}

/// Counts connected athletes anew where the counters are wrong; answers the applications.
pub(crate) async fn recount(server: &Server) -> Result<Vec<i64>> {
    let mut own = server
        .tried(COUNTING, || server.connect(Purpose::Migrate))
        .await?;
    let counting = async {
        make_schema(&mut own, &server.schema).await?;
        let mut connection = own.borrow();
        let (views, _) = view_columns::views(&mut connection).await?;
        if views.contains("authorizations") {
            return Ok(Vec::new());
        }
        let differing = counters::differing(&mut connection, i64::MAX).await?;
        for application in &differing {
            connection.raw("BEGIN").await?;
            counters::recount(&mut connection, *application).await?;
            connection.raw("COMMIT").await?;
        }
        Ok(differing)
    };
    let done = in_time(MIGRATE_FOR, counting).await;
    done.map_err(|error| server.fault(COUNTING, &error))
}

/// Rights that the user lacks, found by statements that change no row.
async fn missing_rights(
    connection: &mut SqlConnection<'_>,
    views: &BTreeSet<String>,
) -> Sql<Vec<String>> {
    let mut statements = vec![
        "DELETE FROM outbox WHERE 1 = 0".to_owned(),
        // Whoever locks rows has to be allowed to change them.
        "UPDATE outbox SET member = member WHERE 1 = 0".to_owned(),
        "INSERT INTO outbox (source, group_key, member, made_at_ms)
         SELECT source, group_key, member, made_at_ms FROM outbox WHERE 1 = 0"
            .to_owned(),
    ];
    for (table, column, written) in TABLES {
        statements.push(format!("SELECT 1 FROM {table} WHERE 1 = 0"));
        if !views.contains(table) {
            let into = match written {
                "*" => String::new(),
                columns => format!(" ({columns})"),
            };
            statements.push(format!(
                "UPDATE {table} SET {column} = {column} WHERE 1 = 0"
            ));
            statements.push(format!(
                "INSERT INTO {table}{into} SELECT {written} FROM {table} WHERE 1 = 0"
            ));
        }
    }
    statements.push("DELETE FROM unlimited WHERE 1 = 0".to_owned());
    for table in ["disqualified", "names"] {
        if !views.contains(table) {
            statements.push(format!("DELETE FROM {table} WHERE 1 = 0"));
        }
    }
    let mut flaws = Vec::new();
    for statement in statements {
        match connection.run(&statement, &[]).await {
            Ok(_) => {}
            Err(error) if meaning(&error) == Meaning::NoRight => {
                flaws.push(format!("{error}; give this user the right to"));
            }
            Err(error) if meaning(&error) == Meaning::NoSchema => {
                flaws.push(format!("{error}; make the view that was to take its place"));
            }
            Err(error) => return Err(error),
        }
    }
    flaws.dedup();
    Ok(flaws)
}
