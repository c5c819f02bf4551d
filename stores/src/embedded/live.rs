//! Live state in `live.db`: slots, and the live parts of each in places of their own.
//!
//! A *place* holds the parts of one slot, generation, epoch and view, and has a small number. So the
//! parts of a micro-batch lie together in its file, a read is a range of one place for each epoch
//! that is kept, and letting go of an epoch is the end of a whole range. The parts of a tally are
//! deltas in the table `parts`, those of boards are states in the table `states`. What waits to be told
//! is in the table `outbox`, numbered through. Sums of states are in the table `sums`; triggers see to it
//! that none stays whose states were changed by somebody who does not know it, such as a process of an
//! earlier version that has the file open.
//!
//! The file can be made again from the log, so it may be deleted while processes use it: the next
//! call finds an empty one, without slots, and the worker heals them.

use std::path::Path;

use async_trait::async_trait;
use schemas::seam::{Cut, Fence, Moved, Slot};

use super::db::{Db, Kind, Upgrade};
use super::live_write::{add, bind_changes, delete_garbage, ensure_place, load, store};
use super::{live_outbox, live_sums};
use crate::Result;
use crate::live::{Changes, LiveWrite, Outbox, SlotId, SlotRule};

/// Garbage is deleted so many parts at a time, since the worker waits meanwhile.
const GARBAGE_PARTS: usize = 4096;

/// What waits to be told to others; new in a file of version 2.
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

/// Sums of states; new in a file of version 3.
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

static LIVE: Kind = Kind {
    name: "live.db",
    version: 4,
    // A count that overflows becomes a float in SQLite, which a strict table refuses; the check
    // says so once more.
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
    replaceable: true,
    page_bytes: 8192,
    cache_kib: 32 * 1024,
    readers: 4,
    rows_ahead: 512,
    remedy: "stop every process of this folder and delete live.db; it is made again from the log",
};

/// The live state of a data folder.
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
        slot: SlotId,
        believed: Fence,
        next: Cut,
        views: &[&str],
        changes: &Changes,
    ) -> Result<Result<(), Moved>> {
        let bound = bind_changes(changes).await?;
        let mut tx = self.db.change("applying a micro-batch").await?;
        let Some(mut held) = load(&mut tx, slot).await? else {
            return Ok(Err(Moved { at: None }));
        };
        if let Err(moved) = held.slot.apply(&believed, next, views) {
            return Ok(Err(moved));
        }
        if changes.strays {
            held.slot.note_strays();
        }
        let sums = live_sums::decide(&mut tx, &held, &changes.sums).await?;
        for of_view in bound {
            let place = ensure_place(&mut tx, &held, &of_view.view).await?;
            for rows in of_view.rows {
                add(&mut tx, of_view.table, place, rows).await?;
            }
        }
        live_sums::put(&mut tx, &held, &sums).await?;
        live_outbox::append(&mut tx, &held, &changes.outbox).await?;
        store(&mut tx, slot, &held.slot).await?;
        tx.commit().await?;
        Ok(Ok(()))
    }

    async fn take_out(&self, slot: SlotId, read: &Outbox) -> Result<bool> {
        live_outbox::take_out(&self.db, slot, read).await
    }

    async fn change_slot(
        &self,
        doing: &'static str,
        slot: SlotId,
        rule: &SlotRule<'_>,
    ) -> Result<Option<Slot>> {
        let mut tx = self.db.change(doing).await?;
        let held = load(&mut tx, slot).await?;
        if let Some(next) = rule(held.as_ref().map(|held| &held.slot)) {
            if let Some(held) = &held
                && held.slot.generation != next.generation
            {
                live_sums::clear(&mut tx, held).await?;
            }
            store(&mut tx, slot, &next).await?;
            tx.commit().await?;
        }
        Ok(held.map(|held| held.slot))
    }

    async fn collect_garbage(&self, slot: SlotId, limit: usize) -> Result<usize> {
        let mut deleted = 0;
        while deleted < limit {
            let step = GARBAGE_PARTS.min(limit - deleted);
            let Some(parts) = delete_garbage(&self.db, slot, step).await? else {
                break;
            };
            deleted += parts;
        }
        Ok(deleted)
    }
}

#[cfg(test)]
#[path = "live_upgrade_tests.rs"]
mod upgrade_tests;
