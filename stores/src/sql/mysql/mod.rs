//! The dialect of MySQL and MariaDB.
//!
//! Statements write one of a few numbers of rows, so that few statements are prepared. Writes run
//! at READ COMMITTED, which locks no gaps between rows. Dumps, and reads that count groups first,
//! run in one snapshot.

pub(crate) mod dump;

use std::time::Duration;

use futures::TryStreamExt;
use schemas::entities::Group;
use schemas::source::Source;
use sqlx::mysql::{MySqlArguments, MySqlConnectOptions, MySqlConnection, MySqlSslMode};
use sqlx::{AssertSqlSafe, ConnectOptions, Connection};

use crate::entities::{FirstGroups, NOTIFICATIONS_MAX};
use crate::sql::column_kind::ColumnKind;
use crate::sql::connection::{ConnectionPurpose, Dialect, IDS_PER_STATEMENT, Sql};
use crate::sql::decode::{GroupedSource, RowBuilder};
use crate::sql::error_class::ErrorClass;
use crate::sql::migration::{Migration, migrations};
use crate::sql::outbox_row::OutboxRow;
use crate::sql::rows::{ColumnValues, Conflict, TableRows};
use crate::sql::{SqlOptions, SqlTls};

/// The migrations, in order.
pub(crate) const MIGRATIONS: &[Migration] = migrations![
    "0001_tables",
    "0002_triggers",
    "0003_disqualified",
    "0004_applications",
    "0005_deleted_athletes",
    "0006_recounts",
    "0007_keys",
    "0008_names",
    "0009_action_ids",
    "0010_owner_changes",
    "0011_call_tokens",
];

/// Selects the views of the schema.
pub(crate) const VIEWS: &str = "SELECT CAST(table_name AS CHAR) FROM information_schema.tables
    WHERE table_schema = DATABASE() AND table_type = 'VIEW'";

/// Selects the columns of the schema as `view_columns::ViewColumn`.
pub(crate) const COLUMNS: &str = "SELECT CAST(table_name AS CHAR), CAST(column_name AS CHAR),
        CAST(column_type AS CHAR), LOWER(CAST(data_type AS CHAR))
    FROM information_schema.columns WHERE table_schema = DATABASE()";

/// Returns whether a column type can represent a kind of values.
pub(crate) fn can_represent(kind: ColumnKind, column_type: &str) -> bool {
    let is_integer = matches!(
        column_type,
        "tinyint" | "smallint" | "mediumint" | "int" | "bigint"
    );
    match kind {
        ColumnKind::Integer | ColumnKind::TimestampUs | ColumnKind::Boolean => is_integer,
        ColumnKind::Fraction => matches!(column_type, "double" | "float" | "decimal"),
        ColumnKind::Text => matches!(
            column_type,
            "varchar" | "char" | "tinytext" | "text" | "mediumtext" | "longtext" | "enum"
        ),
    }
}

/// Begins a read-only transaction that sees one snapshot.
const SNAPSHOT: &str = "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ;
    START TRANSACTION WITH CONSISTENT SNAPSHOT, READ ONLY";

/// The server closes a connection that is idle for longer. The pool closes it earlier.
const IDLE_TIMEOUT_S: u64 = 600;

/// How long the server waits for the receiver of a dump.
const DUMP_WRITE_TIMEOUT_S: u64 = 86_400;

/// Describes a kind of values, and the expression that converts to it.
pub(crate) const fn describe_expected(kind: ColumnKind) -> &'static str {
    match kind {
        ColumnKind::Integer => "an integer: an integer type, or CAST(… AS SIGNED)",
        ColumnKind::TimestampUs => {
            "microseconds since 1970 as an integer: TIMESTAMPDIFF(MICROSECOND, '1970-01-01', …)"
        }
        ColumnKind::Fraction => "a number: DOUBLE, FLOAT or DECIMAL",
        ColumnKind::Text => "text: VARCHAR, CHAR, TEXT or ENUM; or CAST(… AS CHAR)",
        ColumnKind::Boolean => "a boolean: 0 or 1 as an integer",
    }
}

/// The class of an error number.
pub(crate) const fn classify_number(number: u16) -> ErrorClass {
    match number {
        // Deadlock, lock timeout, statement timeout, duplicate key of a concurrent insert; server
        // starting, stopping, out of connections, or temporarily a replica.
        1213 | 1205 | 3024 | 1969 | 1317 | 1062 | 1040 | 1053 | 1079 | 1203 | 1290 | 1836
        | 1927 | 4031 => ErrorClass::Retryable,
        1049 | 1146 | 1054 | 1305 => ErrorClass::MissingSchema,
        1045 | 1130 | 1698 => ErrorClass::Unauthenticated,
        1044 | 1142 | 1143 | 1227 | 1370 | 1419 => ErrorClass::PermissionDenied,
        _ => ErrorClass::Other,
    }
}

/// Opens a connection, and sets its session variables.
pub(crate) async fn connect(
    options: &SqlOptions,
    trusted: Option<&[u8]>,
    schema: &str,
    purpose: ConnectionPurpose,
) -> Sql<MySqlConnection> {
    let mut connect_options = connect_options(options, trusted);
    if purpose != ConnectionPurpose::Migrate {
        connect_options = connect_options.database(schema);
    }
    let mut connection = MySqlConnection::connect_with(&connect_options).await?;
    let version: String = sqlx::query_scalar("SELECT VERSION()")
        .fetch_one(&mut connection)
        .await?;
    let statement_ms = match purpose {
        ConnectionPurpose::Calls => options.statement_timeout_ms,
        ConnectionPurpose::Dump | ConnectionPurpose::Migrate => 0,
    };
    // MariaDB's limit is in seconds. MySQL's is in milliseconds, and applies only to SELECT.
    let statement_max = if is_mariadb(&version) {
        format!("max_statement_time = {}", statement_ms.div_ceil(1000))
    } else {
        format!("max_execution_time = {statement_ms}")
    };
    let lock_s = options.lock_timeout_ms.div_ceil(1000).max(1);
    let dump_settings = match purpose {
        ConnectionPurpose::Dump => format!(", net_write_timeout = {DUMP_WRITE_TIMEOUT_S}"),
        ConnectionPurpose::Calls | ConnectionPurpose::Migrate => String::new(),
    };
    let settings = format!(
        "SET SESSION sql_mode = 'STRICT_ALL_TABLES,ERROR_FOR_DIVISION_BY_ZERO,NO_ENGINE_SUBSTITUTION';
         SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED;
         SET @backstitch_tells = 'no';
         SET SESSION {statement_max}, innodb_lock_wait_timeout = {lock_s},
             wait_timeout = {IDLE_TIMEOUT_S}{dump_settings};"
    );
    sqlx::raw_sql(AssertSqlSafe(settings))
        .execute(&mut connection)
        .await?;
    Ok(connection)
}

fn is_mariadb(version: &str) -> bool {
    version.to_ascii_lowercase().contains("mariadb")
}

fn connect_options(options: &SqlOptions, trusted: Option<&[u8]>) -> MySqlConnectOptions {
    let mut connect_options = MySqlConnectOptions::new()
        .host(options.host())
        .port(options.port())
        .charset("utf8mb4")
        .collation("utf8mb4_bin")
        .pipes_as_concat(false)
        .no_engine_substitution(false)
        .timezone(None)
        .ssl_mode(match options.tls {
            SqlTls::Disable => MySqlSslMode::Disabled,
            SqlTls::Prefer => MySqlSslMode::Preferred,
            SqlTls::Require => MySqlSslMode::Required,
            SqlTls::VerifyCa => MySqlSslMode::VerifyCa,
            SqlTls::VerifyFull => MySqlSslMode::VerifyIdentity,
        })
        .disable_statement_logging();
    if !options.user.is_empty() {
        connect_options = connect_options.username(&options.user);
    }
    if !options.password.is_empty() {
        connect_options = connect_options.password(options.password.reveal());
    }
    if let Some(trusted) = trusted {
        connect_options = connect_options.ssl_ca_from_pem(trusted.to_vec());
    }
    connect_options
}

/// Inserts notifications for `groups` and for all groups of `athletes`. Returns the first
/// `NOTIFICATIONS_MAX + 1` of them.
pub(crate) async fn enqueue_notifications(
    connection: &mut MySqlConnection,
    groups: &[(Source, Group)],
    athletes: &[i64],
    now_ms: i64,
) -> Sql<Vec<OutboxRow>> {
    let (random, _) = uuid::Uuid::new_v4().as_u64_pair();
    let call_id = random.cast_signed();
    let rows = TableRows::notifications(groups, now_ms).with_column(
        "made_by",
        ColumnValues::Ints(vec![Some(call_id); groups.len()]),
    );
    let mut first_id = None;
    for insert in rows.insert_statements(Dialect::MySql, Conflict::Fail) {
        let query = sqlx::query_with(insert.statement(), insert.arguments::<MySqlArguments>()?);
        let outcome = query.execute(&mut *connection).await?;
        first_id = first_id.or(Some(outcome.last_insert_id()).filter(|id| *id > 0));
    }
    for athletes in athletes.chunks(IDS_PER_STATEMENT) {
        let athletes: Vec<String> = athletes.iter().map(i64::to_string).collect();
        let statement = format!(
            "INSERT INTO outbox (source, group_key, member, made_at_ms, made_by)
             SELECT '{source}', segment_id, athlete_id, {now_ms}, {call_id} FROM efforts
             WHERE athlete_id IN ({athletes})
             GROUP BY athlete_id, segment_id ORDER BY athlete_id, segment_id",
            source = Source::Efforts.name(),
            athletes = athletes.join(","),
        );
        let outcome = sqlx::raw_sql(AssertSqlSafe(statement))
            .execute(&mut *connection)
            .await?;
        first_id = first_id.or(Some(outcome.last_insert_id()).filter(|id| *id > 0));
    }
    let Some(first_id) = first_id else {
        return Ok(Vec::new());
    };
    sqlx::query_as(
        "SELECT id, source, group_key, member FROM outbox WHERE id >= ? AND made_by = ?
         ORDER BY id LIMIT ?",
    )
    .bind(i64::try_from(first_id).unwrap_or(i64::MAX))
    .bind(call_id)
    .bind(i64::try_from(NOTIFICATIONS_MAX + 1).unwrap_or(i64::MAX))
    .fetch_all(connection)
    .await
}

/// Formats groups as a JSON array, for [`REQUESTED_GROUPS`].
fn format_groups(groups: &[Group]) -> String {
    let groups: Vec<String> = groups
        .iter()
        .map(|group| format!("[{},{}]", group.key, group.member))
        .collect();
    format!("[{}]", groups.join(","))
}

/// Reads a JSON array of groups as the table `g`.
const REQUESTED_GROUPS: &str = "JSON_TABLE(?, '$[*]' COLUMNS (group_index FOR ORDINALITY,
    group_key BIGINT PATH '$[0]', member BIGINT PATH '$[1]')) AS g";

/// Reads all rows of the first groups, up to `rows_max` rows but at least one group. Without a
/// limit, one statement reads them; otherwise the groups are counted first, in the same snapshot.
pub(crate) async fn first_groups(
    connection: &mut MySqlConnection,
    source: GroupedSource,
    groups: &[Group],
    rows_max: usize,
) -> Sql<FirstGroups> {
    let rows_max = i64::try_from(rows_max).unwrap_or(i64::MAX);
    if rows_max == i64::MAX || groups.len() <= 1 {
        return fetch_groups(connection, source, groups).await;
    }
    sqlx::raw_sql(SNAPSHOT).execute(&mut *connection).await?;
    let statement = format!(
        "SELECT (SELECT count(*) FROM {table} e
             WHERE e.{key} = g.group_key AND e.athlete_id = g.member)
         FROM {REQUESTED_GROUPS} ORDER BY g.group_index",
        table = source.table(),
        key = source.key_column(),
    );
    let sizes: Vec<i64> = sqlx::query_scalar(AssertSqlSafe(statement))
        .bind(format_groups(groups))
        .fetch_all(&mut *connection)
        .await?;
    let (mut fitting, mut total) = (0, 0_i64);
    for size in sizes {
        total = total.saturating_add(size);
        if fitting > 0 && total > rows_max {
            break;
        }
        fitting += 1;
    }
    let fitting = groups.get(..fitting).unwrap_or(groups);
    let first_groups = fetch_groups(connection, source, fitting).await?;
    sqlx::raw_sql("COMMIT").execute(connection).await?;
    Ok(first_groups)
}

/// Reads all rows of some groups.
async fn fetch_groups(
    connection: &mut MySqlConnection,
    source: GroupedSource,
    groups: &[Group],
) -> Sql<FirstGroups> {
    let mut columns = RowBuilder::new(source);
    if !groups.is_empty() {
        let statement = format!(
            "SELECT {columns} FROM {REQUESTED_GROUPS}
             STRAIGHT_JOIN {table} e ON e.{key} = g.group_key AND e.athlete_id = g.member
             {join} ORDER BY e.{key}, e.athlete_id, e.id",
            columns = source.columns(Dialect::MySql),
            table = source.table(),
            key = source.key_column(),
            join = GroupedSource::JOIN,
        );
        let query = sqlx::query(AssertSqlSafe(statement)).bind(format_groups(groups));
        let mut rows = query.fetch(connection);
        while let Some(row) = rows.try_next().await? {
            columns.push(&row)?;
        }
    }
    Ok(FirstGroups {
        rows: columns.finish()?,
        groups: groups.len(),
    })
}

/// Locks the schema for migrations until the connection ends, and forgets an aborted migration, so
/// that it runs again.
///
/// The driver's own lock waits with a negative timeout, which MariaDB rejects.
pub(crate) async fn lock_schema(
    connection: &mut MySqlConnection,
    schema: &str,
    timeout: Duration,
) -> Sql<()> {
    let locked: Option<i64> = sqlx::query_scalar("SELECT GET_LOCK(?, ?)")
        .bind(schema)
        .bind(i64::try_from(timeout.as_secs()).unwrap_or(i64::MAX))
        .fetch_one(&mut *connection)
        .await?;
    if locked != Some(1) {
        return Err(sqlx::Error::PoolTimedOut);
    }
    let statement = "DELETE FROM _sqlx_migrations WHERE success = FALSE";
    match sqlx::raw_sql(statement).execute(connection).await {
        // The first migration creates the table.
        Err(sqlx::Error::Database(error)) if error.code().as_deref() == Some("42S02") => Ok(()),
        outcome => outcome.map(drop),
    }
}

/// Diagnoses the settings of the server.
pub(crate) async fn diagnose(connection: &mut MySqlConnection) -> Sql<Vec<String>> {
    let (version, mode, collation, is_read_only): (String, String, String, bool) = sqlx::query_as(
        "SELECT VERSION(), @@SESSION.sql_mode, @@collation_database, @@GLOBAL.read_only",
    )
    .fetch_one(&mut *connection)
    .await?;
    let mut problems = Vec::new();
    let version_min = if is_mariadb(&version) {
        [10, 6, 0]
    } else {
        [8, 0, 19]
    };
    if !is_new_enough(&version, version_min) {
        problems.push(format!(
            "the server's version is {version}; MySQL 8.0.19 or MariaDB 10.6 or newer is required"
        ));
    }
    if !mode.contains("STRICT_ALL_TABLES") {
        problems.push(format!(
            "sql_mode is {mode}, so values that do not fit would be truncated; allow sessions to set STRICT_ALL_TABLES"
        ));
    }
    if collation != "utf8mb4_bin" {
        problems.push(format!(
            "the database's collation is {collation}, so different texts may compare as equal; run ALTER DATABASE … COLLATE utf8mb4_bin"
        ));
    }
    if is_read_only {
        problems.push("the server is read-only; configure the primary".to_owned());
    }
    let not_transactional: Vec<(String,)> = sqlx::query_as(
        "SELECT CAST(table_name AS CHAR) FROM information_schema.tables
         WHERE table_schema = DATABASE() AND table_type = 'BASE TABLE' AND engine <> 'InnoDB'",
    )
    .fetch_all(connection)
    .await?;
    for (table,) in not_transactional {
        problems.push(format!(
            "the table {table} does not support transactions; run ALTER TABLE {table} ENGINE = InnoDB"
        ));
    }
    Ok(problems)
}

/// Returns whether a version such as `10.11.19-MariaDB` is at least `version_min`.
fn is_new_enough(version: &str, version_min: [u32; 3]) -> bool {
    let numbers = version
        .split(|character: char| !character.is_ascii_digit())
        .map_while(|part| part.parse::<u32>().ok());
    numbers.take(3).ge(version_min)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn compares_versions_by_their_numbers() {
        for (version, is_new) in [
            ("10.11.19-MariaDB-0+deb12u1", true),
            ("10.5.8-MariaDB", false),
            ("11.4.2-MariaDB", true),
        ] {
            assert_eq!(is_new_enough(version, [10, 6, 0]), is_new, "{version}");
        }
        assert!(is_new_enough("8.0.36", [8, 0, 19]));
        assert!(!is_new_enough("8.0.18", [8, 0, 19]));
    }
}
