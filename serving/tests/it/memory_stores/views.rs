//! Views: batch rows and runs of plays, and published boards.

use arrow::array::{BinaryArray, Int64Array, UInt32Array, UInt64Array};
use async_trait::async_trait;
use bytes::Bytes;
use schemas::seam::{Epoch, Run, Runs};
use schemas::source::Source;
use stores::views::{Head, NodeName, PartitionQuery, RunDetails, RunRecords, ViewRows, ViewsRead};
use stores::{Error, Result};

use super::{MemoryStores, NOW_MS, is_in_range};

#[async_trait]
impl ViewsRead for MemoryStores {
    async fn runs(&self, source: Source) -> Result<RunRecords> {
        if self.faults().is_view_store_down {
            return Err(Error::Unavailable {
                operation: "reading runs".to_owned(),
                reason: "the test made it unavailable".to_owned(),
            });
        }
        if source != Source::Plays {
            return Ok(self.boards().build_run_records());
        }
        let views = self.rows.keys();
        let complete_epochs = views.map(|view| (view.clone(), self.newest_complete));
        Ok(RunRecords {
            runs: Runs::from_iter(self.runs.clone()),
            complete_epochs: complete_epochs.collect(),
        })
    }

    async fn rows(&self, view: &str, queries: &[PartitionQuery]) -> Result<Option<ViewRows>> {
        {
            let mut counts = self.read_counts();
            counts.batch_rows += 1;
            counts.table_partitions_max = counts.table_partitions_max.max(queries.len());
        }
        let Some(rows) = self.rows.get(view) else {
            return Ok(None);
        };
        let mut matching: Vec<(u32, &[u8], i64, Epoch)> = Vec::new();
        for (index, query) in (0..).zip(queries) {
            for ((partition, row), (count, epoch)) in rows {
                if *partition == query.partition && is_in_range(row, &query.range) {
                    matching.push((index, row, *count, *epoch));
                }
            }
        }
        let matching = || matching.iter();
        Ok(Some(ViewRows {
            queries: matching().map(|row| row.0).collect::<UInt32Array>(),
            rows: BinaryArray::from_iter_values(matching().map(|row| row.1)),
            counts: matching().map(|row| row.2).collect::<Int64Array>(),
            epochs: matching().map(|row| row.3).collect::<UInt64Array>(),
        }))
    }

    async fn heads(&self, view: &str, keys: &[Vec<u8>]) -> Result<Option<Vec<Option<Head>>>> {
        let boards = self.boards();
        let heads = keys.iter().map(|key| boards.find_head(view, key));
        Ok(Some(heads.collect()))
    }

    async fn nodes(&self, _: &str, _: &[u8], names: &[NodeName]) -> Result<Vec<Option<Bytes>>> {
        let mut faults = self.faults();
        if faults.missing_node_reads > 0 {
            faults.missing_node_reads -= 1;
            return Ok(vec![None; names.len()]);
        }
        Ok(self.boards().find_nodes(names))
    }

    async fn list_run_details(
        &self,
        _: Source,
        before: Option<Epoch>,
        limit: usize,
    ) -> Result<Vec<RunDetails>> {
        let is_before = |run: &&Run| before.is_none_or(|before| run.epoch < before);
        let runs = self.runs.iter().rev().filter(is_before);
        Ok(runs.take(limit).map(build_run_details).collect())
    }

    async fn run_details(&self, _: Source, epoch: Epoch) -> Result<Option<RunDetails>> {
        let run = self.runs.iter().find(|run| run.epoch == epoch);
        Ok(run.map(build_run_details))
    }
}

fn build_run_details(run: &Run) -> RunDetails {
    RunDetails {
        run: run.clone(),
        started_at_ms: NOW_MS,
        ended_at_ms: None,
        report: serde_json::json!({"rows_read": 7, "seconds": {"roll": 0.5, "plan": 1.0}}),
    }
}
