//! Statements that write rows of any width, many at once.

use std::sync::Arc;

use sqlx::error::BoxDynError;
use sqlx::sqlite::SqliteArguments;
use sqlx::{Arguments, AssertSqlSafe, SqliteConnection};

/// The numbers of rows that a statement may have, largest first. Its text depends only on this
/// number, so a few sizes make up every number and stay prepared. At the largest, rows of ten
/// values stay well below the 32,766 that SQLite lets a statement have.
const SIZES: [usize; 4] = [512, 64, 8, 1];

/// A statement that takes rows of `width` values, by number of rows.
#[derive(Debug)]
pub(super) struct RowsOf {
    width: usize,
    texts: [Arc<str>; SIZES.len()],
}

impl RowsOf {
    /// The statement `INSERT INTO table (columns) SELECT * FROM rows WHERE true conflict`.
    pub(super) fn insert(table: &str, columns: &[&str], conflict: &str) -> Self {
        let width = columns.len();
        let row = format!("({})", vec!["?"; width].join(","));
        let columns = columns.join(", ");
        // Without `WHERE true` the parser takes `ON` for a part of a join.
        let texts = SIZES.map(|size| {
            let rows = vec![row.as_str(); size].join(",");
            let text = format!(
                "INSERT INTO {table} ({columns}) SELECT * FROM (VALUES {rows}) WHERE true {conflict}"
            );
            Arc::from(text)
        });
        Self { width, texts }
    }

    /// Runs the statement for all rows, in their order. `bind` adds the values of a row.
    pub(super) async fn run<T: Sync>(
        &self,
        connection: &mut SqliteConnection,
        rows: &[T],
        bind: impl Fn(&mut SqliteArguments, &T) -> Result<(), BoxDynError> + Send,
    ) -> Result<(), sqlx::Error> {
        let mut left = rows;
        for (size, text) in SIZES.into_iter().zip(&self.texts) {
            while let Some((now, later)) = left.split_at_checked(size) {
                let mut arguments = SqliteArguments::default();
                arguments.reserve(size * self.width, 0);
                for row in now {
                    bind(&mut arguments, row).map_err(sqlx::Error::Encode)?;
                }
                sqlx::query_with(AssertSqlSafe(Arc::clone(text)), arguments)
                    .execute(&mut *connection)
                    .await?;
                left = later;
            }
        }
        Ok(())
    }
}

/// Numbers as a JSON array: a list of any length in one parameter, for SQLite's `json_each`.
pub(super) fn json(numbers: impl Iterator<Item = i64>) -> String {
    let mut text = String::from("[");
    for number in numbers {
        if text.len() > 1 {
            text.push(',');
        }
        text.push_str(&number.to_string());
    }
    text.push(']');
    text
}
