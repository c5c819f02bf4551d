//! Typed rows of results.

use scylla::deserialize::row::DeserializeRow;
use scylla::response::PagingState;
use scylla::response::query_result::QueryRowsResult;
use scylla::serialize::row::SerializeRow;
use scylla::statement::prepared::PreparedStatement;

use super::session::Cql;
use crate::Result;

/// A row that borrows nothing from its result.
pub(super) trait OwnedRow: for<'f, 'm> DeserializeRow<'f, 'm> + Send {}

impl<T: for<'f, 'm> DeserializeRow<'f, 'm> + Send> OwnedRow for T {}

impl Cql {
    /// Returns the first row of a result, if there is one.
    pub(super) async fn fetch_first<T: OwnedRow>(
        &self,
        operation: &str,
        text: &str,
        values: impl SerializeRow + Send + Sync,
    ) -> Result<Option<T>> {
        let page = self.read(operation, text, values).await?;
        self.decode_first(operation, &page)
    }

    /// Like [`Self::fetch_first`], for a partition that lightweight transactions change. The server
    /// first completes transactions in progress.
    pub(super) async fn fetch_first_serial<T: OwnedRow>(
        &self,
        operation: &str,
        text: &str,
        values: impl SerializeRow + Send + Sync,
    ) -> Result<Option<T>> {
        let statement = self.prepare_serial(operation, text).await?;
        let from = PagingState::start();
        let (page, _) = self.read_page(operation, &statement, &values, from).await?;
        self.decode_first(operation, &page)
    }

    fn decode_first<T: OwnedRow>(
        &self,
        operation: &str,
        page: &QueryRowsResult,
    ) -> Result<Option<T>> {
        let row = page.maybe_first_row::<T>();
        row.map_err(|error| self.broken(operation, error))
    }

    /// Returns all rows of a result.
    pub(super) async fn fetch_all<T: OwnedRow>(
        &self,
        operation: &str,
        statement: &PreparedStatement,
        values: &(impl SerializeRow + Sync),
    ) -> Result<Vec<T>> {
        let mut rows = Vec::new();
        let each = |row| {
            rows.push(row);
            Ok(())
        };
        self.for_each_row(operation, statement, values, each)
            .await?;
        Ok(rows)
    }

    /// Calls `each` for every row of a result, page by page.
    pub(super) async fn for_each_row<T: OwnedRow>(
        &self,
        operation: &str,
        statement: &PreparedStatement,
        values: &(impl SerializeRow + Sync),
        mut each: impl FnMut(T) -> Result<()> + Send,
    ) -> Result<()> {
        let mut next = Some(PagingState::start());
        while let Some(from) = next {
            let (page, after) = self.read_page(operation, statement, values, from).await?;
            next = after;
            let rows = page.rows::<T>();
            for row in rows.map_err(|error| self.broken(operation, error))? {
                each(row.map_err(|error| self.broken(operation, error))?)?;
            }
        }
        Ok(())
    }
}
