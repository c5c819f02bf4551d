//! A task as a DataFusion plan: a leaf with one partition, whose rows are chunks of the response.
//! The codec serializes the plan for the scheduler, which only forwards it.

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

use crate::TaskRunner;

/// The prefix of the encoded plan. No plan of Ballista begins with it.
const PLAN_PREFIX: &[u8] = b"backstitch errand\n";
/// The size of a row. Each row is one message.
const CHUNK_BYTES: usize = 1 << 20;

static SCHEMA: LazyLock<SchemaRef> = LazyLock::new(|| {
    let piece = Field::new("piece", DataType::Binary, false);
    Arc::new(Schema::new(vec![piece]))
});

/// The plan of a task.
pub(crate) struct TaskExec {
    task: Arc<str>,
    /// Runs the task; `None` where the plan is only forwarded.
    runner: Option<Arc<dyn TaskRunner>>,
    properties: Arc<PlanProperties>,
}

impl TaskExec {
    fn new(task: Arc<str>, runner: Option<Arc<dyn TaskRunner>>) -> Self {
        let properties = PlanProperties::new(
            EquivalenceProperties::new(Arc::clone(&SCHEMA)),
            Partitioning::UnknownPartitioning(1),
            EmissionType::Final,
            Boundedness::Bounded,
        );
        Self {
            task,
            runner,
            properties: Arc::new(properties),
        }
    }
}

impl fmt::Debug for TaskExec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TaskExec").finish_non_exhaustive()
    }
}

impl DisplayAs for TaskExec {
    fn fmt_as(&self, _: DisplayFormatType, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "TaskExec: {} bytes", self.task.len())
    }
}

impl ExecutionPlan for TaskExec {
    fn name(&self) -> &'static str {
        "TaskExec"
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
        let Some(runner) = self.runner.clone() else {
            let problem = "only executors of Backstitch run tasks";
            return Err(DataFusionError::Execution(problem.to_owned()));
        };
        let task = Arc::clone(&self.task);
        let chunks = async move { chunk_response(&runner.run_task(&task).await) };
        let rows = futures::stream::once(chunks).flat_map(futures::stream::iter);
        let schema = Arc::clone(&SCHEMA);
        Ok(Box::pin(RecordBatchStreamAdapter::new(schema, rows)))
    }
}

/// Divides a response into rows, one per batch.
fn chunk_response(response: &str) -> Vec<Result<RecordBatch>> {
    let chunks = response.as_bytes().chunks(CHUNK_BYTES);
    let batch = |chunk: &[u8]| {
        let column = Arc::new(BinaryArray::from(vec![chunk]));
        RecordBatch::try_new(Arc::clone(&SCHEMA), vec![column]).map_err(DataFusionError::from)
    };
    chunks.map(batch).collect()
}

/// Appends the rows of a batch to a response. Returns false if the batch has no such rows.
pub(crate) fn append_response(response: &mut Vec<u8>, batch: &RecordBatch) -> bool {
    let column = batch.columns().first();
    let Some(column) = column.and_then(|column| column.as_binary_opt::<i32>()) else {
        return false;
    };
    for chunk in column.iter().flatten() {
        response.extend_from_slice(chunk);
    }
    true
}

/// Encodes a task for the scheduler.
pub(crate) fn encode(task: &str) -> Result<Vec<u8>> {
    let plan = Arc::new(TaskExec::new(task.into(), None));
    let plan = PhysicalPlanNode::try_from_physical_plan(plan, &Codec::default())?;
    let mut bytes = Vec::new();
    plan.try_encode(&mut bytes)?;
    Ok(bytes)
}

/// Encodes and decodes the plans of tasks. Ballista handles all other plans.
#[derive(Debug, Default)]
pub(crate) struct Codec {
    ballista: BallistaPhysicalExtensionCodec,
    runner: Option<Arc<dyn TaskRunner>>,
}

impl Codec {
    /// Creates the codec of an executor, on which `runner` runs the tasks.
    pub(crate) fn with_runner(runner: Arc<dyn TaskRunner>) -> Self {
        Self {
            ballista: BallistaPhysicalExtensionCodec::default(),
            runner: Some(runner),
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
        let Some(task) = bytes.strip_prefix(PLAN_PREFIX) else {
            return self.ballista.try_decode(bytes, inputs, context, converter);
        };
        let task = std::str::from_utf8(task)
            .map_err(|error| DataFusionError::Execution(format!("a task is not UTF-8: {error}")))?;
        Ok(Arc::new(TaskExec::new(task.into(), self.runner.clone())))
    }

    fn try_encode(
        &self,
        node: Arc<dyn ExecutionPlan>,
        bytes: &mut Vec<u8>,
        converter: &dyn PhysicalProtoConverterExtension,
    ) -> Result<()> {
        let Some(task) = node.downcast_ref::<TaskExec>() else {
            return self.ballista.try_encode(node, bytes, converter);
        };
        bytes.extend_from_slice(PLAN_PREFIX);
        bytes.extend_from_slice(task.task.as_bytes());
        Ok(())
    }
}

/// An execution engine that runs tasks and no other plans. Other plans could read any file
/// that the process can read.
#[derive(Default)]
pub(crate) struct TaskOnlyEngine(DefaultExecutionEngine);

impl ExecutionEngine for TaskOnlyEngine {
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
        if !is_task(&plan) {
            let problem = "executors of Backstitch run tasks of batch runs and no other plans";
            return Err(DataFusionError::Execution(problem.to_owned()));
        }
        self.0.create_query_stage_exec(
            job_id, stage_id, task_id, partitions, plan, work_dir, config,
        )
    }
}

/// Returns whether a stage only writes the response of one task.
fn is_task(stage: &Arc<dyn ExecutionPlan>) -> bool {
    let is_task_plan = |plan: &Arc<dyn ExecutionPlan>| plan.downcast_ref::<TaskExec>().is_some();
    let children = stage.children();
    stage.downcast_ref::<ShuffleWriterExec>().is_some()
        && children.len() == 1
        && children.into_iter().all(is_task_plan)
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
    impl TaskRunner for Echo {
        async fn run_task(&self, task: &str) -> String {
            task.repeat(3)
        }
    }

    #[tokio::test]
    async fn a_task_and_its_response_round_trip() {
        let task = "é".repeat(CHUNK_BYTES / 2);
        let bytes = encode(&task).expect("bytes");
        let context = SessionContext::new().task_ctx();
        let decoded = |codec: Codec| {
            let plan = PhysicalPlanNode::try_decode(&bytes).expect("a plan");
            plan.try_into_physical_plan(&context, &codec).expect("ours")
        };
        let forwarded = decoded(Codec::default());
        assert!(forwarded.execute(0, Arc::clone(&context)).is_err());
        let plan = decoded(Codec::with_runner(Arc::new(Echo)));
        let mut rows = plan.execute(0, Arc::clone(&context)).expect("rows");
        let (mut response, mut count) = (Vec::new(), 0);
        while let Some(batch) = rows.next().await {
            assert!(append_response(&mut response, &batch.expect("a batch")));
            count += 1;
        }
        assert_eq!(String::from_utf8(response), Ok(task.repeat(3)));
        assert_eq!(count, 3);
    }

    #[test]
    fn other_plans_are_refused() {
        let stage = |plan: Arc<dyn ExecutionPlan>| {
            let stage = ShuffleWriterExec::try_new("job".into(), 1, plan, String::new());
            Arc::new(stage.expect("a stage")) as Arc<dyn ExecutionPlan>
        };
        let create_stage = |plan: Arc<dyn ExecutionPlan>| {
            let config = SessionConfig::new();
            let engine = TaskOnlyEngine::default();
            let stage =
                engine.create_query_stage_exec("job".into(), 1, 1, vec![0], plan, "", &config);
            stage.map(|_| ()).map_err(|error| error.to_string())
        };
        let task = || Arc::new(TaskExec::new("task".into(), None)) as Arc<dyn ExecutionPlan>;
        create_stage(stage(task())).expect("a task");
        let other = Arc::new(EmptyExec::new(Arc::clone(&SCHEMA)));
        for other in [stage(other), task(), stage(stage(task()))] {
            let error = create_stage(other).expect_err("no task");
            assert!(error.contains("no other plans"), "{error}");
        }
    }
}
