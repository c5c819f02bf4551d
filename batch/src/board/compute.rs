//! Computing boards: each file of the snapshot by itself, since it holds all rows of its keys. What is here is what one
//! task does, in whichever process; which tasks there are is in [`super::tasks`].

use std::sync::Arc;

use datafusion::catalog::MemTable;
use datafusion::logical_expr::SortExpr;
use datafusion::prelude::ident;
use futures::TryStreamExt;
use jobs::{Board, Engine, Job, checked, query};
use parquet::arrow::ArrowWriter;
use schemas::entities;
use stores::archive::Archive;
use stores::parquet_file;
use uuid::Uuid;

use super::manifest::ResultFile;
use crate::snapshot::SnapshotFile;
use crate::{Error, Result};

const READ_ROWS: usize = 65_536;
const GROUP_ROWS_MAX: usize = 262_144;

/// What tasks share.
#[derive(Debug)]
pub(crate) struct Compute {
    pub(crate) engine: Engine,
    pub(crate) archive: Archive,
    /// How the paths of result files begin.
    pub(crate) files: String,
    /// Bytes of one of them, about.
    pub(crate) result_bytes_max: usize,
    pub(crate) jobs: Vec<Arc<Job<Board>>>,
}

/// By job: the files of its rows.
pub(crate) type Files = Vec<Vec<ResultFile>>;

impl Compute {
    /// Every job over one file of the snapshot.
    pub(crate) async fn file(&self, file: &SnapshotFile) -> Result<Files> {
        let groups = (0..file.row_groups).collect();
        let rows = self.archive.rows(&file.path, groups, READ_ROWS).await?;
        let rows: Vec<_> = rows.try_collect().await?;
        let mut written = Vec::new();
        for job in &self.jobs {
            let failed = |source| jobs::Error::Query {
                job: job.name().to_owned(),
                source,
            };
            let schema = entities::schema(job.source())
                .ok_or_else(|| Error::Fault(format!("{} has no rows", job.source())))?;
            if rows
                .iter()
                .any(|batch| batch.schema().fields() != schema.fields())
            {
                let what = "a snapshot's file has not the columns of its source";
                return Err(Error::damaged(&file.path, what));
            }
            let context = self.engine.session();
            // A query may read its table several times, so it is held in memory.
            let table = MemTable::try_new(schema, vec![rows.clone()]).map_err(failed)?;
            let mut batches = query(&context, job, Arc::new(table))
                .await?
                .sort(order(job))
                .map_err(failed)?
                .execute_stream()
                .await
                .map_err(failed)?;
            let mut writer = RowWriter::new(self, job);
            while let Some(batch) = batches.try_next().await.map_err(failed)? {
                writer.write(&checked(job, &batch)?).await?;
            }
            written.push(writer.finish().await?);
        }
        Ok(written)
    }
}

/// The order of results: key, board, score, member.
fn order(job: &Job<Board>) -> Vec<SortExpr> {
    [job.key(), job.boards(), job.score(), job.member()]
        .into_iter()
        .flat_map(|shape| &shape.0)
        .map(|column| ident(&column.name).sort(true, true))
        .collect()
}

/// Writes the rows of one job over one file of a snapshot.
struct RowWriter<'a> {
    compute: &'a Compute,
    job: &'a Job<Board>,
    file: Option<(ArrowWriter<Vec<u8>>, u64)>,
    done: Vec<ResultFile>,
}

impl<'a> RowWriter<'a> {
    const fn new(compute: &'a Compute, job: &'a Job<Board>) -> Self {
        Self {
            compute,
            job,
            file: None,
            done: Vec::new(),
        }
    }

    async fn write(&mut self, rows: &arrow::array::RecordBatch) -> Result<()> {
        let fault = |error| Error::fault("writing a result", error);
        if self.file.is_none() {
            let writer = parquet_file::begin(self.job.schema(), GROUP_ROWS_MAX);
            self.file = Some((writer.map_err(fault)?, 0));
        }
        let Some((writer, count)) = &mut self.file else {
            return Ok(());
        };
        writer.write(rows).map_err(fault)?;
        *count += rows.num_rows() as u64;
        if writer.bytes_written() + writer.in_progress_size() > self.compute.result_bytes_max {
            self.end_file().await?;
        }
        Ok(())
    }

    async fn end_file(&mut self) -> Result<()> {
        let fault = |error| Error::fault("writing a result", error);
        if let Some((mut writer, rows)) = self.file.take() {
            let id = Uuid::new_v4();
            let path = format!("{}-{}-{id}.parquet", self.compute.files, self.job.name());
            writer.flush().map_err(fault)?;
            let row_groups = writer.flushed_row_groups().len();
            let bytes = parquet_file::finish(writer).map_err(fault)?;
            self.compute.archive.put(&path, bytes).await?;
            self.done.push(ResultFile {
                path,
                row_groups,
                rows,
            });
        }
        Ok(())
    }

    async fn finish(mut self) -> Result<Vec<ResultFile>> {
        self.end_file().await?;
        Ok(self.done)
    }
}
