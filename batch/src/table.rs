//! The input table of a query: a stream of rows, reduced to the columns that the query uses.

use std::fmt;
use std::sync::Arc;

use arrow::datatypes::SchemaRef;
use async_trait::async_trait;
use datafusion::catalog::{Session, TableProvider};
use datafusion::error::DataFusionError;
use datafusion::logical_expr::{Expr, TableType};
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::streaming::{PartitionStream, StreamingTableExec};

/// A stream of rows that can be reduced to some columns.
pub(crate) trait RowSource: PartitionStream {
    /// Returns the rows with only the columns at these indices.
    ///
    /// # Errors
    /// If a column does not exist.
    fn project(&self, columns: &[usize]) -> Result<Arc<dyn PartitionStream>, DataFusionError>;
}

/// A table over a [`RowSource`].
pub(crate) struct StreamTable(Arc<dyn RowSource>);

impl StreamTable {
    pub(crate) fn new(rows: Arc<dyn RowSource>) -> Arc<Self> {
        Arc::new(Self(rows))
    }
}

impl fmt::Debug for StreamTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("StreamTable").field(&self.0).finish()
    }
}

#[async_trait]
impl TableProvider for StreamTable {
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
            Some(columns) => self.0.project(columns)?,
            None => Arc::clone(&self.0) as Arc<dyn PartitionStream>,
        };
        let schema = Arc::clone(rows.schema());
        let plan = StreamingTableExec::try_new(schema, vec![rows], None, None, false, limit)?;
        Ok(Arc::new(plan))
    }
}
