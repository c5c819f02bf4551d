//! Live state in `live.db`: partition states, and the deltas and live entries of each in
//! containers.
//!
//! A *container* (table `places`) holds the rows of one partition state, generation, epoch and
//! view, and has a small number. So the rows of a micro-batch are adjacent in the file, a read is
//! one range per retained epoch, and pruning deletes one range. The table `parts` holds the deltas
//! of aggregates, `states` the entries of boards, `outbox` numbered board changes that are not yet
//! published, and `sums` live counts. Triggers delete a live count if its entries change without
//! it, for example by a process of an earlier version.
//!
//! The file can be rebuilt from the log, so it may be deleted while processes use it. The next call
//! finds an empty file without partition states, and the worker rebuilds them.

use std::path::Path;

use async_trait::async_trait;
use schemas::seam::{Checkpoint, CheckpointMismatch, Cut, PartitionState};

use super::db::{DatabaseSpec, Db, Upgrade};
use super::live_state::{load, store};
use super::live_write::{add_rows, bind_changes, delete_garbage, ensure_container};
use super::{live_counts, live_outbox};
use crate::Result;
use crate::live::{Changes, LiveWrite, Outbox, PartitionId, StateTransition};

/// Rows of garbage that one transaction deletes, because the worker waits meanwhile.
const GARBAGE_ROWS: usize = 4096;

/// Outbox; added in version 3 of the file.
macro_rules! outbox_table {
    () => {
        "
        CREATE TABLE outbox (
            number INTEGER PRIMARY KEY AUTOINCREMENT,
            slot INTEGER NOT NULL,
            generation INTEGER NOT NULL,
            entry BLOB NOT NULL
        ) STRICT;
        CREATE INDEX outbox_by_slot ON outbox (slot, generation, number);"
    };
}

/// Live counts; added in version 4 of the file.
macro_rules! sums_table {
    () => {
        "
        CREATE TABLE sums (
            slot INTEGER NOT NULL,
            view TEXT NOT NULL,
            key BLOB NOT NULL,
            generation INTEGER NOT NULL,
            sum BLOB NOT NULL,
            PRIMARY KEY (slot, view, key)
        ) STRICT, WITHOUT ROWID;
        CREATE TRIGGER sums_end_where_states_come AFTER INSERT ON states
        WHEN EXISTS (SELECT 1 FROM sums) BEGIN
            DELETE FROM sums WHERE slot = (SELECT slot FROM places WHERE id = NEW.place)
                AND view = (SELECT view FROM places WHERE id = NEW.place) AND key = NEW.key;
        END;
        CREATE TRIGGER sums_end_where_states_change AFTER UPDATE ON states
        WHEN EXISTS (SELECT 1 FROM sums) BEGIN
            DELETE FROM sums WHERE slot = (SELECT slot FROM places WHERE id = NEW.place)
                AND view = (SELECT view FROM places WHERE id = NEW.place) AND key = NEW.key;
        END;"
    };
}

static LIVE: DatabaseSpec = DatabaseSpec {
    name: "live.db",
    version: 4,
    // SQLite turns a count that overflows into a float. A strict table refuses it, and so does the
    // check.
    tables: concat!(
        "
        CREATE TABLE slots (
            id INTEGER PRIMARY KEY,
            source TEXT NOT NULL,
            partition INTEGER NOT NULL,
            generation INTEGER NOT NULL,
            oldest INTEGER NOT NULL,
            state TEXT NOT NULL,
            UNIQUE (source, partition)
        ) STRICT;
        CREATE TABLE places (
            id INTEGER PRIMARY KEY,
            slot INTEGER NOT NULL REFERENCES slots (id),
            view TEXT NOT NULL,
            generation INTEGER NOT NULL,
            epoch INTEGER NOT NULL,
            UNIQUE (slot, view, generation, epoch)
        ) STRICT;
        CREATE TABLE parts (
            place INTEGER NOT NULL,
            grp BLOB NOT NULL,
            row BLOB NOT NULL,
            count INTEGER NOT NULL CHECK (typeof(count) = 'integer'),
            PRIMARY KEY (place, grp, row)
        ) STRICT, WITHOUT ROWID;
        CREATE TABLE states (
            place INTEGER NOT NULL,
            key BLOB NOT NULL,
            member BLOB NOT NULL,
            state BLOB,
            PRIMARY KEY (place, key, member)
        ) STRICT, WITHOUT ROWID;",
        outbox_table!(),
        sums_table!()
    ),
    upgrades: &[
        (2, Upgrade::Statements(outbox_table!())),
        (3, Upgrade::Statements(sums_table!())),
    ],
    is_replaceable: true,
    page_bytes: 8192,
    cache_kib: 32 * 1024,
    readers: 4,
    row_buffer: 512,
    remedy: "stop every process that uses this folder and delete live.db; it is then rebuilt \
             from the log",
};

/// Live state of a data folder.
#[derive(Debug)]
pub struct SqliteLive {
    pub(super) db: Db,
}

impl SqliteLive {
    pub(super) async fn open(folder: &Path) -> Result<Self> {
        Ok(Self {
            db: Db::open(folder, &LIVE).await?,
        })
    }
}

#[async_trait]
impl LiveWrite for SqliteLive {
    async fn apply(
        &self,
        partition_id: PartitionId,
        expected: Checkpoint,
        next: Cut,
        views: &[&str],
        changes: &Changes,
    ) -> Result<Result<(), CheckpointMismatch>> {
        let bound = bind_changes(changes).await?;
        let mut tx = self.db.begin_write("applying a micro-batch").await?;
        let Some(mut stored) = load(&mut tx, partition_id).await? else {
            return Ok(Err(CheckpointMismatch { actual: None }));
        };
        if let Err(mismatch) = stored.state.apply(&expected, next, views) {
            return Ok(Err(mismatch));
        }
        if changes.has_misrouted {
            stored.state.record_misrouted();
        }
        let live_counts = live_counts::decide(&mut tx, &stored, &changes.live_counts).await?;
        for view_rows in bound {
            let container = ensure_container(&mut tx, &stored, &view_rows.view).await?;
            for rows in view_rows.rows {
                add_rows(&mut tx, view_rows.table, container, rows).await?;
            }
        }
        live_counts::put_counts(&mut tx, &stored, &live_counts).await?;
        live_outbox::append(&mut tx, &stored, &changes.outbox).await?;
        store(&mut tx, partition_id, &stored.state).await?;
        tx.commit().await?;
        Ok(Ok(()))
    }

    async fn remove_published(&self, partition_id: PartitionId, outbox: &Outbox) -> Result<bool> {
        live_outbox::remove_entries(&self.db, partition_id, outbox).await
    }

    async fn update_state(
        &self,
        operation: &'static str,
        partition_id: PartitionId,
        rule: &StateTransition<'_>,
    ) -> Result<Option<PartitionState>> {
        let mut tx = self.db.begin_write(operation).await?;
        let stored = load(&mut tx, partition_id).await?;
        if let Some(next) = rule(stored.as_ref().map(|stored| &stored.state)) {
            if let Some(stored) = &stored
                && stored.state.generation != next.generation
            {
                live_counts::delete_all(&mut tx, stored).await?;
            }
            store(&mut tx, partition_id, &next).await?;
            tx.commit().await?;
        }
        Ok(stored.map(|stored| stored.state))
    }

    async fn collect_garbage(&self, partition_id: PartitionId, limit: usize) -> Result<usize> {
        let mut deleted = 0;
        while deleted < limit {
            let step = GARBAGE_ROWS.min(limit - deleted);
            let Some(rows) = delete_garbage(&self.db, partition_id, step).await? else {
                break;
            };
            deleted += rows;
        }
        Ok(deleted)
    }
}

#[cfg(test)]
#[path = "live_upgrade_tests.rs"]
mod upgrade_tests;
