//! Rows of answers as values of types.

use scylla::deserialize::row::DeserializeRow;
use scylla::response::PagingState;
use scylla::response::query_result::QueryRowsResult;
use scylla::serialize::row::SerializeRow;
use scylla::statement::prepared::PreparedStatement;

use super::session::Cql;
use crate::Result;

/// A row that holds nothing of the answer that it is from.
pub(super) trait OwnedRow: for<'f, 'm> DeserializeRow<'f, 'm> + Send {}

impl<T: for<'f, 'm> DeserializeRow<'f, 'm> + Send> OwnedRow for T {}

impl Cql {
    /// The first row of an answer, if there is one.
    pub(super) async fn first<T: OwnedRow>(
        &self,
        doing: &str,
        text: &str,
        values: impl SerializeRow + Send + Sync,
    ) -> Result<Option<T>> {
        let page = self.read(doing, text, values).await?;
        self.first_of(doing, &page)
    }

    /// As [`Self::first`], of a partition that lightweight transactions change: what one of them left undecided is decided
    /// before.
    pub(super) async fn first_serial<T: OwnedRow>(
        &self,
        doing: &str,
        text: &str,
        values: impl SerializeRow + Send + Sync,
    ) -> Result<Option<T>> {
        let statement = self.prepare_serial(doing, text).await?;
        let from = PagingState::start();
        let (page, _) = self.page(doing, &statement, &values, from).await?;
        self.first_of(doing, &page)
    }

    fn first_of<T: OwnedRow>(&self, doing: &str, page: &QueryRowsResult) -> Result<Option<T>> {
        let row = page.maybe_first_row::<T>();
        row.map_err(|error| self.broken(doing, error))
    }

    /// All rows of an answer.
    pub(super) async fn all<T: OwnedRow>(
        &self,
        doing: &str,
        statement: &PreparedStatement,
        values: &(impl SerializeRow + Sync),
    ) -> Result<Vec<T>> {
        let mut found = Vec::new();
        let take = |row| {
            found.push(row);
            Ok(())
        };
        self.each(doing, statement, values, take).await?;
        Ok(found)
    }

    /// Calls `take` with every row of an answer, page by page.
    pub(super) async fn each<T: OwnedRow>(
        &self,
        doing: &str,
        statement: &PreparedStatement,
        values: &(impl SerializeRow + Sync),
        mut take: impl FnMut(T) -> Result<()> + Send,
    ) -> Result<()> {
        let mut next = Some(PagingState::start());
        while let Some(from) = next {
            let (page, after) = self.page(doing, statement, values, from).await?;
            next = after;
            let rows = page.rows::<T>();
            for row in rows.map_err(|error| self.broken(doing, error))? {
                take(row.map_err(|error| self.broken(doing, error))?)?;
            }
        }
        Ok(())
    }
}
