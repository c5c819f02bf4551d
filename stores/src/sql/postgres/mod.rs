//! The entity store's dialect of PostgreSQL.
//!
//! Lists are bound as arrays and joined, so a statement has one text for any number of rows. Writing
//! runs at READ COMMITTED: what a statement locked is what it reads, and the order of locks and the
//! rule of versions do the rest.

mod counted;
pub(crate) mod dump;

use schemas::entities::Group;
use schemas::source::Source;
use sqlx::postgres::{PgArguments, PgConnectOptions, PgConnection, PgSslMode};
use sqlx::{Arguments, AssertSqlSafe, ConnectOptions, Connection, Row};

use crate::canon::{FirstGroups, NOTIFICATIONS_MAX};
use crate::sql::connection::{Dialect, Sql};
use crate::sql::decode::{Columns, Grouped};
use crate::sql::outbox::Row as Told;
use crate::sql::rows::{Column, Conflict, Rows};
use crate::sql::view_columns::Kind;
use crate::sql::{Meaning, Migration, Purpose, SqlOptions, SqlTls, migrations};

/// The migrations, in their order.
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

/// The names of this schema that are views.
pub(crate) const VIEWS: &str = "SELECT c.relname::text FROM pg_class c
    WHERE c.relnamespace = current_schema()::text::regnamespace AND c.relkind IN ('v', 'm', 'f')";

/// The columns of what is in this schema, as `view_columns::There`. Of a domain, what it is made of counts.
pub(crate) const COLUMNS: &str = "SELECT c.relname::text, a.attname::text,
        format_type(a.atttypid, a.atttypmod), CASE
            WHEN b.typcategory IN ('S', 'E') THEN 'text' ELSE b.typname::text END
    FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
    JOIN pg_type t ON t.oid = a.atttypid
    JOIN pg_type b ON b.oid = CASE WHEN t.typtype = 'd' THEN t.typbasetype ELSE t.oid END
    WHERE c.relnamespace = current_schema()::text::regnamespace
        AND c.relkind IN ('v', 'm', 'f')";

/// Whether a column of a type holds what it has to.
pub(crate) fn fits(kind: Kind, is: &str) -> bool {
    match kind {
        Kind::Number | Kind::Micros => matches!(is, "int2" | "int4" | "int8"),
        Kind::Fraction => matches!(is, "float4" | "float8" | "numeric"),
        Kind::Text => is == "text",
        Kind::Boolean => is == "bool",
    }
}

/// What a column of a view has to be, and how the view says it.
pub(crate) const fn expected(kind: Kind) -> &'static str {
    match kind {
        Kind::Number => {
            "a whole number: smallint, integer or bigint, as the app's table has it (a cast keeps the index from being found)"
        }
        Kind::Micros => {
            "microseconds since 1970 as a bigint: (extract(epoch FROM …) * 1000000)::bigint"
        }
        Kind::Fraction => "a number: double precision, real or numeric",
        Kind::Text => "text: text, varchar, char or an enum; or …::text",
        Kind::Boolean => "a boolean",
    }
}

/// What an error says.
pub(crate) fn meaning(code: &str) -> Meaning {
    match code {
        // Serialization, deadlock, a lock or an answer that took too long, somebody else's insert,
        // and a server that is going, coming, full of connections, or a standby for now.
        "40001" | "40P01" | "55P03" | "57014" | "23505" | "25P03" | "57P01" | "57P02" | "57P03"
        | "57P05" | "53300" | "25006" => Meaning::Later,
        "42P01" | "3F000" | "3D000" | "42703" | "42883" => Meaning::NoSchema,
        "28P01" | "28000" => Meaning::NotLetIn,
        "42501" => Meaning::NoRight,
        code if code.starts_with("08") => Meaning::Later,
        _ => Meaning::Other,
    }
}

/// A new connection.
pub(crate) async fn connect(
    options: &SqlOptions,
    trusted: Option<&[u8]>,
    schema: &str,
    purpose: Purpose,
) -> Sql<PgConnection> {
    let mut connection = PgConnection::connect_with(&to(options, trusted)).await?;
    let (statement_ms, lock_ms, idle_ms) = match purpose {
        Purpose::Calls => (
            options.statement_timeout_ms,
            options.lock_timeout_ms,
            options.request_timeout_ms,
        ),
        Purpose::Dump => (options.dump_timeout_ms, options.lock_timeout_ms, 0),
        Purpose::Migrate => (0, 0, 0),
    };
    let more = match purpose {
        Purpose::Dump => dump::SETTINGS,
        Purpose::Calls | Purpose::Migrate => "",
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
         {more}"
    );
    sqlx::raw_sql(AssertSqlSafe(settings))
        .execute(&mut connection)
        .await?;
    Ok(connection)
}

fn to(options: &SqlOptions, trusted: Option<&[u8]>) -> PgConnectOptions {
    let database = if options.database.is_empty() {
        "postgres"
    } else {
        &options.database
    };
    let mut to = PgConnectOptions::new_without_pgpass()
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
        to = to.username(&options.user);
    }
    if !options.password.is_empty() {
        to = to.password(options.password.reveal());
    }
    if let Some(trusted) = trusted {
        to = to.ssl_root_cert_from_pem(trusted.to_vec());
    }
    to
}

/// See `outbox::lock_athletes`.
pub(crate) async fn lock_athletes(
    connection: &mut PgConnection,
    buckets: &[i64],
    alone: bool,
) -> Sql<()> {
    sqlx::query("SELECT lock_athletes($1, $2)")
        .bind(buckets)
        .bind(alone)
        .execute(connection)
        .await?;
    Ok(())
}

/// See `away::move_away`.
pub(crate) async fn move_away(
    connection: &mut PgConnection,
    athletes: &[i64],
) -> Sql<Vec<(i64, i64)>> {
    sqlx::query_as("SELECT group_key, member FROM move_away($1)")
        .bind(athletes)
        .fetch_all(connection)
        .await
}

/// Puts groups and those of athletes into the outbox; answers the first of them, at most one more than
/// may be told.
pub(crate) async fn tell(
    connection: &mut PgConnection,
    groups: &[(Source, Group)],
    athletes: &[i64],
    now_ms: i64,
) -> Sql<Vec<Told>> {
    let limit = i64::try_from(NOTIFICATIONS_MAX + 1).unwrap_or(i64::MAX);
    let mut told: Vec<Told> = Vec::new();
    if !groups.is_empty() {
        let sources: Vec<&str> = groups.iter().map(|(source, _)| source.name()).collect();
        let keys: Vec<i64> = groups.iter().map(|(_, group)| group.key).collect();
        let members: Vec<i64> = groups.iter().map(|(_, group)| group.member).collect();
        told = sqlx::query_as(
            "WITH made AS (
                 INSERT INTO outbox (source, group_key, member, made_at_ms)
                 SELECT t.source, t.group_key, t.member, $4
                 FROM unnest($1::text[], $2::bigint[], $3::bigint[])
                     WITH ORDINALITY AS t (source, group_key, member, place)
                 ORDER BY t.place
                 RETURNING id, source, group_key, member)
             SELECT id, source, group_key, member FROM made ORDER BY id LIMIT $5",
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
        let more: Vec<Told> = sqlx::query_as(
            "WITH made AS (
                 INSERT INTO outbox (source, group_key, member, made_at_ms)
                 SELECT $1, e.segment_id, e.athlete_id, $2 FROM efforts e
                 WHERE e.athlete_id = ANY ($3)
                 GROUP BY e.athlete_id, e.segment_id ORDER BY e.athlete_id, e.segment_id
                 RETURNING id, source, group_key, member)
             SELECT id, source, group_key, member FROM made ORDER BY id LIMIT $4",
        )
        .bind(Source::Efforts.name())
        .bind(now_ms)
        .bind(athletes)
        .bind(limit)
        .fetch_all(connection)
        .await?;
        told.extend(more);
    }
    Ok(told)
}

/// See `rows::write`: columns are bound as arrays.
pub(crate) async fn write(
    connection: &mut PgConnection,
    rows: &Rows,
    conflict: Conflict,
) -> Sql<()> {
    let mut arguments = PgArguments::default();
    let mut arrays = Vec::with_capacity(rows.columns.len());
    for (index, (_, column)) in rows.columns.iter().enumerate() {
        let (added, kind) = match column {
            Column::Ints(values) => (arguments.add(values), "bigint"),
            Column::Floats(values) => (arguments.add(values), "double precision"),
            Column::Texts(values) => (arguments.add(values), "text"),
            Column::Booleans(values) => (arguments.add(values), "boolean"),
        };
        added.map_err(sqlx::Error::Encode)?;
        arrays.push(format!("${}::{kind}[]", index + 1));
    }
    let (table, key) = (rows.table, rows.key.join(", "));
    let statement = format!(
        "INSERT INTO {table} ({names}) SELECT {names} FROM unnest({arrays}) AS t ({names})
         ORDER BY {key} {rule}",
        names = rows.names().join(", "),
        arrays = arrays.join(", "),
        rule = rows.rule(Dialect::Postgres, conflict),
    );
    let query = sqlx::query_with(AssertSqlSafe(statement), arguments);
    query.execute(connection).await.map(drop)
}

/// All rows of the first of some groups, in one statement: groups are counted as far as it matters, and
/// the rows of those that fit are read. A group without rows answers one row that has only its place.
pub(crate) async fn first_groups(
    connection: &mut PgConnection,
    of: Grouped,
    groups: &[Group],
    rows_max: usize,
) -> Sql<FirstGroups> {
    let rows_max = i64::try_from(rows_max).unwrap_or(i64::MAX);
    let (table, key) = (of.table(), of.key());
    let fitting = if rows_max == i64::MAX {
        "SELECT g.place, g.group_key, g.member
         FROM unnest($1::bigint[], $2::bigint[]) WITH ORDINALITY AS g (group_key, member, place)
         WHERE $3::bigint IS NOT NULL"
            .to_owned()
    } else {
        format!(
            "SELECT place, group_key, member FROM (
                 SELECT g.*, sum(n) OVER (ORDER BY g.place) AS total
                 FROM unnest($1::bigint[], $2::bigint[])
                     WITH ORDINALITY AS g (group_key, member, place)
                 CROSS JOIN LATERAL (SELECT count(*) AS n FROM (
                     SELECT 1 FROM {table} e
                     WHERE e.{key} = g.group_key AND e.athlete_id = g.member
                     LIMIT least($3, 9223372036854775806) + 1) AS few) AS counted
             ) AS summed WHERE place = 1 OR total <= $3"
        )
    };
    // The inner order keeps the planner from doing anything but going from group to group.
    let statement = format!(
        "WITH fitting AS MATERIALIZED ({fitting})
         SELECT e.*, f.place FROM fitting f LEFT JOIN LATERAL (
             SELECT {columns} FROM {table} e {join}
             WHERE e.{key} = f.group_key AND e.athlete_id = f.member ORDER BY e.id) AS e ON true
         ORDER BY f.group_key, f.member, e.id",
        columns = of.columns(Dialect::Postgres),
        join = Grouped::JOIN,
    );
    let keys: Vec<i64> = groups.iter().map(|group| group.key).collect();
    let members: Vec<i64> = groups.iter().map(|group| group.member).collect();
    let found = sqlx::query(AssertSqlSafe(statement))
        .bind(keys)
        .bind(members)
        .bind(rows_max)
        .fetch_all(connection)
        .await?;
    let mut columns = Columns::new(of);
    let (mut answered, mut last) = (0, None);
    for row in &found {
        let place: i64 = row.try_get(of.width())?;
        if last != Some(place) {
            answered += 1;
            last = Some(place);
        }
        if row.try_get::<Option<i64>, _>(0)?.is_some() {
            columns.push(row)?;
        }
    }
    Ok(FirstGroups {
        rows: columns.finish()?,
        groups: answered,
    })
}

/// What is wrong with the server itself.
pub(crate) async fn flaws(connection: &mut PgConnection) -> Sql<Vec<String>> {
    const OLDEST: i32 = 130_000;
    let (number, name, encoding, is_standby, is_read_only): (i32, String, String, bool, String) =
        sqlx::query_as(
            "SELECT current_setting('server_version_num')::integer,
                    current_setting('server_version'), current_setting('server_encoding'),
                    pg_is_in_recovery(), current_setting('default_transaction_read_only')",
        )
        .fetch_one(connection)
        .await?;
    let mut flaws = Vec::new();
    if number < OLDEST {
        flaws.push(format!("it is version {name}; 13 or newer is needed"));
    }
    if encoding != "UTF8" {
        flaws.push(format!(
            "the database's encoding is {encoding}; make a database with UTF8"
        ));
    }
    if is_standby || is_read_only == "on" {
        flaws.push("it is a standby or read only; name the primary".to_owned());
    }
    Ok(flaws)
}
