//! The connections that are open. When there is no room for another, the address that has the most connections of those that have
//! one to spare gives it up: one on which nothing is under way, or whose client neither sends what it announced nor takes what it
//! asked for. Where there is none for a while, an address that has more than its part of all gives up what it has beyond, though its
//! clients send or take something; to one of its own it gives nothing, nor do others give what was in use a moment ago. So nobody
//! shuts others out by opening many.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;

use crate::Network;
use crate::http::network;

/// How soon another connection is asked to end when the one before does not: who comes next finds room at once then.
const ROOM_RETRY: Duration = Duration::from_millis(50);
/// The next request may be on its way as long as this after the last.
const SETTLED: Duration = Duration::from_millis(50);
/// A client that for so long neither sends anything of what it announced nor takes anything of what it asked for can be spared.
const STALLED: Duration = Duration::from_secs(5);
/// How long there may be none that can be spared.
const PATIENT: Duration = Duration::from_secs(1);
/// Those that have to end have ended by then.
const LEAVING: Duration = Duration::from_secs(2);
/// By HTTP/2 a client may ask for something for so long before it learns that its connection ends.
const UNTOLD: Duration = Duration::from_secs(1);
/// An address has this part of all connections then, at most.
const SHARE: usize = 8;

/// What happens on a connection.
#[derive(Debug)]
pub(super) struct Activity {
    network: IpAddr,
    /// Whether it is a proxy's that is trusted: many clients have such a connection together.
    is_shared: bool,
    opened: Instant,
    has_begun: AtomicBool,
    last_ms: AtomicU64,
    /// When bytes left it, whatever they were.
    sent_ms: AtomicU64,
    /// Requests of which the answer is not over.
    under_way: AtomicUsize,
    /// Those for whose answer the client waits, and not we for the client.
    owed: AtomicUsize,
    /// When there was one of these last.
    owed_ms: AtomicU64,
    /// When bytes came that no request has been made of yet; 0 where there are none.
    head_ms: AtomicU64,
    is_of_answers: AtomicBool,
    /// Whether the client does not take the bytes that there are for it.
    is_blocked: AtomicBool,
    /// When it was asked to make room for another.
    asked_to_end: OnceLock<Instant>,
    /// Since when it has to end soon, whatever its client takes.
    must_end: OnceLock<Instant>,
    ending: CancellationToken,
    /// Those of the requests that are under way.
    turns: Mutex<Vec<Weak<Turn>>>,
}

impl Activity {
    /// What happens on a connection of this address.
    pub(super) fn of(peer: IpAddr, trusted_proxies: &[Network]) -> Self {
        let peer = peer.to_canonical();
        Self {
            network: network(peer),
            is_shared: trusted_proxies.iter().any(|proxy| proxy.contains(&peer)),
            opened: Instant::now(),
            has_begun: AtomicBool::new(false),
            last_ms: AtomicU64::new(0),
            sent_ms: AtomicU64::new(0),
            under_way: AtomicUsize::new(0),
            owed: AtomicUsize::new(0),
            owed_ms: AtomicU64::new(0),
            head_ms: AtomicU64::new(0),
            is_of_answers: AtomicBool::new(false),
            is_blocked: AtomicBool::new(false),
            asked_to_end: OnceLock::new(),
            must_end: OnceLock::new(),
            ending: CancellationToken::new(),
            turns: Mutex::default(),
        }
    }

    fn now_ms(&self) -> u64 {
        u64::try_from(self.opened.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    fn since(&self, at_ms: &AtomicU64) -> Duration {
        let at = Duration::from_millis(at_ms.load(Ordering::Relaxed));
        self.opened.elapsed().saturating_sub(at)
    }

    /// Notes that something happens.
    pub(super) fn note(&self) {
        self.last_ms.fetch_max(self.now_ms(), Ordering::Relaxed);
    }

    /// Notes that all bytes that leave it are of answers: by HTTP/2 there are others, as those that confirm pings.
    pub(super) fn note_http1(&self) {
        self.is_of_answers.store(true, Ordering::Relaxed);
    }

    /// Notes that bytes have come.
    pub(super) fn note_came(&self) {
        if self.under_way.load(Ordering::Acquire) == 0 && self.head_ms.load(Ordering::Relaxed) == 0
        {
            self.head_ms.store(self.now_ms().max(1), Ordering::Relaxed);
        }
    }

    /// For how long the head of a request has been coming. By HTTP/2 nothing: bytes come that are a part of none.
    pub(super) fn head_for(&self) -> Option<Duration> {
        let is_coming = self.head_ms.load(Ordering::Relaxed) > 0;
        let is_head = is_coming && self.is_of_answers.load(Ordering::Relaxed);
        is_head.then(|| self.since(&self.head_ms))
    }

    /// Notes that bytes have left it.
    pub(super) fn note_sent(&self) {
        self.sent_ms.fetch_max(self.now_ms(), Ordering::Relaxed);
        if self.is_of_answers.load(Ordering::Relaxed) {
            self.note();
        }
    }

    /// Notes whether bytes wait for the client to take those before them.
    pub(super) fn set_blocked(&self, is_blocked: bool) {
        self.is_blocked.store(is_blocked, Ordering::Relaxed);
    }

    /// For how long nothing has happened that is a part of a request or an answer.
    pub(super) fn quiet_for(&self) -> Duration {
        self.since(&self.last_ms)
    }

    /// For how long no byte has left it either.
    pub(super) fn still_for(&self) -> Duration {
        self.quiet_for().min(self.since(&self.sent_ms))
    }

    /// For how long at most the client of a request that is under way has neither sent nor taken anything of it, while it is not
    /// we who are waited for. Of a connection that many clients have together it is nothing: one of them would end those of others.
    pub(super) fn stalled_for(&self) -> Duration {
        if self.is_shared {
            return Duration::ZERO;
        }
        let turns = self.turns();
        let waiting = turns.iter().filter_map(Weak::upgrade);
        let waiting = waiting.filter(|turn| turn.waits_for_client());
        let still = waiting.map(|turn| match self.is_of_answers.load(Ordering::Relaxed) {
            // What leaves is of this one.
            true => self.quiet_for(),
            false => self.since(&turn.last_ms),
        });
        still.max().unwrap_or_default()
    }

    fn turns(&self) -> MutexGuard<'_, Vec<Weak<Turn>>> {
        self.turns.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether there was a request.
    pub(super) fn has_begun(&self) -> bool {
        self.has_begun.load(Ordering::Relaxed)
    }

    /// Whether the client waits for an answer, or a piece of one.
    pub(super) fn owes_an_answer(&self) -> bool {
        self.owed.load(Ordering::Acquire) > 0
    }

    /// For how long it has been to make room for another; nothing if it may stay.
    pub(super) fn ending_for(&self) -> Option<Duration> {
        self.asked_to_end.get().map(Instant::elapsed)
    }

    /// Comes once it is to make room for another.
    pub(super) async fn asked_to_end(&self) {
        self.ending.cancelled().await;
    }

    /// For how long it has had to end, whatever its client takes, and we have owed it nothing.
    pub(super) fn must_end_for(&self) -> Option<Duration> {
        let must_end = self.must_end.get()?;
        Some(must_end.elapsed().min(self.since(&self.owed_ms)))
    }

    fn end(&self) {
        self.asked_to_end.get_or_init(Instant::now);
        self.ending.cancel();
    }

    /// Whether another may have its place.
    fn can_be_ended(&self) -> bool {
        !self.is_shared && !self.owes_an_answer()
    }

    /// The same if that must be, also where it was asked to end and does not; without losing a request that is on its way.
    fn can_be_taken(&self) -> bool {
        let is_idle = self.under_way.load(Ordering::Acquire) == 0;
        let is_on_its_way = is_idle && self.quiet_for() < SETTLED;
        self.can_be_ended() && self.must_end.get().is_none() && !is_on_its_way
    }

    /// Whether it may make room for another.
    fn can_be_spared(&self) -> bool {
        let is_idle = self.under_way.load(Ordering::Acquire) == 0
            && !self.is_blocked.load(Ordering::Relaxed)
            && self.head_for().is_none();
        // By HTTP/2 the end of an answer may wait for the client when the answer is over here.
        let may_have_rest = self.has_begun() && !self.is_of_answers.load(Ordering::Relaxed);
        let quiet_min = match is_idle && !may_have_rest {
            true => SETTLED,
            false => STALLED,
        };
        self.can_be_ended() && self.ending_for().is_none() && self.quiet_for() >= quiet_min
    }
}

/// The answer is not over, and the client waits for us.
const OURS: u8 = 1;
/// We wait for more of the request's body.
const UNSENT: u8 = 2;
/// There is no more of the answer.
const OVER: u8 = 4;

/// Who waits for whom in a request.
#[derive(Debug)]
struct Turn {
    activity: Arc<Activity>,
    /// Whether it began on a connection that was to end, when its client knew of it: then it is nothing that keeps the connection.
    is_late: bool,
    bits: AtomicU8,
    /// When a piece of the request or of the answer has passed last.
    last_ms: AtomicU64,
}

impl Turn {
    fn note(&self) {
        if self.is_late {
            return;
        }
        self.activity.note();
        self.last_ms
            .fetch_max(self.activity.now_ms(), Ordering::Relaxed);
    }

    fn waits_for_client(&self) -> bool {
        let bits = self.bits.load(Ordering::Acquire);
        bits != OURS && bits & OVER == 0
    }

    fn set(&self, bit: u8, is_set: bool) {
        let owes = |bits: u8| bits == OURS;
        let (before, after) = match is_set {
            true => {
                let before = self.bits.fetch_or(bit, Ordering::AcqRel);
                (before, before | bit)
            }
            false => {
                let before = self.bits.fetch_and(!bit, Ordering::AcqRel);
                (before, before & !bit)
            }
        };
        match (owes(before), owes(after)) {
            (false, true) => self.activity.owed.fetch_add(1, Ordering::AcqRel),
            (true, false) => {
                let now_ms = self.activity.now_ms();
                self.activity.owed_ms.fetch_max(now_ms, Ordering::AcqRel);
                self.activity.owed.fetch_sub(1, Ordering::AcqRel)
            }
            _ => return,
        };
    }
}

/// A request that is under way.
#[derive(Debug)]
pub(super) struct UnderWay(Arc<Turn>);

impl UnderWay {
    /// One of which the client waits for the answer.
    pub(super) fn begun(activity: &Arc<Activity>) -> Self {
        activity.under_way.fetch_add(1, Ordering::AcqRel);
        activity.has_begun.store(true, Ordering::Relaxed);
        activity.head_ms.store(0, Ordering::Relaxed);
        let is_late = activity.ending_for().is_some_and(|since| since > UNTOLD);
        let turn = Arc::new(Turn {
            activity: Arc::clone(activity),
            is_late,
            // Of one that is over nothing is owed.
            bits: AtomicU8::new(if is_late { OVER } else { 0 }),
            last_ms: AtomicU64::new(0),
        });
        turn.note();
        turn.set(OURS, true);
        let mut turns = activity.turns();
        turns.retain(|turn| turn.strong_count() > 0);
        turns.push(Arc::downgrade(&turn));
        drop(turns);
        Self(turn)
    }

    /// The body of the request.
    pub(super) fn sending(&self) -> Sending {
        Sending(Arc::clone(&self.0))
    }

    /// Notes that something happens.
    pub(super) fn note(&self) {
        self.0.note();
    }

    /// Notes whether the client waits for us, and not we for the client to take what there is.
    pub(super) fn set_ours(&self, is_ours: bool) {
        self.0.set(OURS, is_ours);
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.set_ours(false);
        self.0.set(OVER, true);
        self.note();
        self.0.activity.under_way.fetch_sub(1, Ordering::AcqRel);
    }
}

/// The body of a request, as its client sends it.
#[derive(Debug)]
pub(super) struct Sending(Arc<Turn>);

impl Sending {
    /// Notes that it was asked for more, and whether there was some.
    pub(super) fn note(&self, has_come: bool) {
        if has_come {
            self.0.note();
        }
        self.0.set(UNSENT, !has_come);
    }
}

impl Drop for Sending {
    /// Nobody waits for more of it.
    fn drop(&mut self) {
        self.0.set(UNSENT, false);
    }
}

/// All connections.
#[derive(Debug, Clone)]
pub(super) struct Open {
    connections_max: usize,
    room: Arc<Semaphore>,
    all: Arc<Mutex<All>>,
}

#[derive(Debug, Default)]
struct All {
    /// Since when there has been none that can be spared for those who wait.
    full_since: Option<Instant>,
    /// When connections were told last that they have to end.
    taken_at: Option<Instant>,
    next: u64,
    by_number: HashMap<u64, Arc<Activity>>,
}

impl All {
    /// Asks the connection to end that makes room for one of an address; where there has been none for a while, those that an address
    /// has beyond its part of so many. Whether there will be room: an address that would have to give up its own for it has none.
    fn make_room(&mut self, newcomer: IpAddr, connections_max: usize) -> bool {
        if self.taken_at.is_some_and(|at| at.elapsed() < LEAVING) {
            return true;
        }
        let part = connections_max.div_ceil(SHARE);
        let counts = self.counts(|one| one.ending_for().is_none());
        let own = counts.get(&newcomer).copied().unwrap_or_default();
        let is_beyond = own > part;
        let has_as_many = |one: &Activity| {
            counts
                .get(&one.network)
                .is_some_and(|theirs| *theirs >= own)
        };
        let may_be = |one: &Activity| !is_beyond || one.quiet_for() >= STALLED || has_as_many(one);
        match self.spared(&counts, may_be) {
            Some(spared) => {
                spared.end();
                self.full_since = None;
                return true;
            }
            None if is_beyond && self.spared(&counts, |_| true).is_some() => return false,
            None => {}
        }
        if self.full_since.get_or_insert_with(Instant::now).elapsed() < PATIENT {
            return true;
        }
        let counts = self.counts(|one| one.must_end.get().is_none());
        match self.giver(&counts).filter(|(count, _)| *count > part) {
            None => true,
            Some((_, giver)) if giver == newcomer => false,
            Some((count, giver)) => {
                self.take(giver, count - part);
                self.taken_at = Some(Instant::now());
                true
            }
        }
    }

    /// How many connections each address has of those that count.
    fn counts(&self, count: impl Fn(&Activity) -> bool) -> HashMap<IpAddr, usize> {
        let mut counts: HashMap<IpAddr, usize> = HashMap::new();
        for one in self.by_number.values().filter(|one| count(one)) {
            *counts.entry(one.network).or_default() += 1;
        }
        counts
    }

    /// The connection that makes room: of those that can and may be spared one of the address that has the most connections, the one
    /// that is quiet for the longest time.
    fn spared(
        &self,
        counts: &HashMap<IpAddr, usize>,
        may_be: impl Fn(&Activity) -> bool,
    ) -> Option<&Arc<Activity>> {
        let all = self.by_number.values();
        let spareable = all.filter(|one| one.can_be_spared() && may_be(one));
        spareable.max_by_key(|one| (counts.get(&one.network).copied(), one.quiet_for()))
    }

    /// The address that has the most connections of those that have one which can be taken, and how many it has.
    fn giver(&self, counts: &HashMap<IpAddr, usize>) -> Option<(usize, IpAddr)> {
        let all = self.by_number.values();
        let takeable = all.filter(|one| one.can_be_taken());
        let of = |one: &Arc<Activity>| Some((*counts.get(&one.network)?, one.network));
        takeable.filter_map(of).max()
    }

    /// Ends so many connections of an address: those that are quiet for the longest time.
    fn take(&self, giver: IpAddr, count: usize) {
        let all = self.by_number.values();
        let theirs = all.filter(|one| one.network == giver && one.can_be_taken());
        let mut theirs: Vec<_> = theirs.collect();
        // What happens on them goes on meanwhile.
        theirs.sort_by_cached_key(|one| Reverse(one.quiet_for()));
        for one in theirs.into_iter().take(count) {
            one.must_end.get_or_init(Instant::now);
            one.end();
        }
    }
}

/// The place of a connection among those that are open.
#[derive(Debug)]
pub(super) struct Slot {
    number: u64,
    activity: Arc<Activity>,
    open: Open,
    _room: OwnedSemaphorePermit,
}

impl Slot {
    pub(super) fn activity(&self) -> Arc<Activity> {
        Arc::clone(&self.activity)
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.open.all().by_number.remove(&self.number);
    }
}

impl Open {
    /// For so many connections.
    pub(super) fn new(connections_max: usize) -> Self {
        Self {
            connections_max,
            room: Arc::new(Semaphore::new(connections_max)),
            all: Arc::default(),
        }
    }

    fn all(&self) -> MutexGuard<'_, All> {
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Room for a connection of an address, once there is some again: until then others are asked to end. Nothing where there will be
    /// none.
    async fn room_once_made(&self, newcomer: IpAddr) -> Option<OwnedSemaphorePermit> {
        while self.all().make_room(newcomer, self.connections_max) {
            let room = Arc::clone(&self.room).acquire_owned();
            if let Ok(Ok(room)) = timeout(ROOM_RETRY, room).await {
                return Some(room);
            }
        }
        None
    }

    /// A place for a connection, once there is room; nothing where its address has more than its part of all, and none can be spared.
    pub(super) async fn room_for(&self, activity: Activity) -> Option<Slot> {
        let room = match Arc::clone(&self.room).try_acquire_owned() {
            Ok(room) => room,
            Err(_) => self.room_once_made(activity.network).await?,
        };
        // It is quiet from now on.
        activity.note();
        let activity = Arc::new(activity);
        let mut all = self.all();
        all.full_since = None;
        let number = all.next;
        all.next += 1;
        all.by_number.insert(number, Arc::clone(&activity));
        drop(all);
        Some(Slot {
            number,
            activity,
            open: self.clone(),
            _room: room,
        })
    }
}

#[cfg(test)]
mod tests;
