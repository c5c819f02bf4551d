//! The entity store's dialect of MySQL and MariaDB.
//!
//! Rows are written by statements with one of a few numbers of them, so that few are prepared. Writing
//! runs at READ COMMITTED, where no gaps between rows are locked; a dump, and groups that have to be
//! counted before they are read, see one snapshot.

pub(crate) mod dump;

use std::time::Duration;

use futures::TryStreamExt;
use schemas::entities::Group;
use schemas::source::Source;
use sqlx::mysql::{MySqlArguments, MySqlConnectOptions, MySqlConnection, MySqlSslMode};
use sqlx::{AssertSqlSafe, ConnectOptions, Connection};

use crate::canon::{FirstGroups, NOTIFICATIONS_MAX};
use crate::sql::connection::{Dialect, Sql};
use crate::sql::decode::{Columns, Grouped};
use crate::sql::outbox::{AT_ONCE, Row as Told};
use crate::sql::rows::{Column, Conflict, Rows};
use crate::sql::view_columns::Kind;
use crate::sql::{Meaning, Migration, Purpose, SqlOptions, SqlTls, migrations};

/// The migrations, in their order.
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

/// The names of this schema that are views.
pub(crate) const VIEWS: &str = "SELECT CAST(table_name AS CHAR) FROM information_schema.tables
    WHERE table_schema = DATABASE() AND table_type = 'VIEW'";

/// The columns of what is in this schema, as `view_columns::There`.
pub(crate) const COLUMNS: &str = "SELECT CAST(table_name AS CHAR), CAST(column_name AS CHAR),
        CAST(column_type AS CHAR), LOWER(CAST(data_type AS CHAR))
    FROM information_schema.columns WHERE table_schema = DATABASE()";

/// Whether a column of a type holds what it has to.
pub(crate) fn fits(kind: Kind, is: &str) -> bool {
    let is_whole = matches!(is, "tinyint" | "smallint" | "mediumint" | "int" | "bigint");
    match kind {
        Kind::Number | Kind::Micros | Kind::Boolean => is_whole,
        Kind::Fraction => matches!(is, "double" | "float" | "decimal"),
        Kind::Text => matches!(
            is,
            "varchar" | "char" | "tinytext" | "text" | "mediumtext" | "longtext" | "enum"
        ),
    }
}

/// A moment that stands still for all statements up to the commit.
const SNAPSHOT: &str = "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ;
    START TRANSACTION WITH CONSISTENT SNAPSHOT, READ ONLY";

/// A free connection is closed by the server after this time; we close it sooner.
const WAIT_S: u64 = 600;

/// A dump may wait so long for whoever takes it.
const DUMP_WRITE_S: u64 = 86_400;

/// What a column of a view has to be, and how the view says it.
pub(crate) const fn expected(kind: Kind) -> &'static str {
    match kind {
        Kind::Number => "a whole number: an integer type, or CAST(… AS SIGNED)",
        Kind::Micros => {
            "microseconds since 1970 as a whole number: TIMESTAMPDIFF(MICROSECOND, '1970-01-01', …)"
        }
        Kind::Fraction => "a number: DOUBLE, FLOAT or DECIMAL",
        Kind::Text => "text: VARCHAR, CHAR, TEXT or ENUM; or CAST(… AS CHAR)",
        Kind::Boolean => "a boolean: 0 or 1 as a whole number",
    }
}

/// What an error says.
pub(crate) const fn meaning(number: u16) -> Meaning {
    match number {
        // Deadlock, a lock or an answer that took too long, somebody else's insert, and a server that
        // is going, coming, full of connections, or a replica for now.
        1213 | 1205 | 3024 | 1969 | 1317 | 1062 | 1040 | 1053 | 1079 | 1203 | 1290 | 1836
        | 1927 | 4031 => Meaning::Later,
        1049 | 1146 | 1054 | 1305 => Meaning::NoSchema,
        1045 | 1130 | 1698 => Meaning::NotLetIn,
        1044 | 1142 | 1143 | 1227 | 1370 | 1419 => Meaning::NoRight,
        _ => Meaning::Other,
    }
}

/// A new connection.
pub(crate) async fn connect(
    options: &SqlOptions,
    trusted: Option<&[u8]>,
    schema: &str,
    purpose: Purpose,
) -> Sql<MySqlConnection> {
    let mut to = to(options, trusted);
    if purpose != Purpose::Migrate {
        to = to.database(schema);
    }
    let mut connection = MySqlConnection::connect_with(&to).await?;
    let version: String = sqlx::query_scalar("SELECT VERSION()")
        .fetch_one(&mut connection)
        .await?;
    let statement_ms = match purpose {
        Purpose::Calls => options.statement_timeout_ms,
        Purpose::Dump | Purpose::Migrate => 0,
    };
    // Seconds on one, milliseconds and only for reading on the other.
    let statement_max = if is_mariadb(&version) {
        format!("max_statement_time = {}", statement_ms.div_ceil(1000))
    } else {
        format!("max_execution_time = {statement_ms}")
    };
    let lock_s = options.lock_timeout_ms.div_ceil(1000).max(1);
    let more = match purpose {
        Purpose::Dump => format!(", net_write_timeout = {DUMP_WRITE_S}"),
        Purpose::Calls | Purpose::Migrate => String::new(),
    };
    let settings = format!(
        "SET SESSION sql_mode = 'STRICT_ALL_TABLES,ERROR_FOR_DIVISION_BY_ZERO,NO_ENGINE_SUBSTITUTION';
         SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED;
         SET @backstitch_tells = 'no';
         SET SESSION {statement_max}, innodb_lock_wait_timeout = {lock_s},
             wait_timeout = {WAIT_S}{more};"
    );
    sqlx::raw_sql(AssertSqlSafe(settings))
        .execute(&mut connection)
        .await?;
    Ok(connection)
}

fn is_mariadb(version: &str) -> bool {
    version.to_ascii_lowercase().contains("mariadb")
}

fn to(options: &SqlOptions, trusted: Option<&[u8]>) -> MySqlConnectOptions {
    let mut to = MySqlConnectOptions::new()
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
        to = to.username(&options.user);
    }
    if !options.password.is_empty() {
        to = to.password(options.password.reveal());
    }
    if let Some(trusted) = trusted {
        to = to.ssl_ca_from_pem(trusted.to_vec());
    }
    to
}

/// Puts groups and those of athletes into the outbox; answers the first of them, at most one more than
/// may be told.
pub(crate) async fn tell(
    connection: &mut MySqlConnection,
    groups: &[(Source, Group)],
    athletes: &[i64],
    now_ms: i64,
) -> Sql<Vec<Told>> {
    let (random, _) = uuid::Uuid::new_v4().as_u64_pair();
    let made_by = random.cast_signed();
    let rows = Rows::notifications(groups, now_ms)
        .with("made_by", Column::Ints(vec![Some(made_by); groups.len()]));
    let mut first = None;
    for insert in rows.insert_statements(Dialect::MySql, Conflict::Fail) {
        let query = sqlx::query_with(insert.statement(), insert.arguments::<MySqlArguments>()?);
        let done = query.execute(&mut *connection).await?;
        first = first.or(Some(done.last_insert_id()).filter(|id| *id > 0));
    }
    for athletes in athletes.chunks(AT_ONCE) {
        let athletes: Vec<String> = athletes.iter().map(i64::to_string).collect();
        let statement = format!(
            "INSERT INTO outbox (source, group_key, member, made_at_ms, made_by)
             SELECT '{source}', segment_id, athlete_id, {now_ms}, {made_by} FROM efforts
             WHERE athlete_id IN ({athletes})
             GROUP BY athlete_id, segment_id ORDER BY athlete_id, segment_id",
            source = Source::Efforts.name(),
            athletes = athletes.join(","),
        );
        let done = sqlx::raw_sql(AssertSqlSafe(statement))
            .execute(&mut *connection)
            .await?;
        first = first.or(Some(done.last_insert_id()).filter(|id| *id > 0));
    }
    let Some(first) = first else {
        return Ok(Vec::new());
    };
    sqlx::query_as(
        "SELECT id, source, group_key, member FROM outbox WHERE id >= ? AND made_by = ?
         ORDER BY id LIMIT ?",
    )
    .bind(i64::try_from(first).unwrap_or(i64::MAX))
    .bind(made_by)
    .bind(i64::try_from(NOTIFICATIONS_MAX + 1).unwrap_or(i64::MAX))
    .fetch_all(connection)
    .await
}

/// Groups as the text of a JSON array, which the server reads as a table `g`.
fn asked(groups: &[Group]) -> String {
    let groups: Vec<String> = groups
        .iter()
        .map(|group| format!("[{},{}]", group.key, group.member))
        .collect();
    format!("[{}]", groups.join(","))
}

const ASKED: &str = "JSON_TABLE(?, '$[*]' COLUMNS (place FOR ORDINALITY,
    group_key BIGINT PATH '$[0]', member BIGINT PATH '$[1]')) AS g";

/// All rows of the first of some groups. If all of them are wanted, one statement reads them; else
/// groups are counted first, in the same snapshot.
pub(crate) async fn first_groups(
    connection: &mut MySqlConnection,
    of: Grouped,
    groups: &[Group],
    rows_max: usize,
) -> Sql<FirstGroups> {
    let rows_max = i64::try_from(rows_max).unwrap_or(i64::MAX);
    if rows_max == i64::MAX || groups.len() <= 1 {
        return rows_of(connection, of, groups).await;
    }
    sqlx::raw_sql(SNAPSHOT).execute(&mut *connection).await?;
    let statement = format!(
        "SELECT (SELECT count(*) FROM {table} e
             WHERE e.{key} = g.group_key AND e.athlete_id = g.member)
         FROM {ASKED} ORDER BY g.place",
        table = of.table(),
        key = of.key(),
    );
    let sizes: Vec<i64> = sqlx::query_scalar(AssertSqlSafe(statement))
        .bind(asked(groups))
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
    let found = rows_of(connection, of, fitting).await?;
    sqlx::raw_sql("COMMIT").execute(connection).await?;
    Ok(found)
}

/// All rows of some groups.
async fn rows_of(
    connection: &mut MySqlConnection,
    of: Grouped,
    groups: &[Group],
) -> Sql<FirstGroups> {
    let mut columns = Columns::new(of);
    if !groups.is_empty() {
        let statement = format!(
            "SELECT {columns} FROM {ASKED}
             STRAIGHT_JOIN {table} e ON e.{key} = g.group_key AND e.athlete_id = g.member
             {join} ORDER BY e.{key}, e.athlete_id, e.id",
            columns = of.columns(Dialect::MySql),
            table = of.table(),
            key = of.key(),
            join = Grouped::JOIN,
        );
        let query = sqlx::query(AssertSqlSafe(statement)).bind(asked(groups));
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

/// Holds the schema for one who makes tables, until the connection ends, and forgets a migration that
/// was broken off: it will be run again. MariaDB takes no negative
/// time for "as long as it takes", which the driver would give it.
pub(crate) async fn lock_schema(
    connection: &mut MySqlConnection,
    schema: &str,
    wait: Duration,
) -> Sql<()> {
    let held: Option<i64> = sqlx::query_scalar("SELECT GET_LOCK(?, ?)")
        .bind(schema)
        .bind(i64::try_from(wait.as_secs()).unwrap_or(i64::MAX))
        .fetch_one(&mut *connection)
        .await?;
    if held != Some(1) {
        return Err(sqlx::Error::PoolTimedOut);
    }
    let forgetting = "DELETE FROM _sqlx_migrations WHERE success = FALSE";
    match sqlx::raw_sql(forgetting).execute(connection).await {
        // The table is not there at first.
        Err(sqlx::Error::Database(error)) if error.code().as_deref() == Some("42S02") => Ok(()),
        done => done.map(drop),
    }
}

/// What is wrong with the server itself.
pub(crate) async fn flaws(connection: &mut MySqlConnection) -> Sql<Vec<String>> {
    let (version, mode, collation, is_read_only): (String, String, String, bool) = sqlx::query_as(
        "SELECT VERSION(), @@SESSION.sql_mode, @@collation_database, @@GLOBAL.read_only",
    )
    .fetch_one(&mut *connection)
    .await?;
    let mut flaws = Vec::new();
    let oldest = if is_mariadb(&version) {
        [10, 6, 0]
    } else {
        [8, 0, 19]
    };
    if !is_new_enough(&version, oldest) {
        flaws.push(format!(
            "it is version {version}; MySQL 8.0.19 or MariaDB 10.6 or newer is needed"
        ));
    }
    if !mode.contains("STRICT_ALL_TABLES") {
        flaws.push(format!(
            "sql_mode is {mode}; values that don't fit would be cut: let sessions set STRICT_ALL_TABLES"
        ));
    }
    if collation != "utf8mb4_bin" {
        flaws.push(format!(
            "the database's collation is {collation}; texts that differ would be taken as the same: run ALTER DATABASE … COLLATE utf8mb4_bin"
        ));
    }
    if is_read_only {
        flaws.push("it is read only; name the primary".to_owned());
    }
    let odd: Vec<(String,)> = sqlx::query_as(
        "SELECT CAST(table_name AS CHAR) FROM information_schema.tables
         WHERE table_schema = DATABASE() AND table_type = 'BASE TABLE' AND engine <> 'InnoDB'",
    )
    .fetch_all(connection)
    .await?;
    for (table,) in odd {
        flaws.push(format!(
            "the table {table} has no transactions; run ALTER TABLE {table} ENGINE = InnoDB"
        ));
    }
    Ok(flaws)
}

/// Whether a version such as `10.11.19-MariaDB` is not older than another.
fn is_new_enough(version: &str, oldest: [u32; 3]) -> bool {
    let numbers = version
        .split(|sign: char| !sign.is_ascii_digit())
        .map_while(|part| part.parse::<u32>().ok());
    numbers.take(3).ge(oldest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_compared_by_their_numbers() {
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
