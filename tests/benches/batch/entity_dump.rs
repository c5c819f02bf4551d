//! An entity store that only dumps given rows: all that a snapshot needs.

use std::fmt;
use std::sync::{Mutex, PoisonError};

use arrow::array::RecordBatch;
use async_trait::async_trait;
use futures::stream::BoxStream;
use schemas::entities::{Application, Entity, Group};
use schemas::source::Source;
use stores::entities::{EntityRead, FirstGroups, Notification, OutboxStatus, QueryResult};
use stores::{Error, Result};

/// Rows in the order of a dump.
pub(crate) type Dump = BoxStream<'static, Result<RecordBatch>>;

/// Rows that can be dumped once.
pub(crate) struct Rows(Mutex<Option<Dump>>);

impl Rows {
    pub(crate) const fn new(rows: Dump) -> Self {
        Self(Mutex::new(Some(rows)))
    }
}

impl fmt::Debug for Rows {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Rows").finish_non_exhaustive()
    }
}

fn unsupported<T>() -> Result<T> {
    Err(Error::Refused(
        "this store only dumps its rows, once".to_owned(),
    ))
}

#[async_trait]
impl EntityRead for Rows {
    async fn first_groups(&self, _: Source, _: &[Group], _: usize) -> Result<FirstGroups> {
        unsupported()
    }

    async fn dump(&self, _: Source, keys: Option<&[i64]>, _: usize) -> Result<Dump> {
        let mut rows = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match rows.take() {
            Some(rows) if keys.is_none() => Ok(rows),
            _ => unsupported(),
        }
    }

    async fn query(&self, _: &str, _: u64) -> Result<QueryResult> {
        unsupported()
    }

    async fn club_members(&self, _: i64) -> Result<Vec<i64>> {
        unsupported()
    }

    async fn followed_athletes(&self, _: i64) -> Result<Vec<i64>> {
        unsupported()
    }

    async fn application(&self, _: i64) -> Result<Option<Application>> {
        unsupported()
    }

    async fn applications(&self, _: Option<i64>, _: usize) -> Result<Vec<Application>> {
        unsupported()
    }

    async fn versions(&self, _: &[Entity]) -> Result<Vec<Option<i64>>> {
        unsupported()
    }

    async fn outbox_status(&self, _: Source) -> Result<OutboxStatus> {
        Ok(OutboxStatus::default())
    }

    async fn pending_notifications(
        &self,
        _: Source,
        _: i64,
        _: usize,
    ) -> Result<Vec<Notification>> {
        Ok(Vec::new())
    }
}
