//! An errand as a plan of DataFusion: a leaf with one partition, whose rows are the pieces of the answer; and how it
//! travels. The scheduler only hands it on.

use std::fmt;
use std::sync::{Arc, LazyLock};

use arrow::array::{AsArray, BinaryArray, RecordBatch};
use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use ballista_core::JobId;
use ballista_core::execution_plans::ShuffleWriterExec;
use ballista_core::serde::BallistaPhysicalExtensionCodec;
use ballista_executor::execution_engine::{
    DefaultExecutionEngine, ExecutionEngine, QueryStageExecutor,
};
use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::error::{DataFusionError, Result};
use datafusion::execution::TaskContext;
use datafusion::physical_expr::{EquivalenceProperties, PhysicalExpr};
use datafusion::physical_plan::execution_plan::{Boundedness, EmissionType};
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::physical_plan::{
    DisplayAs, DisplayFormatType, ExecutionPlan, Partitioning, PlanProperties,
    SendableRecordBatchStream,
};
use datafusion::prelude::SessionConfig;
use datafusion_proto::physical_plan::{
    AsExecutionPlan, PhysicalExtensionCodec, PhysicalProtoConverterExtension,
};
use datafusion_proto::protobuf::PhysicalPlanNode;
use futures::StreamExt;

use crate::Worker;

/// How the bytes of our plan begin; none of Ballista's own do.
const MARK: &[u8] = b"backstitch errand\n";
/// Bytes of one row: each is a message of its own.
const PIECE_BYTES: usize = 1 << 20;

static SCHEMA: LazyLock<SchemaRef> = LazyLock::new(|| {
    let piece = Field::new("piece", DataType::Binary, false);
    Arc::new(Schema::new(vec![piece]))
});

/// The plan of an errand.
pub(crate) struct ErrandExec {
    errand: Arc<str>,
    /// Who carries it out; nobody where it is only handed on.
    worker: Option<Arc<dyn Worker>>,
    properties: Arc<PlanProperties>,
}

impl ErrandExec {
    fn new(errand: Arc<str>, worker: Option<Arc<dyn Worker>>) -> Self {
        let properties = PlanProperties::new(
            EquivalenceProperties::new(Arc::clone(&SCHEMA)),
            Partitioning::UnknownPartitioning(1),
            EmissionType::Final,
            Boundedness::Bounded,
        );
        Self {
            errand,
            worker,
            properties: Arc::new(properties),
        }
    }
}

impl fmt::Debug for ErrandExec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ErrandExec").finish_non_exhaustive()
    }
}

impl DisplayAs for ErrandExec {
    fn fmt_as(&self, _: DisplayFormatType, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ErrandExec: {} bytes", self.errand.len())
    }
}

impl ExecutionPlan for ErrandExec {
    fn name(&self) -> &'static str {
        "ErrandExec"
    }

    fn properties(&self) -> &Arc<PlanProperties> {
        &self.properties
    }

    fn children(&self) -> Vec<&Arc<dyn ExecutionPlan>> {
        Vec::new()
    }

    fn apply_expressions(
        &self,
        _: &mut dyn FnMut(&Arc<dyn PhysicalExpr>) -> Result<TreeNodeRecursion>,
    ) -> Result<TreeNodeRecursion> {
        Ok(TreeNodeRecursion::Continue)
    }

    fn with_new_children(
        self: Arc<Self>,
        _: Vec<Arc<dyn ExecutionPlan>>,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        Ok(self)
    }

    fn execute(&self, _: usize, _: Arc<TaskContext>) -> Result<SendableRecordBatchStream> {
        let Some(worker) = self.worker.clone() else {
            let what = "errands are carried out by executors of Backstitch alone";
            return Err(DataFusionError::Execution(what.to_owned()));
        };
        let errand = Arc::clone(&self.errand);
        let answer = async move { pieces(&worker.carry_out(&errand).await) };
        let rows = futures::stream::once(answer).flat_map(futures::stream::iter);
        let schema = Arc::clone(&SCHEMA);
        Ok(Box::pin(RecordBatchStreamAdapter::new(schema, rows)))
    }
}

/// The rows of an answer, each in a batch of its own.
fn pieces(answer: &str) -> Vec<Result<RecordBatch>> {
    let pieces = answer.as_bytes().chunks(PIECE_BYTES);
    let batch = |piece: &[u8]| {
        let column = Arc::new(BinaryArray::from(vec![piece]));
        RecordBatch::try_new(Arc::clone(&SCHEMA), vec![column]).map_err(DataFusionError::from)
    };
    pieces.map(batch).collect()
}

/// Adds the rows of a batch to an answer; false if it has none.
pub(crate) fn join(answer: &mut Vec<u8>, batch: &RecordBatch) -> bool {
    let column = batch.columns().first();
    let Some(column) = column.and_then(|column| column.as_binary_opt::<i32>()) else {
        return false;
    };
    for piece in column.iter().flatten() {
        answer.extend_from_slice(piece);
    }
    true
}

/// An errand as it is sent to the scheduler.
pub(crate) fn encoded(errand: &str) -> Result<Vec<u8>> {
    let plan = Arc::new(ErrandExec::new(errand.into(), None));
    let plan = PhysicalPlanNode::try_from_physical_plan(plan, &Codec::default())?;
    let mut bytes = Vec::new();
    plan.try_encode(&mut bytes)?;
    Ok(bytes)
}

/// Reads and writes our plan, and leaves all others to Ballista.
#[derive(Debug, Default)]
pub(crate) struct Codec {
    ballista: BallistaPhysicalExtensionCodec,
    worker: Option<Arc<dyn Worker>>,
}

impl Codec {
    /// For an executor, on which a worker carries errands out.
    pub(crate) fn of(worker: Arc<dyn Worker>) -> Self {
        Self {
            ballista: BallistaPhysicalExtensionCodec::default(),
            worker: Some(worker),
        }
    }
}

impl PhysicalExtensionCodec for Codec {
    fn try_decode(
        &self,
        bytes: &[u8],
        inputs: &[Arc<dyn ExecutionPlan>],
        context: &TaskContext,
        converter: &dyn PhysicalProtoConverterExtension,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let Some(errand) = bytes.strip_prefix(MARK) else {
            return self.ballista.try_decode(bytes, inputs, context, converter);
        };
        let errand = std::str::from_utf8(errand)
            .map_err(|error| DataFusionError::Execution(format!("an errand: {error}")))?;
        Ok(Arc::new(ErrandExec::new(
            errand.into(),
            self.worker.clone(),
        )))
    }

    fn try_encode(
        &self,
        node: Arc<dyn ExecutionPlan>,
        bytes: &mut Vec<u8>,
        converter: &dyn PhysicalProtoConverterExtension,
    ) -> Result<()> {
        let Some(errand) = node.downcast_ref::<ErrandExec>() else {
            return self.ballista.try_encode(node, bytes, converter);
        };
        bytes.extend_from_slice(MARK);
        bytes.extend_from_slice(errand.errand.as_bytes());
        Ok(())
    }
}

/// Carries errands out, and no other plan: one could read any file that the process may read.
#[derive(Default)]
pub(crate) struct ErrandsOnly(DefaultExecutionEngine);

impl ExecutionEngine for ErrandsOnly {
    fn create_query_stage_exec(
        &self,
        job_id: JobId,
        stage_id: usize,
        task_id: usize,
        partitions: Vec<usize>,
        plan: Arc<dyn ExecutionPlan>,
        work_dir: &str,
        config: &SessionConfig,
    ) -> Result<Arc<dyn QueryStageExecutor>> {
        if !is_errand(&plan) {
            let what = "executors of Backstitch carry tasks of batch runs out, and no other plans";
            return Err(DataFusionError::Execution(what.to_owned()));
        }
        self.0.create_query_stage_exec(
            job_id, stage_id, task_id, partitions, plan, work_dir, config,
        )
    }
}

/// Whether a stage writes down what comes of one errand, and does nothing else.
fn is_errand(stage: &Arc<dyn ExecutionPlan>) -> bool {
    let is_of_errand = |plan: &Arc<dyn ExecutionPlan>| plan.downcast_ref::<ErrandExec>().is_some();
    let parts = stage.children();
    stage.downcast_ref::<ShuffleWriterExec>().is_some()
        && parts.len() == 1
        && parts.into_iter().all(is_of_errand)
}

#[cfg(test)]
mod tests {
    use async_trait::async_trait;
    use datafusion::physical_plan::empty::EmptyExec;
    use datafusion::prelude::SessionContext;

    use super::*;

    #[derive(Debug)]
    struct Echo;

    #[async_trait]
    impl Worker for Echo {
        async fn carry_out(&self, errand: &str) -> String {
            errand.repeat(3)
        }
    }

    #[tokio::test]
    async fn an_errand_travels_and_its_answer_comes_back_whole() {
        let errand = "é".repeat(PIECE_BYTES / 2);
        let bytes = encoded(&errand).expect("bytes");
        let context = SessionContext::new().task_ctx();
        let decoded = |codec: Codec| {
            let plan = PhysicalPlanNode::try_decode(&bytes).expect("a plan");
            plan.try_into_physical_plan(&context, &codec).expect("ours")
        };
        let handed_on = decoded(Codec::default());
        assert!(handed_on.execute(0, Arc::clone(&context)).is_err());
        let plan = decoded(Codec::of(Arc::new(Echo)));
        let mut rows = plan.execute(0, Arc::clone(&context)).expect("rows");
        let (mut answer, mut count) = (Vec::new(), 0);
        while let Some(batch) = rows.next().await {
            assert!(join(&mut answer, &batch.expect("a batch")));
            count += 1;
        }
        assert_eq!(String::from_utf8(answer), Ok(errand.repeat(3)));
        assert_eq!(count, 3);
    }

    #[test]
    fn other_plans_are_refused() {
        let stage = |plan: Arc<dyn ExecutionPlan>| {
            let stage = ShuffleWriterExec::try_new("job".into(), 1, plan, String::new());
            Arc::new(stage.expect("a stage")) as Arc<dyn ExecutionPlan>
        };
        let carried_out = |plan: Arc<dyn ExecutionPlan>| {
            let config = SessionConfig::new();
            let engine = ErrandsOnly::default();
            let stage =
                engine.create_query_stage_exec("job".into(), 1, 1, vec![0], plan, "", &config);
            stage.map(|_| ()).map_err(|error| error.to_string())
        };
        let errand = || Arc::new(ErrandExec::new("errand".into(), None)) as Arc<dyn ExecutionPlan>;
        carried_out(stage(errand())).expect("an errand");
        let other = Arc::new(EmptyExec::new(Arc::clone(&SCHEMA)));
        for other in [stage(other), errand(), stage(stage(errand()))] {
            let error = carried_out(other).expect_err("no errand");
            assert!(error.contains("no other plans"), "{error}");
        }
    }
}
