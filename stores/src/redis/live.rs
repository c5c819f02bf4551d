//! The live port on Redis.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use bytes::Bytes;
use redis::Value;
use schemas::seam::{Cut, Fence, Moved, Slot};

use super::live_chunks::{NotedGroups, TakenIn};
use super::live_write::{Decided, apply_script, prepare};
use super::nodes::{Nodes, Request};
use super::record::{Record, SlotKeys};
use super::script::{CHANGE, Script};
use super::{RedisOptions, fault};
use crate::board_cache::BoardCache;
use crate::live::{Changes, LiveWrite, Outbox, SlotId, SlotRule};
use crate::namespace::Namespace;
use crate::{Error, Result, Server};

/// A call of so many states keeps a server busy for some tens of milliseconds, in which it does nothing
/// else.
const STATES_MAX: usize = 10_000;
/// And one of so many deltas, since these are packed.
const DELTAS_MAX: usize = 40_000;

/// A record as it stood at some moment.
#[derive(Debug)]
pub(super) struct Seen {
    /// Empty where it is missing.
    pub(super) bytes: Bytes,
    pub(super) record: Option<Record>,
}

/// Live state on a Redis server.
#[derive(Debug)]
pub struct RedisLive {
    pub(super) nodes: Nodes,
    namespace: Namespace,
    /// Records as they were seen last: most changes begin with the one that this process has made
    /// before. A script tells when one is old.
    seen: Mutex<HashMap<SlotId, Arc<Seen>>>,
    /// Records as readers of cached boards met them last: they need not be sent and parsed each time.
    read: Mutex<HashMap<SlotId, Arc<Seen>>>,
    /// Groups whose strings are full, or that have many chunks, as far as this process knows: each has some thousand
    /// bytes on the server, so they are few beside what it holds.
    pub(super) noted: Mutex<HashMap<SlotId, NotedGroups>>,
}

impl RedisLive {
    /// Live state on these nodes. None is asked yet.
    ///
    /// # Errors
    /// [`Error::Broken`] for options that can't be used.
    pub fn new(options: &RedisOptions, namespace: &Namespace) -> Result<Self> {
        Ok(Self {
            nodes: Nodes::new(options)?,
            namespace: namespace.clone(),
            seen: Mutex::default(),
            read: Mutex::default(),
            noted: Mutex::default(),
        })
    }

    /// Connects to the server, or to all nodes of the cluster, at once.
    ///
    /// # Errors
    /// [`Error::Broken`] for options that can't be used, a user without rights, and a server that live
    /// state can't be kept on: older than Redis 7, with a `maxmemory-policy` other than `noeviction`,
    /// or a replica. [`Error::Unavailable`] if it does not answer. Every new connection is looked at
    /// the same way, so any call may end with these later.
    pub async fn open(options: &RedisOptions, namespace: &Namespace) -> Result<Self> {
        let live = Self::new(options, namespace)?;
        live.nodes.connect().await?;
        Ok(live)
    }

    /// Writes a key, calls what scripts call of strings, and deletes it, as they do with those of slots.
    async fn probe(&self) -> Result<()> {
        let doing = "trying to write";
        let keys = SlotKeys::of_tag(&self.namespace.key("check"));
        let change = async |before: &'static str, after: &'static str| {
            let arguments = vec![Bytes::from(before), Bytes::from(after)];
            self.script(doing, &keys, &CHANGE, arguments).await
        };
        change("", "1").await?;
        let commands = [
            redis::cmd("MGET").arg(&keys.record).take(),
            redis::cmd("APPEND").arg(&keys.record).arg("").take(),
            redis::cmd("STRLEN").arg(&keys.record).take(),
            redis::cmd("GETRANGE")
                .arg(&keys.record)
                .arg(0)
                .arg(0)
                .take(),
        ];
        for command in commands {
            self.one(doing, Request::command(&keys, command)).await?;
        }
        change("1", "").await?;
        Ok(())
    }

    pub(super) fn keys(&self, slot: SlotId) -> SlotKeys {
        SlotKeys::new(&self.namespace, slot)
    }

    /// One try of a script on one slot.
    pub(super) async fn script(
        &self,
        doing: &str,
        keys: &SlotKeys,
        script: &'static Script,
        arguments: Vec<Bytes>,
    ) -> Result<Value> {
        self.one(doing, Request::script(keys, script, arguments))
            .await
    }

    /// One try of one request.
    pub(super) async fn one(&self, doing: &str, request: Request) -> Result<Value> {
        let answers = self.nodes.ask(doing, &[request]).await?;
        self.only(doing, answers)
    }

    /// One request, which is tried again, so it must be one that may run several times.
    pub(super) async fn repeat(&self, doing: &str, request: Request) -> Result<Value> {
        let answers = self.nodes.ask_again(doing, &[request]).await?;
        self.only(doing, answers)
    }

    /// The same of a request whose answer is a number.
    pub(super) async fn repeat_for_number(&self, doing: &str, request: Request) -> Result<i64> {
        match self.repeat(doing, request).await? {
            Value::Int(number) => Ok(number),
            _ => Err(fault::strange(&self.nodes.patience, doing)),
        }
    }

    fn only(&self, doing: &str, answers: Vec<Value>) -> Result<Value> {
        let answer = answers.into_iter().next();
        answer.ok_or_else(|| fault::strange(&self.nodes.patience, doing))
    }

    /// Reads the record of a slot.
    pub(super) async fn look(&self, doing: &str, keys: &SlotKeys) -> Result<Seen> {
        let command = redis::cmd("GET").arg(&keys.record).take();
        match self.one(doing, Request::command(keys, command)).await? {
            Value::Nil => self.seen_as(doing, keys, Bytes::new()),
            Value::BulkString(bytes) => self.seen_as(doing, keys, bytes.into()),
            _ => Err(fault::strange(&self.nodes.patience, doing)),
        }
    }

    pub(super) fn seen_as(&self, doing: &str, keys: &SlotKeys, bytes: Bytes) -> Result<Seen> {
        let record = Record::parse(&bytes).map_err(|why| {
            let why = format!(
                "{keys} holds no record of a slot: {why}; update this program, or stop all of them and delete the keys of the slot, which is made again from the log"
            );
            Error::broken(self.nodes.patience.what(doing), why)
        })?;
        Ok(Seen { bytes, record })
    }

    pub(super) fn read_last(&self) -> MutexGuard<'_, HashMap<SlotId, Arc<Seen>>> {
        self.read.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn seen_last(&self, slot: SlotId) -> Option<Arc<Seen>> {
        let seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        seen.get(&slot).map(Arc::clone)
    }

    pub(super) fn remember(&self, slot: SlotId, last: Option<Arc<Seen>>) {
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        match last {
            Some(last) => seen.insert(slot, last),
            None => seen.remove(&slot),
        };
    }
}

#[async_trait]
impl Server for RedisLive {
    fn name(&self) -> &'static str {
        "live state on Redis"
    }

    async fn flaws(&self) -> Result<Vec<String>> {
        let mut flaws = self.nodes.flaws().await?;
        if let Err(error) = self.probe().await {
            flaws.push(error.to_string());
        }
        Ok(flaws)
    }
}

#[async_trait]
impl LiveWrite for RedisLive {
    fn deltas_max(&self, slot: SlotId) -> usize {
        let seen = self.seen_last(slot);
        let record = seen.as_ref().and_then(|seen| seen.record.as_ref());
        match record.is_some_and(Record::has_closed) {
            true => STATES_MAX,
            false => DELTAS_MAX,
        }
    }

    fn states_max(&self) -> usize {
        STATES_MAX
    }

    fn board_cache(&self) -> Option<&dyn BoardCache> {
        Some(self)
    }

    async fn apply(
        &self,
        slot: SlotId,
        believed: Fence,
        next: Cut,
        views: &[&str],
        changes: &Changes,
    ) -> Result<Result<(), Moved>> {
        let parts = prepare(changes).await?;
        let decide = |record: Option<&Record>| {
            let Some(record) = record else {
                return Decided::Stays(Err(Moved { at: None }));
            };
            let mut record = record.clone();
            if !changes.states.is_empty() && record.boards_revision != changes.boards.revision {
                let at = Some(record.slot.fence());
                return Decided::Stays(Err(Moved { at }));
            }
            if let Err(moved) = record.slot.apply(&believed, next, views) {
                return Decided::Stays(Err(moved));
            }
            if changes.strays {
                record.slot.note_strays();
            }
            Decided::Changes(Box::new(record), Ok(()))
        };
        let keys = self.keys(slot);
        let doing = "applying a micro-batch";
        let taken = self.take_in(doing, slot, &parts.families).await?;
        let (nothing, is_taken) = (TakenIn::default(), AtomicBool::new(false));
        let script = |seen: &Seen,
                      record: &mut Record,
                      applied: &std::result::Result<(), Moved>| match applied {
            Ok(()) => {
                let is_under = taken.under == seen.bytes;
                is_taken.store(is_under, Ordering::Relaxed);
                let taken = if is_under { &taken } else { &nothing };
                apply_script(&keys, record, &parts, taken)
            }
            Err(_) => Ok((&CHANGE, Vec::new())),
        };
        let applied = self.change(doing, slot, script, decide).await;
        if !matches!(applied, Ok(Ok(()))) || !is_taken.into_inner() {
            self.note_again(slot, taken);
        }
        applied
    }

    async fn take_out(&self, slot: SlotId, read: &Outbox) -> Result<bool> {
        self.take_entries(slot, read).await
    }

    async fn change_slot(
        &self,
        doing: &'static str,
        slot: SlotId,
        rule: &SlotRule<'_>,
    ) -> Result<Option<Slot>> {
        let decide = |record: Option<&Record>| {
            let seen = record.map(|record| record.slot.clone());
            let Some(next) = rule(seen.as_ref()) else {
                return Decided::Stays(seen);
            };
            let kept = |slot: &Slot| (slot.generation, slot.oldest);
            let next = match record {
                None => Record::new(next),
                // Nothing is let go.
                Some(record) if kept(&record.slot) == kept(&next) => {
                    let mut record = record.clone();
                    record.slot = next;
                    record
                }
                Some(record) => record.with_slot(next),
            };
            Decided::Changes(Box::new(next), seen)
        };
        self.change_record(doing, slot, decide).await
    }

    async fn collect_garbage(&self, slot: SlotId, limit: usize) -> Result<usize> {
        self.delete_garbage(slot, limit).await
    }
}
