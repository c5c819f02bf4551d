//! Creates and upgrades the schema, and diagnoses problems.
//!
//! Migrations are numbered files. The table `_sqlx_migrations` of the schema contains their
//! checksums. Only `migrate` applies them, under a lock.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::time::Duration;

use sqlx::SqlSafeStr;
use sqlx::migrate::{MigrateError, Migration, MigrationType, Migrator};
use tokio::time::timeout;

use super::connection::{ConnectionPurpose, OwnedConnection, Sql, SqlConnection, with_timeout};
use super::error_class::ErrorClass;
use super::errors::classify;
#[cfg(feature = "mysql")]
use super::mysql;
use super::pooled_connection::sql_call;
#[cfg(feature = "postgres")]
use super::postgres;
use super::server::Server;
use super::{SqlOptions, SqlServer, counters, migration, view_columns};
use crate::namespace::Namespace;
use crate::{Error, Result};

/// Migrations of large tables may take long.
const MIGRATE_TIMEOUT: Duration = Duration::from_secs(3600);

const OPENING: &str = "opening the entity store";
const MIGRATING: &str = "migrating the schema of the entity store";
const COUNTING: &str = "recounting connected athletes";

/// Upper limit of the applications with wrong counters that a message names.
const LISTED_APPLICATIONS_MAX: i64 = 10;

/// The tables with one of their columns, and the columns that an insert writes: all, unless the
/// server assigns some.
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

fn list_migrations(server: SqlServer) -> Vec<Migration> {
    let files: &'static [migration::Migration] = match server {
        #[cfg(feature = "postgres")]
        SqlServer::Postgres => postgres::MIGRATIONS,
        #[cfg(feature = "mysql")]
        SqlServer::MySql => mysql::MIGRATIONS,
        #[cfg(not(all(feature = "postgres", feature = "mysql")))]
        _ => &[],
    };
    let numbered = (1..).zip(files);
    let migration = |(number, (name, text)): (i64, &migration::Migration)| {
        let (name, text) = (Cow::Borrowed(*name), text.into_sql_str());
        Migration::new(number, name, MigrationType::Simple, text, false)
    };
    numbered.map(migration).collect()
}

/// An applied migration: its number, its checksum and whether it succeeded.
type AppliedRow = (i64, Vec<u8>, bool);

async fn fetch_applied_migrations(connection: &mut SqlConnection<'_>) -> Sql<Vec<AppliedRow>> {
    let statement = "SELECT version, checksum, success FROM _sqlx_migrations ORDER BY version";
    connection.fetch_all(statement, &[]).await
}

/// Returns why the schema is unusable for this program, if it is.
fn find_schema_problem(known: &[Migration], applied: &[AppliedRow]) -> Option<String> {
    for (number, checksum, has_succeeded) in applied {
        let Some(known) = known.iter().find(|known| known.version == *number) else {
            return Some(format!(
                "the schema is newer (migration {number}) than this program; install the newer version"
            ));
        };
        if *known.checksum != **checksum {
            return Some(format!(
                "the applied migration {number} differs from that of this program; use the program that created the schema, or create a new schema and apply all rows again"
            ));
        }
        if !has_succeeded {
            return Some(format!(
                "migration {number} was aborted; run `backstitch migrate` again"
            ));
        }
    }
    if applied.len() < known.len() {
        let newest = applied.last().map_or(0, |row| row.0);
        return Some(format!(
            "the schema is older (migration {newest}) than this program; run `backstitch migrate`"
        ));
    }
    None
}

/// Connects to a server, and checks that its schema has the version of this program.
pub(crate) async fn open(options: &SqlOptions, namespace: &Namespace) -> Result<Server> {
    let mut server = Server::new(options, namespace)?;
    server.views = check_usable(&server).await?;
    Ok(server)
}

/// Checks that the schema is usable, and returns the tables that are views.
async fn check_usable(server: &Server) -> Result<BTreeSet<String>> {
    let known = list_migrations(server.options.server);
    let (applied, views, problems) = server
        .read(OPENING, sql_call!(connection => read_state(connection)))
        .await?;
    let view_problem = (!problems.is_empty()).then(|| problems.join("; "));
    if let Some(problem) = find_schema_problem(&known, &applied).or(view_problem) {
        return Err(Error::broken(
            format!("{OPENING} ({})", server.name()),
            problem,
        ));
    }
    Ok(views)
}

/// Reads the applied migrations, the tables that are views, and the problems of views.
async fn read_state(
    connection: &mut SqlConnection<'_>,
) -> Sql<(Vec<AppliedRow>, BTreeSet<String>, Vec<String>)> {
    let applied = fetch_applied_migrations(connection).await?;
    let (views, problems) = view_columns::check_views(connection).await?;
    Ok((applied, views, problems))
}

/// Upgrades the schema, and returns whether anything changed.
pub(crate) async fn migrate(server: &Server) -> Result<bool> {
    let known = list_migrations(server.options.server);
    let mut owned = server
        .retry(MIGRATING, || server.connect(ConnectionPurpose::Migrate))
        .await?;
    let migrate = async {
        create_schema(&mut owned, &server.schema).await?;
        let applied_before =
            fetch_applied_migrations(&mut owned.borrow())
                .await
                .map_or(0, |rows| {
                    let succeeded = rows.iter().filter(|(.., has_succeeded)| *has_succeeded);
                    succeeded.count()
                });
        let migrator = Migrator::with_migrations(known.clone());
        match &mut owned {
            #[cfg(feature = "postgres")]
            OwnedConnection::Postgres(connection) => {
                migrator.run_direct(None, connection, false).await?
            }
            #[cfg(feature = "mysql")]
            OwnedConnection::MySql(connection) => {
                mysql::lock_schema(connection, &server.schema, MIGRATE_TIMEOUT).await?;
                let mut migrator = migrator;
                migrator.set_locking(false);
                migrator.run_direct(None, connection, false).await?;
            }
        }
        Ok(applied_before < known.len())
    };
    let outcome = with_timeout(MIGRATE_TIMEOUT, async { Ok(migrate.await) }).await;
    let outcome: std::result::Result<bool, MigrateError> = outcome
        .map_err(MigrateError::from)
        .and_then(|outcome| outcome);
    outcome.map_err(|error| match error {
        MigrateError::Execute(error) | MigrateError::ExecuteMigration(error, _) => {
            server.classify_error(MIGRATING, &error)
        }
        MigrateError::VersionMissing(number) => Error::broken(
            format!("{MIGRATING} ({})", server.name()),
            format!(
                "the schema is newer (migration {number}) than this program; install the newer version"
            ),
        ),
        error => Error::broken(format!("{MIGRATING} ({})", server.name()), error),
    })
}

/// Creates the schema if it does not exist. If two processes do so at once, one fails and then
/// finds the schema.
async fn create_schema(owned: &mut OwnedConnection, schema: &str) -> Sql<()> {
    let statement = match owned {
        #[cfg(feature = "postgres")]
        OwnedConnection::Postgres(_) => format!("CREATE SCHEMA IF NOT EXISTS \"{schema}\""),
        #[cfg(feature = "mysql")]
        OwnedConnection::MySql(_) => format!(
            "CREATE DATABASE IF NOT EXISTS `{schema}` CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;
             USE `{schema}`"
        ),
    };
    let mut connection = owned.borrow();
    match connection.execute_raw(&statement).await {
        Err(error) if classify(&error) == ErrorClass::Retryable => {
            connection.execute_raw(&statement).await
        }
        outcome => outcome,
    }
}

/// Diagnoses the server and the schema. Returns one sentence for each problem.
pub(crate) async fn diagnose(server: &Server) -> Result<Vec<String>> {
    let with_name = |problem: String| format!("{}: {problem}", server.name());
    let wait = Duration::from_millis(server.options.request_timeout_ms);
    let mut owned = match server.connect(ConnectionPurpose::Calls).await {
        Ok(owned) => owned,
        Err(error) => {
            return Ok(vec![
                server.classify_error("connecting", &error).to_string(),
            ]);
        }
    };
    let diagnosis = async {
        let mut problems = match &mut owned {
            #[cfg(feature = "postgres")]
            OwnedConnection::Postgres(connection) => postgres::diagnose(connection).await?,
            #[cfg(feature = "mysql")]
            OwnedConnection::MySql(connection) => mysql::diagnose(connection).await?,
        };
        let mut connection = owned.borrow();
        match fetch_applied_migrations(&mut connection).await {
            Ok(applied) => {
                let known = list_migrations(server.options.server);
                if let Some(problem) = find_schema_problem(&known, &applied) {
                    // The migrations may solve the other problems.
                    problems.push(problem);
                    return Ok(problems);
                }
            }
            Err(error) if classify(&error) == ErrorClass::MissingSchema => {
                problems.push("the schema is missing; run `backstitch migrate`".to_owned());
                return Ok(problems);
            }
            Err(error) if classify(&error) == ErrorClass::PermissionDenied => {
                problems.push(format!("{error}; grant this user rights on the schema"));
                return Ok(problems);
            }
            Err(error) => return Err(error),
        }
        let (views, view_problems) = view_columns::check_views(&mut connection).await?;
        problems.extend(view_problems);
        problems.extend(find_missing_rights(&mut connection, &views).await?);
        // Explaining a query requires the rights to run it.
        if problems.is_empty() {
            problems.extend(view_columns::find_unindexed_views(&mut owned, &views).await?);
        }
        if problems.is_empty() && !views.contains("authorizations") {
            problems.extend(check_counters(&mut owned.borrow(), wait / 2).await?);
        }
        Ok(problems)
    };
    match timeout(wait, diagnosis).await {
        Ok(Ok(problems)) => Ok(problems.into_iter().map(with_name).collect()),
        Ok(Err(error)) => Ok(vec![server.classify_error("checking", &error).to_string()]),
        Err(_) => Ok(vec![with_name("the server does not respond".to_owned())]),
    }
}

/// Reports wrong counters of connected athletes. Reports nothing if the comparison exceeds `wait`,
/// which may happen with very many authorizations.
async fn check_counters(connection: &mut SqlConnection<'_>, wait: Duration) -> Sql<Option<String>> {
    let comparison = counters::find_differing(connection, LISTED_APPLICATIONS_MAX);
    let differing = match timeout(wait, comparison).await {
        Ok(Err(error)) if classify(&error) != ErrorClass::Retryable => return Err(error),
        Ok(Ok(differing)) => differing,
        Ok(Err(_)) | Err(_) => {
            tracing::warn!("counters of connected athletes were not checked: it takes too long");
            return Ok(None);
        }
    };
    if differing.is_empty() {
        return Ok(None);
    }
    let ids: Vec<String> = differing.iter().map(i64::to_string).collect();
    Ok(Some(format!(
        "the counters of connected athletes are wrong for the applications {}: authorizations changed without firing triggers (foreign-key cascade on MySQL, or TRUNCATE), or the deletion of an athlete has no notification; run `backstitch migrate`, which repairs them",
        ids.join(", ")
    )))
}

/// Repairs wrong counters of connected athletes, and returns their applications.
pub(crate) async fn recount(server: &Server) -> Result<Vec<i64>> {
    let mut owned = server
        .retry(COUNTING, || server.connect(ConnectionPurpose::Migrate))
        .await?;
    let recount = async {
        create_schema(&mut owned, &server.schema).await?;
        let mut connection = owned.borrow();
        let (views, _) = view_columns::check_views(&mut connection).await?;
        if views.contains("authorizations") {
            return Ok(Vec::new());
        }
        let differing = counters::find_differing(&mut connection, i64::MAX).await?;
        for application in &differing {
            connection.execute_raw("BEGIN").await?;
            counters::recount(&mut connection, *application).await?;
            connection.execute_raw("COMMIT").await?;
        }
        Ok(differing)
    };
    let outcome = with_timeout(MIGRATE_TIMEOUT, recount).await;
    outcome.map_err(|error| server.classify_error(COUNTING, &error))
}

/// Finds missing rights by statements that change no row.
async fn find_missing_rights(
    connection: &mut SqlConnection<'_>,
    views: &BTreeSet<String>,
) -> Sql<Vec<String>> {
    let mut statements = vec![
        "DELETE FROM outbox WHERE 1 = 0".to_owned(),
        // Locking rows requires the right to change them.
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
    let mut problems = Vec::new();
    for statement in statements {
        match connection.execute(&statement, &[]).await {
            Ok(_) => {}
            Err(error) if classify(&error) == ErrorClass::PermissionDenied => {
                problems.push(format!("{error}; grant this user the right"));
            }
            Err(error) if classify(&error) == ErrorClass::MissingSchema => {
                problems.push(format!("{error}; create the table, or a view in its place"));
            }
            Err(error) => return Err(error),
        }
    }
    problems.dedup();
    Ok(problems)
}
