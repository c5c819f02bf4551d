//! The dialect of PostgreSQL.
//!
//! Lists are bound as arrays, so a statement has one text for any number of rows. Writes run at
//! READ COMMITTED, so a statement reads the current state of the rows that it locks.

pub(crate) mod dump;
mod key_statistics;

use schemas::entities::Group;
use schemas::source::Source;
use sqlx::postgres::{PgArguments, PgConnectOptions, PgConnection, PgSslMode};
use sqlx::{Arguments, AssertSqlSafe, ConnectOptions, Connection, Row};

use crate::entities::{FirstGroups, NOTIFICATIONS_MAX};
use crate::sql::column_kind::ColumnKind;
use crate::sql::connection::{ConnectionPurpose, Dialect, Sql};
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
    "0005_connections",
    "0006_deleted_athletes",
    "0007_recounts",
    "0008_keys",
    "0009_names",
    "0010_action_ids",
    "0011_owner_changes",
    "0012_call_tokens",
];

/// Session settings for dumps. Cursors read whole parts, and a part should be sorted in memory.
const DUMP_SETTINGS: &str = "SET cursor_tuple_fraction TO 1; SET work_mem TO '32MB';";

/// Selects the views of the schema.
pub(crate) const VIEWS: &str = "SELECT c.relname::text FROM pg_class c
    WHERE c.relnamespace = current_schema()::text::regnamespace AND c.relkind IN ('v', 'm', 'f')";

/// Selects the columns of views as `view_columns::ViewColumn`. A domain counts as its base type.
pub(crate) const COLUMNS: &str = "SELECT c.relname::text, a.attname::text,
        format_type(a.atttypid, a.atttypmod), CASE
            WHEN b.typcategory IN ('S', 'E') THEN 'text' ELSE b.typname::text END
    FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
    JOIN pg_type t ON t.oid = a.atttypid
    JOIN pg_type b ON b.oid = CASE WHEN t.typtype = 'd' THEN t.typbasetype ELSE t.oid END
    WHERE c.relnamespace = current_schema()::text::regnamespace
        AND c.relkind IN ('v', 'm', 'f')";

/// Returns whether a column type can represent a kind of values.
pub(crate) fn can_represent(kind: ColumnKind, column_type: &str) -> bool {
    match kind {
        ColumnKind::Integer | ColumnKind::TimestampUs => {
            matches!(column_type, "int2" | "int4" | "int8")
        }
        ColumnKind::Fraction => matches!(column_type, "float4" | "float8" | "numeric"),
        ColumnKind::Text => column_type == "text",
        ColumnKind::Boolean => column_type == "bool",
    }
}

/// Describes a kind of values, and the expression that converts to it.
pub(crate) const fn describe_expected(kind: ColumnKind) -> &'static str {
    match kind {
        ColumnKind::Integer => {
            "an integer: smallint, integer or bigint, with the type of the app's table (with a cast, the server cannot use the index)"
        }
        ColumnKind::TimestampUs => {
            "microseconds since 1970 as a bigint: (extract(epoch FROM …) * 1000000)::bigint"
        }
        ColumnKind::Fraction => "a number: double precision, real or numeric",
        ColumnKind::Text => "text: text, varchar, char or an enum; or …::text",
        ColumnKind::Boolean => "a boolean",
    }
}

/// The class of an SQLSTATE code.
pub(crate) fn classify_code(code: &str) -> ErrorClass {
    match code {
        // Serialization failure, deadlock, lock timeout, statement timeout, duplicate key of a
        // concurrent insert; server starting, stopping, out of connections, or temporarily a
        // standby.
        "40001" | "40P01" | "55P03" | "57014" | "23505" | "25P03" | "57P01" | "57P02" | "57P03"
        | "57P05" | "53300" | "25006" => ErrorClass::Retryable,
        "42P01" | "3F000" | "3D000" | "42703" | "42883" => ErrorClass::MissingSchema,
        "28P01" | "28000" => ErrorClass::Unauthenticated,
        "42501" => ErrorClass::PermissionDenied,
        code if code.starts_with("08") => ErrorClass::Retryable,
        _ => ErrorClass::Other,
    }
}

/// Opens a connection, and sets its session variables.
pub(crate) async fn connect(
    options: &SqlOptions,
    trusted: Option<&[u8]>,
    schema: &str,
    purpose: ConnectionPurpose,
) -> Sql<PgConnection> {
    let connect_options = connect_options(options, trusted);
    let mut connection = PgConnection::connect_with(&connect_options).await?;
    let (statement_ms, lock_ms, idle_ms) = match purpose {
        ConnectionPurpose::Calls => (
            options.statement_timeout_ms,
            options.lock_timeout_ms,
            options.request_timeout_ms,
        ),
        ConnectionPurpose::Dump => (options.dump_timeout_ms, options.lock_timeout_ms, 0),
        ConnectionPurpose::Migrate => (0, 0, 0),
    };
    let dump_settings = match purpose {
        ConnectionPurpose::Dump => DUMP_SETTINGS,
        ConnectionPurpose::Calls | ConnectionPurpose::Migrate => "",
    };
    let settings = format!(
        "SET search_path TO \"{schema}\", pg_temp;
         SET backstitch.tells TO 'no';
         SET default_transaction_isolation TO 'read committed';
         SET client_min_messages TO warning;
         SET jit TO off;
         SET statement_timeout TO {statement_ms};
         SET lock_timeout TO {lock_ms};
         SET idle_in_transaction_session_timeout TO {idle_ms};
         {dump_settings}"
    );
    sqlx::raw_sql(AssertSqlSafe(settings))
        .execute(&mut connection)
        .await?;
    Ok(connection)
}

fn connect_options(options: &SqlOptions, trusted: Option<&[u8]>) -> PgConnectOptions {
    let database = if options.database.is_empty() {
        "postgres"
    } else {
        &options.database
    };
    let mut connect_options = PgConnectOptions::new_without_pgpass()
        .host(options.host())
        .port(options.port())
        .database(database)
        .application_name("backstitch")
        .ssl_mode(match options.tls {
            SqlTls::Disable => PgSslMode::Disable,
            SqlTls::Prefer => PgSslMode::Prefer,
            SqlTls::Require => PgSslMode::Require,
            SqlTls::VerifyCa => PgSslMode::VerifyCa,
            SqlTls::VerifyFull => PgSslMode::VerifyFull,
        })
        .disable_statement_logging();
    if !options.user.is_empty() {
        connect_options = connect_options.username(&options.user);
    }
    if !options.password.is_empty() {
        connect_options = connect_options.password(options.password.reveal());
    }
    if let Some(trusted) = trusted {
        connect_options = connect_options.ssl_root_cert_from_pem(trusted.to_vec());
    }
    connect_options
}

/// See `outbox::lock_athletes`.
pub(crate) async fn lock_athletes(
    connection: &mut PgConnection,
    buckets: &[i64],
    is_exclusive: bool,
) -> Sql<()> {
    sqlx::query("SELECT lock_athletes($1, $2)")
        .bind(buckets)
        .bind(is_exclusive)
        .execute(connection)
        .await?;
    Ok(())
}

/// See `deleted_athletes::update_pairs`.
pub(crate) async fn update_pairs(
    connection: &mut PgConnection,
    athletes: &[i64],
) -> Sql<Vec<(i64, i64)>> {
    sqlx::query_as("SELECT group_key, member FROM move_away($1)")
        .bind(athletes)
        .fetch_all(connection)
        .await
}

/// Inserts notifications for `groups` and for all groups of `athletes`. Returns the first ones, at
/// least `NOTIFICATIONS_MAX + 1` if there are so many.
pub(crate) async fn enqueue_notifications(
    connection: &mut PgConnection,
    groups: &[(Source, Group)],
    athletes: &[i64],
    now_ms: i64,
) -> Sql<Vec<OutboxRow>> {
    let limit = i64::try_from(NOTIFICATIONS_MAX + 1).unwrap_or(i64::MAX);
    let mut rows: Vec<OutboxRow> = Vec::new();
    if !groups.is_empty() {
        let sources: Vec<&str> = groups.iter().map(|(source, _)| source.name()).collect();
        let keys: Vec<i64> = groups.iter().map(|(_, group)| group.key).collect();
        let members: Vec<i64> = groups.iter().map(|(_, group)| group.member).collect();
        rows = sqlx::query_as(
            "WITH created AS (
                 INSERT INTO outbox (source, group_key, member, made_at_ms)
                 SELECT t.source, t.group_key, t.member, $4
                 FROM unnest($1::text[], $2::bigint[], $3::bigint[])
                     WITH ORDINALITY AS t (source, group_key, member, group_index)
                 ORDER BY t.group_index
                 RETURNING id, source, group_key, member)
             SELECT id, source, group_key, member FROM created ORDER BY id LIMIT $5",
        )
        .bind(sources)
        .bind(keys)
        .bind(members)
        .bind(now_ms)
        .bind(limit)
        .fetch_all(&mut *connection)
        .await?;
    }
    if !athletes.is_empty() {
        let athlete_rows: Vec<OutboxRow> = sqlx::query_as(
            "WITH created AS (
                 INSERT INTO outbox (source, group_key, member, made_at_ms)
                 SELECT $1, e.segment_id, e.athlete_id, $2 FROM efforts e
                 WHERE e.athlete_id = ANY ($3)
                 GROUP BY e.athlete_id, e.segment_id ORDER BY e.athlete_id, e.segment_id
                 RETURNING id, source, group_key, member)
             SELECT id, source, group_key, member FROM created ORDER BY id LIMIT $4",
        )
        .bind(Source::Efforts.name())
        .bind(now_ms)
        .bind(athletes)
        .bind(limit)
        .fetch_all(connection)
        .await?;
        rows.extend(athlete_rows);
    }
    Ok(rows)
}

/// See `write::write`. Columns are bound as arrays.
pub(crate) async fn write(
    connection: &mut PgConnection,
    rows: &TableRows,
    conflict: Conflict,
) -> Sql<()> {
    let mut arguments = PgArguments::default();
    let mut arrays = Vec::with_capacity(rows.columns.len());
    for (index, (_, column)) in rows.columns.iter().enumerate() {
        let (added, kind) = match column {
            ColumnValues::Ints(values) => (arguments.add(values), "bigint"),
            ColumnValues::Floats(values) => (arguments.add(values), "double precision"),
            ColumnValues::Texts(values) => (arguments.add(values), "text"),
            ColumnValues::Booleans(values) => (arguments.add(values), "boolean"),
        };
        added.map_err(sqlx::Error::Encode)?;
        arrays.push(format!("${}::{kind}[]", index + 1));
    }
    let (table, key) = (rows.table, rows.key.join(", "));
    let statement = format!(
        "INSERT INTO {table} ({names}) SELECT {names} FROM unnest({arrays}) AS t ({names})
         ORDER BY {key} {conflict_clause}",
        names = rows.column_names().join(", "),
        arrays = arrays.join(", "),
        conflict_clause = rows.conflict_clause(Dialect::Postgres, conflict),
    );
    let query = sqlx::query_with(AssertSqlSafe(statement), arguments);
    query.execute(connection).await.map(drop)
}

/// Reads all rows of the first groups, up to `rows_max` rows but at least one group, by one
/// statement. It counts the groups as far as the limit requires, and reads those that fit. A group
/// without rows returns one row that has only its position.
pub(crate) async fn first_groups(
    connection: &mut PgConnection,
    source: GroupedSource,
    groups: &[Group],
    rows_max: usize,
) -> Sql<FirstGroups> {
    let rows_max = i64::try_from(rows_max).unwrap_or(i64::MAX);
    let (table, key) = (source.table(), source.key_column());
    let fitting = if rows_max == i64::MAX {
        "SELECT g.group_index, g.group_key, g.member
         FROM unnest($1::bigint[], $2::bigint[]) WITH ORDINALITY AS g (group_key, member, group_index)
         WHERE $3::bigint IS NOT NULL"
            .to_owned()
    } else {
        format!(
            "SELECT group_index, group_key, member FROM (
                 SELECT g.*, sum(n) OVER (ORDER BY g.group_index) AS total
                 FROM unnest($1::bigint[], $2::bigint[])
                     WITH ORDINALITY AS g (group_key, member, group_index)
                 CROSS JOIN LATERAL (SELECT count(*) AS n FROM (
                     SELECT 1 FROM {table} e
                     WHERE e.{key} = g.group_key AND e.athlete_id = g.member
                     LIMIT least($3, 9223372036854775806) + 1) AS limited) AS counted
             ) AS summed WHERE group_index = 1 OR total <= $3"
        )
    };
    // The inner ORDER BY forces the planner to read group by group.
    let statement = format!(
        "WITH fitting AS MATERIALIZED ({fitting})
         SELECT e.*, f.group_index FROM fitting f LEFT JOIN LATERAL (
             SELECT {columns} FROM {table} e {join}
             WHERE e.{key} = f.group_key AND e.athlete_id = f.member ORDER BY e.id) AS e ON true
         ORDER BY f.group_key, f.member, e.id",
        columns = source.columns(Dialect::Postgres),
        join = GroupedSource::JOIN,
    );
    let keys: Vec<i64> = groups.iter().map(|group| group.key).collect();
    let members: Vec<i64> = groups.iter().map(|group| group.member).collect();
    let rows = sqlx::query(AssertSqlSafe(statement))
        .bind(keys)
        .bind(members)
        .bind(rows_max)
        .fetch_all(connection)
        .await?;
    let mut columns = RowBuilder::new(source);
    let (mut group_count, mut last_position) = (0, None);
    for row in &rows {
        let position: i64 = row.try_get(source.column_count())?;
        if last_position != Some(position) {
            group_count += 1;
            last_position = Some(position);
        }
        if row.try_get::<Option<i64>, _>(0)?.is_some() {
            columns.push(row)?;
        }
    }
    Ok(FirstGroups {
        rows: columns.finish()?,
        groups: group_count,
    })
}

/// Diagnoses the settings of the server.
pub(crate) async fn diagnose(connection: &mut PgConnection) -> Sql<Vec<String>> {
    const VERSION_MIN: i32 = 130_000;
    let (number, name, encoding, is_standby, is_read_only): (i32, String, String, bool, String) =
        sqlx::query_as(
            "SELECT current_setting('server_version_num')::integer,
                    current_setting('server_version'), current_setting('server_encoding'),
                    pg_is_in_recovery(), current_setting('default_transaction_read_only')",
        )
        .fetch_one(connection)
        .await?;
    let mut problems = Vec::new();
    if number < VERSION_MIN {
        problems.push(format!(
            "the server's version is {name}; PostgreSQL 13 or newer is required"
        ));
    }
    if encoding != "UTF8" {
        problems.push(format!(
            "the database's encoding is {encoding}; create a database with the encoding UTF8"
        ));
    }
    if is_standby || is_read_only == "on" {
        problems.push("the server is a standby or read-only; configure the primary".to_owned());
    }
    Ok(problems)
}
