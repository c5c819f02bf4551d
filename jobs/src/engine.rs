//! The query engine and its settings, which are the same in every layer.

use std::path::PathBuf;
use std::sync::Arc;

use datafusion::error::DataFusionError;
use datafusion::execution::disk_manager::{DiskManagerBuilder, DiskManagerMode};
use datafusion::execution::memory_pool::{
    FairSpillPool, MemoryConsumer, MemoryReservation, TrackConsumersPool,
};
use datafusion::execution::runtime_env::{RuntimeEnv, RuntimeEnvBuilder};
use datafusion::execution::session_state::SessionStateBuilder;
use datafusion::prelude::{SessionConfig, SessionContext};

use crate::min_struct::min_function;
use crate::spill::SpillFolder;
use crate::{Error, Result, sketch, truncate};

/// Resource limits of a query engine.
#[derive(Debug, Clone)]
pub struct EngineOptions {
    /// Number of parallel tasks.
    pub threads: usize,
    /// Memory of all queries together, in bytes.
    pub memory_bytes: usize,
    /// The parent of the engine's own spill folder.
    pub spill_folder: PathBuf,
    /// Maximum spilled bytes.
    pub spill_bytes_max: u64,
}

/// A query engine. Its sessions share memory and a spill folder.
#[derive(Debug, Clone)]
pub struct Engine {
    runtime: Arc<RuntimeEnv>,
    threads: usize,
    memory_bytes: usize,
    /// Deleted with the last clone of the engine.
    spill_folder: Arc<SpillFolder>,
}

impl Engine {
    /// Creates an engine.
    ///
    /// # Errors
    /// [`Error::Engine`] if the spill folder can't be created.
    pub fn new(options: EngineOptions) -> Result<Self> {
        let spill_folder = SpillFolder::create_in(&options.spill_folder)
            .map_err(|error| Error::Engine(DataFusionError::IoError(error)))?;
        let disk = DiskManagerBuilder::default()
            .with_mode(DiskManagerMode::Directories(vec![
                spill_folder.path().to_owned(),
            ]))
            .with_max_temp_directory_size(options.spill_bytes_max);
        let pool = TrackConsumersPool::new(
            FairSpillPool::new(options.memory_bytes),
            std::num::NonZeroUsize::MIN.saturating_add(4),
        );
        let runtime = RuntimeEnvBuilder::new()
            .with_memory_pool(Arc::new(pool))
            .with_disk_manager_builder(disk)
            // Paths come from manifests. A cached listing would hide files that were added later.
            .with_object_list_cache_limit(0)
            .build_arc()
            .map_err(Error::Engine)?;
        Ok(Self {
            runtime,
            threads: options.threads.max(1),
            memory_bytes: options.memory_bytes,
            spill_folder: Arc::new(spill_folder),
        })
    }

    /// Returns the number of parallel tasks.
    #[must_use]
    pub const fn threads(&self) -> usize {
        self.threads
    }

    /// Returns the memory of one task, in bytes.
    #[must_use]
    pub const fn memory_bytes_per_task(&self) -> usize {
        self.memory_bytes / self.threads
    }

    /// Reserves memory of the same pool for data outside queries.
    #[must_use]
    pub fn reserve_memory(&self, name: &str) -> MemoryReservation {
        MemoryConsumer::new(name).register(&self.runtime.memory_pool)
    }

    /// Reserves memory for data that can spill. The reservation gets as large a share as each
    /// query.
    #[must_use]
    pub fn reserve_spillable_memory(&self, name: &str) -> MemoryReservation {
        let consumer = MemoryConsumer::new(name).with_can_spill(true);
        consumer.register(&self.runtime.memory_pool)
    }

    /// Creates a folder for intermediate files beside the spill files. It is deleted when the value
    /// is dropped. If the process is killed, the next process deletes it.
    ///
    /// # Errors
    /// [`Error::Engine`] if the folder can't be created.
    pub fn create_scratch_folder(&self) -> Result<tempfile::TempDir> {
        tempfile::TempDir::new_in(self.spill_folder.path())
            .map_err(|error| Error::Engine(DataFusionError::IoError(error)))
    }

    /// Creates a session for the queries of one task. It does not repartition.
    #[must_use]
    pub fn create_session(&self) -> SessionContext {
        create_session(Arc::clone(&self.runtime))
    }
}

/// Creates a session with the settings that all queries use.
pub(crate) fn create_session(runtime: Arc<RuntimeEnv>) -> SessionContext {
    let state = SessionStateBuilder::new()
        .with_default_features()
        .with_config(session_config())
        .with_runtime_env(runtime)
        .build();
    let session = SessionContext::new_with_state(state);
    session.register_udaf(min_function());
    session.register_udf(sketch::sketch_cell_function());
    session.register_udf(truncate::date_trunc_function());
    session
}

/// Returns settings for correct and reproducible results.
fn session_config() -> SessionConfig {
    let mut config = SessionConfig::new()
        .with_target_partitions(1)
        .with_information_schema(false)
        .with_create_default_catalog_and_schema(true);
    let options = config.options_mut();
    // These options give wrong minima and maxima (apache/datafusion#24816) and wrong rows (#24352).
    options.optimizer.enable_dynamic_filter_pushdown = false;
    options.optimizer.enable_aggregate_dynamic_filter_pushdown = false;
    options.optimizer.enable_join_dynamic_filter_pushdown = false;
    options.optimizer.enable_topk_dynamic_filter_pushdown = false;
    options.execution.parquet.pushdown_filters = false;
    // One text type in every layer.
    options.execution.parquet.schema_force_view_types = false;
    options.sql_parser.map_string_types_to_utf8view = false;
    config
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unsafe_optimizations_are_disabled() {
        let config = session_config();
        let options = config.options();
        assert!(!options.optimizer.enable_aggregate_dynamic_filter_pushdown);
        assert!(!options.optimizer.enable_join_dynamic_filter_pushdown);
        assert!(!options.optimizer.enable_topk_dynamic_filter_pushdown);
        assert!(!options.execution.parquet.pushdown_filters);
    }
}
