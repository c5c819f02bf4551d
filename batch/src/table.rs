//! What a query reads: rows that come as a stream, with no more columns than the query takes.

use std::fmt;
use std::sync::Arc;

use arrow::datatypes::SchemaRef;
use async_trait::async_trait;
use datafusion::catalog::{Session, TableProvider};
use datafusion::error::DataFusionError;
use datafusion::logical_expr::{Expr, TableType};
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::streaming::{PartitionStream, StreamingTableExec};

/// Rows in one stream, of which some columns can be had alone.
pub(crate) trait Rows: PartitionStream {
    /// The same rows with the columns at these places.
    ///
    /// # Errors
    /// If there is no such column.
    fn narrowed(&self, columns: &[usize]) -> Result<Arc<dyn PartitionStream>, DataFusionError>;
}

/// A table of such rows.
pub(crate) struct Table(Arc<dyn Rows>);

impl Table {
    pub(crate) fn of(rows: Arc<dyn Rows>) -> Arc<Self> {
        Arc::new(Self(rows))
    }
}

impl fmt::Debug for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Table").field(&self.0).finish()
    }
}

#[async_trait]
impl TableProvider for Table {
    fn schema(&self) -> SchemaRef {
        Arc::clone(self.0.schema())
    }

    fn table_type(&self) -> TableType {
        TableType::Base
    }

    async fn scan(
        &self,
        _: &dyn Session,
        projection: Option<&Vec<usize>>,
        _: &[Expr],
        limit: Option<usize>,
    ) -> Result<Arc<dyn ExecutionPlan>, DataFusionError> {
        let rows = match projection {
            Some(columns) => self.0.narrowed(columns)?,
            None => Arc::clone(&self.0) as Arc<dyn PartitionStream>,
        };
        let schema = Arc::clone(rows.schema());
        let plan = StreamingTableExec::try_new(schema, vec![rows], None, None, false, limit)?;
        Ok(Arc::new(plan))
    }
}
