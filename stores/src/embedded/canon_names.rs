//! Names in `canon.db`.

use async_trait::async_trait;
use sqlx::Connection;

use super::canon::SqliteCanon;
use super::canon_statement::Embedded;
use super::db::BEGIN_WRITE;
use crate::Result;
use crate::canon_sql::names;
use crate::names::{Named, Names};

#[async_trait]
impl Names for SqliteCanon {
    async fn names(&self, of: Named, ids: &[i64]) -> Result<Vec<(i64, String)>> {
        let db = self.db.current().await?;
        let mut connection = db.reader().await?;
        let found = names::names(&mut Embedded(&mut connection), of, ids).await;
        found.map_err(db.fault(names::READING))
    }

    async fn find(&self, of: Named, text: &str, limit: usize) -> Result<Vec<(i64, String)>> {
        let db = self.db.current().await?;
        let mut connection = db.reader().await?;
        let found = names::find(&mut Embedded(&mut connection), of, text, limit).await;
        found.map_err(db.fault(names::READING))
    }

    async fn set_names(&self, of: Named, given: &[(i64, Option<String>)]) -> Result<()> {
        names::given(of)?;
        let db = self.db.current().await?;
        let fault = db.fault(names::CHANGING);
        let mut connection = db.writer().await?;
        let mut tx = connection.begin_with(BEGIN_WRITE).await.map_err(fault)?;
        let done = names::set(&mut Embedded(&mut tx), of, given).await;
        done.map_err(fault)?;
        tx.commit().await.map_err(fault)
    }
}
