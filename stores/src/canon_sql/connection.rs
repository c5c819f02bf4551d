//! Connections to a server, which run the statements that every database understands.

use sqlx::AssertSqlSafe;
#[cfg(feature = "mysql")]
use sqlx::mysql::MySqlConnection;
#[cfg(feature = "postgres")]
use sqlx::postgres::PgConnection;

use super::connect::lock_counters;
use super::session::{Fetched, Sql, Statements, Value};

impl Statements for Link<'_> {
    async fn run(&mut self, statement: &str, values: &[Value<'_>]) -> Sql<u64> {
        Link::run(self, statement, values).await
    }

    async fn rows<T: Fetched>(&mut self, statement: &str, values: &[Value<'_>]) -> Sql<Vec<T>> {
        Link::rows(self, statement, values).await
    }

    async fn hold(&mut self, application: i64) -> Sql<()> {
        lock_counters(self, std::iter::once(application)).await
    }
}

/// A connection that runs statements.
#[derive(Debug)]
pub(crate) enum Link<'a> {
    #[cfg(feature = "postgres")]
    Postgres(&'a mut PgConnection),
    #[cfg(feature = "mysql")]
    MySql(&'a mut MySqlConnection),
}

impl Link<'_> {
    /// Runs a statement; answers how many rows it changed.
    pub(crate) async fn run(&mut self, statement: &str, values: &[Value<'_>]) -> Sql<u64> {
        match self {
            #[cfg(feature = "postgres")]
            Self::Postgres(link) => {
                let mut query = sqlx::query(AssertSqlSafe(dollars(statement, values)));
                for value in values {
                    query = match value {
                        Value::Int(value) => query.bind(value),
                        Value::Text(value) => query.bind(value),
                        Value::IntOrNull(value) => query.bind(value),
                        Value::TextOrNull(value) => query.bind(value),
                        Value::Ints(values) => query.bind(values),
                    };
                }
                Ok(query.execute(&mut **link).await?.rows_affected())
            }
            #[cfg(feature = "mysql")]
            Self::MySql(link) => {
                let mut query = sqlx::query(AssertSqlSafe(lists(statement, values)));
                for value in values {
                    query = match value {
                        Value::Int(value) => query.bind(value),
                        Value::Text(value) => query.bind(value),
                        Value::IntOrNull(value) => query.bind(value),
                        Value::TextOrNull(value) => query.bind(value),
                        Value::Ints(values) => padded(values).fold(query, sqlx::query::Query::bind),
                    };
                }
                Ok(query.execute(&mut **link).await?.rows_affected())
            }
        }
    }

    /// All rows that a statement finds.
    pub(crate) async fn rows<T: Fetched>(
        &mut self,
        statement: &str,
        values: &[Value<'_>],
    ) -> Sql<Vec<T>> {
        match self {
            #[cfg(feature = "postgres")]
            Self::Postgres(link) => {
                let text = AssertSqlSafe(dollars(statement, values));
                let mut query = sqlx::query_as::<sqlx::Postgres, T>(text);
                for value in values {
                    query = match value {
                        Value::Int(value) => query.bind(value),
                        Value::Text(value) => query.bind(value),
                        Value::IntOrNull(value) => query.bind(value),
                        Value::TextOrNull(value) => query.bind(value),
                        Value::Ints(values) => query.bind(values),
                    };
                }
                query.fetch_all(&mut **link).await
            }
            #[cfg(feature = "mysql")]
            Self::MySql(link) => {
                let text = AssertSqlSafe(lists(statement, values));
                let mut query = sqlx::query_as::<sqlx::MySql, T>(text);
                for value in values {
                    query = match value {
                        Value::Int(value) => query.bind(value),
                        Value::Text(value) => query.bind(value),
                        Value::IntOrNull(value) => query.bind(value),
                        Value::TextOrNull(value) => query.bind(value),
                        Value::Ints(values) => {
                            padded(values).fold(query, sqlx::query::QueryAs::bind)
                        }
                    };
                }
                query.fetch_all(&mut **link).await
            }
        }
    }

    /// The first row that a statement finds.
    pub(crate) async fn row<T: Fetched>(
        &mut self,
        statement: &str,
        values: &[Value<'_>],
    ) -> Sql<Option<T>> {
        let rows = self.rows(statement, values).await?;
        Ok(rows.into_iter().next())
    }

    /// Runs statements that are not prepared, one after the other.
    pub(crate) async fn raw(&mut self, statements: &str) -> Sql<()> {
        let statements = AssertSqlSafe(statements.to_owned());
        match self {
            #[cfg(feature = "postgres")]
            Self::Postgres(link) => sqlx::raw_sql(statements)
                .execute(&mut **link)
                .await
                .map(drop),
            #[cfg(feature = "mysql")]
            Self::MySql(link) => sqlx::raw_sql(statements)
                .execute(&mut **link)
                .await
                .map(drop),
        }
    }

    /// Whether the server is PostgreSQL.
    pub(crate) const fn is_postgres(&self) -> bool {
        match self {
            #[cfg(feature = "postgres")]
            Self::Postgres(_) => true,
            #[cfg(feature = "mysql")]
            Self::MySql(_) => false,
        }
    }

    /// One of two texts.
    pub(crate) const fn either(&self, postgres: &'static str, mysql: &'static str) -> &'static str {
        if self.is_postgres() { postgres } else { mysql }
    }
}

/// The statement as PostgreSQL writes it: `$1` for the first `?`, `= ANY ($1)` for `IN ?`, and `bigint`
/// for `SIGNED`, as MySQL calls such a number where a value is made one.
#[cfg(feature = "postgres")]
fn dollars(statement: &str, values: &[Value<'_>]) -> String {
    let statement = statement.replace(" AS SIGNED)", " AS bigint)");
    let mut text = String::with_capacity(statement.len() + 2 * values.len());
    for (index, part) in statement.split('?').enumerate() {
        if index == 0 {
            text.push_str(part);
            continue;
        }
        if let Some(Value::Ints(_)) = values.get(index - 1) {
            text.truncate(text.trim_end_matches("IN ").len());
            text.push_str(&format!("= ANY (${index})"));
        } else {
            text.push_str(&format!("${index}"));
        }
        text.push_str(part);
    }
    text
}

/// The statement as MySQL writes it: `IN (?, ?)` for a list of two.
#[cfg(feature = "mysql")]
fn lists(statement: &str, values: &[Value<'_>]) -> String {
    let mut text = String::with_capacity(statement.len());
    for (index, part) in statement.split('?').enumerate() {
        if index > 0 {
            match values.get(index - 1) {
                Some(Value::Ints(values)) => {
                    let signs = vec!["?"; values.len().next_power_of_two()];
                    text.push_str(&format!("({})", signs.join(",")));
                }
                _ => text.push('?'),
            }
        }
        text.push_str(part);
    }
    text
}

/// The numbers and the last one again: a list has one of few lengths, so that few statements are
/// prepared.
#[cfg(feature = "mysql")]
fn padded(values: &[i64]) -> impl Iterator<Item = i64> {
    let last = values.last().copied().into_iter();
    let missing = values.len().next_power_of_two() - values.len();
    values.iter().copied().chain(last.cycle().take(missing))
}

/// A connection; when it is dropped, it is closed, and the server takes back what was not committed.
#[derive(Debug)]
pub(crate) enum Own {
    #[cfg(feature = "postgres")]
    Postgres(PgConnection),
    #[cfg(feature = "mysql")]
    MySql(MySqlConnection),
}

impl Own {
    pub(crate) const fn link(&mut self) -> Link<'_> {
        match self {
            #[cfg(feature = "postgres")]
            Self::Postgres(connection) => Link::Postgres(connection),
            #[cfg(feature = "mysql")]
            Self::MySql(connection) => Link::MySql(connection),
        }
    }
}

#[cfg(all(test, feature = "postgres", feature = "mysql"))]
mod tests {
    use super::*;

    #[test]
    fn statements_are_written_for_each_server() {
        let statement = "SELECT CAST(a AS SIGNED) FROM t WHERE b = ? AND c IN ? AND d = ?";
        let values = [Value::Int(1), Value::Ints(&[1, 2, 3]), Value::Text("x")];
        assert_eq!(
            dollars(statement, &values),
            "SELECT CAST(a AS bigint) FROM t WHERE b = $1 AND c = ANY ($2) AND d = $3"
        );
        assert_eq!(
            lists(statement, &values),
            "SELECT CAST(a AS SIGNED) FROM t WHERE b = ? AND c IN (?,?,?,?) AND d = ?"
        );
        assert_eq!(padded(&[1, 2, 3]).collect::<Vec<_>>(), [1, 2, 3, 3]);
    }
}
