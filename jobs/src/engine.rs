//! The query engine's settings, in one place for every session of every layer.

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

use crate::min_struct::min;
use crate::spill::SpillFolder;
use crate::{Error, Result, sketch, truncate};

/// What a query engine may use.
#[derive(Debug, Clone)]
pub struct EngineOptions {
    /// Tasks that run side by side.
    pub threads: usize,
    /// Memory of all queries together, in bytes.
    pub memory_bytes: usize,
    /// Where to spill: in a folder of the engine's own in this one.
    pub spill_folder: PathBuf,
    /// How much may be spilled, in bytes.
    pub spill_bytes_max: u64,
}

/// A query engine: sessions that share memory and a folder to spill to.
#[derive(Debug, Clone)]
pub struct Engine {
    runtime: Arc<RuntimeEnv>,
    threads: usize,
    memory_bytes: usize,
    /// Removed with the last copy of the engine.
    spill: Arc<SpillFolder>,
}

impl Engine {
    /// An engine.
    ///
    /// # Errors
    /// [`Error::Engine`] if the folder to spill to can't be used.
    pub fn new(options: EngineOptions) -> Result<Self> {
        let spill = SpillFolder::under(&options.spill_folder)
            .map_err(|error| Error::Engine(DataFusionError::IoError(error)))?;
        let disk = DiskManagerBuilder::default()
            .with_mode(DiskManagerMode::Directories(vec![spill.path().to_owned()]))
            .with_max_temp_directory_size(options.spill_bytes_max);
        let pool = TrackConsumersPool::new(
            FairSpillPool::new(options.memory_bytes),
            std::num::NonZeroUsize::MIN.saturating_add(4),
        );
        let runtime = RuntimeEnvBuilder::new()
            .with_memory_pool(Arc::new(pool))
            .with_disk_manager_builder(disk)
            // Paths come from manifests; a cached listing would hide files that came later.
            .with_object_list_cache_limit(0)
            .build_arc()
            .map_err(Error::Engine)?;
        Ok(Self {
            runtime,
            threads: options.threads.max(1),
            memory_bytes: options.memory_bytes,
            spill: Arc::new(spill),
        })
    }

    /// How many tasks run side by side.
    #[must_use]
    pub const fn threads(&self) -> usize {
        self.threads
    }

    /// The part of the memory of all queries that a task may use, in bytes.
    #[must_use]
    pub const fn memory_bytes_per_task(&self) -> usize {
        self.memory_bytes / self.threads
    }

    /// An account of what is kept in memory beside queries, of the same memory.
    #[must_use]
    pub fn room(&self, name: &str) -> MemoryReservation {
        MemoryConsumer::new(name).register(&self.runtime.memory_pool)
    }

    /// The same for what makes room by writing to disk where it is refused more: it has as large a share as each query.
    #[must_use]
    pub fn room_that_spills(&self, name: &str) -> MemoryReservation {
        let consumer = MemoryConsumer::new(name).with_can_spill(true);
        consumer.register(&self.runtime.memory_pool)
    }

    /// A new folder beside what queries spill, for what is made on the way to an answer. It is removed with the
    /// value; what a process leaves that is killed, the next one removes.
    ///
    /// # Errors
    /// [`Error::Engine`] if it can't be made.
    pub fn scratch(&self) -> Result<tempfile::TempDir> {
        tempfile::TempDir::new_in(self.spill.path())
            .map_err(|error| Error::Engine(DataFusionError::IoError(error)))
    }

    /// A session for the queries of one task: nothing is repartitioned.
    #[must_use]
    pub fn session(&self) -> SessionContext {
        session(Arc::clone(&self.runtime))
    }
}

/// A session with the settings that every query has.
pub(crate) fn session(runtime: Arc<RuntimeEnv>) -> SessionContext {
    let state = SessionStateBuilder::new()
        .with_default_features()
        .with_config(config())
        .with_runtime_env(runtime)
        .build();
    let session = SessionContext::new_with_state(state);
    session.register_udaf(min());
    session.register_udf(sketch::function());
    session.register_udf(truncate::function());
    session
}

/// The switches that keep answers right or the same everywhere.
fn config() -> SessionConfig {
    let mut config = SessionConfig::new()
        .with_target_partitions(1)
        .with_information_schema(false)
        .with_create_default_catalog_and_schema(true);
    let options = config.options_mut();
    // Wrong minima and maxima (apache/datafusion#24816), wrong rows (#24352).
    options.optimizer.enable_dynamic_filter_pushdown = false;
    options.optimizer.enable_aggregate_dynamic_filter_pushdown = false;
    options.optimizer.enable_join_dynamic_filter_pushdown = false;
    options.optimizer.enable_topk_dynamic_filter_pushdown = false;
    options.execution.parquet.pushdown_filters = false;
    // One type of text in every layer.
    options.execution.parquet.schema_force_view_types = false;
    options.sql_parser.map_string_types_to_utf8view = false;
    config
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_switches_are_off() {
        let config = config();
        let options = config.options();
        assert!(!options.optimizer.enable_aggregate_dynamic_filter_pushdown);
        assert!(!options.optimizer.enable_join_dynamic_filter_pushdown);
        assert!(!options.optimizer.enable_topk_dynamic_filter_pushdown);
        assert!(!options.execution.parquet.pushdown_filters);
    }
}
