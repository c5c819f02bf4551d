//! Where rows of a board stood at the end of an earlier day.

use std::collections::HashMap;
use std::sync::Arc;

use jiff::civil::Date;
use jiff::tz::TimeZone;
use jobs::board::{Ranked, Standings};
use jobs::{Board, Job};
use schemas::seam::Epoch;
use stores::board_cache::BoardWant;
use stores::views::Head as StoredHead;
use tokio::sync::Semaphore;
use tokio::time::Duration;

use super::cached::Noted;
use super::read::{BoardQuestion, Reader, StoredNodes};
use crate::options::ServingPorts;
use crate::patience::Patience;
use crate::read::{Memory, ReadError};

/// Where rows stood on a board at the end of an earlier day.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Earlier {
    /// Row by row, from 0 on; nothing where its member was not on the board.
    pub(crate) places: Vec<Option<u64>>,
    /// Rows that the filters let through.
    pub(crate) total: u64,
    pub(crate) epoch: Epoch,
    /// When its run published it.
    pub(crate) at_us: i64,
}

/// Reads where rows of a key's board stood at the end of a day before this one: on what the batch layer made of the board
/// then, with the same filters and without anything that was newer. Nothing if no such edition is kept. It stays the same
/// all day, so it need not be of the moment of the rows, which may come from the cache.
///
/// # Errors
/// As [`super::read::read`].
pub(crate) async fn read_earlier(
    ports: &ServingPorts,
    (tries, memory, noted): (&Semaphore, &Memory, &Noted),
    (job, question): (&Arc<Job<Board>>, &BoardQuestion),
    (rows, day): (&[Ranked], Date),
    patience: Duration,
) -> Result<Option<Earlier>, ReadError> {
    let mut patience = Patience::of(patience);
    let mut reader = Reader::new(ports, (memory, noted), (job, question));
    loop {
        let permit = tries.acquire().await;
        let error = match reader.earlier(rows, day).await {
            Err(error @ ReadError::Replaced) => error,
            done => return done,
        };
        drop(permit);
        if !patience.wait(&error).await {
            return Err(error);
        }
    }
}

impl Reader<'_> {
    /// Where rows of the only key stood at the end of an earlier day.
    async fn earlier(&mut self, rows: &[Ranked], day: Date) -> Result<Option<Earlier>, ReadError> {
        let [key] = self.question.keys[..] else {
            return Ok(None);
        };
        let encoded = self.key_bytes(key)?;
        let (view, views) = (self.job.view(), &self.ports.views);
        let heads = views.heads(view, std::slice::from_ref(&encoded)).await?;
        let Some(head) = heads.and_then(|heads| heads.into_iter().next().flatten()) else {
            return Ok(None);
        };
        let read = self.edition_before((&head, &encoded), rows, day).await;
        read.map_err(|error| self.told(key, Some(head), error))
    }

    async fn edition_before(
        &self,
        (head, key): (&StoredHead, &[u8]),
        rows: &[Ranked],
        day: Date,
    ) -> Result<Option<Earlier>, ReadError> {
        let midnight = day.to_zoned(TimeZone::UTC);
        let midnight_us = midnight.map_or(i64::MIN, |at| at.timestamp().as_microsecond());
        let Some(root) = head.earlier_at(midnight_us) else {
            return Ok(None);
        };
        let score_bytes = 8 * self.job.score().0.len();
        let standings = Standings::of_sheet(&root.root, score_bytes)
            .map_err(|error| ReadError::DamagedBoard(error.to_string()))?;
        let nodes = StoredNodes {
            views: &*self.ports.views,
            view: self.job.view(),
            key,
        };
        let mut members: Vec<_> = rows.iter().map(|row| row.member.clone()).collect();
        members.sort_unstable();
        let want = BoardWant::Places(members);
        let then = self.board(&standings, &nodes, &want).await?;
        let places = then.places.into_iter().flatten();
        let members = then.rows.iter().map(|row| row.member.as_slice());
        let places: HashMap<&[u8], u64> = members.zip(places).collect();
        let place = |row: &Ranked| places.get(row.member.as_slice()).copied();
        Ok(Some(Earlier {
            places: rows.iter().map(place).collect(),
            total: then.sum.count,
            epoch: root.epoch,
            at_us: root.stamp_us,
        }))
    }
}
