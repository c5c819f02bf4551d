//! The connections that are open. When there is no room for another, the address that has the most connections of those that have
//! one to spare gives it up: one on which nothing is under way, or whose client neither sends what it announced nor takes what it
//! asked for. Where there is none for a while, an address that has more than its part of all gives up what it has beyond, though its
//! clients send or take something; to one of its own it gives nothing. So nobody shuts others out by opening many.

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
    is_of_answers: AtomicBool,
    /// Whether the client does not take the bytes that there are for it.
    is_blocked: AtomicBool,
    /// When it was asked to make room for another.
    asked_to_end: OnceLock<Instant>,
    /// Whether it ends soon then, whatever its client takes.
    has_to_end: AtomicBool,
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
            is_of_answers: AtomicBool::new(false),
            is_blocked: AtomicBool::new(false),
            asked_to_end: OnceLock::new(),
            has_to_end: AtomicBool::new(false),
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

    /// Whether it is to end soon after it was asked to, whatever its client takes.
    pub(super) fn has_to_end(&self) -> bool {
        self.has_to_end.load(Ordering::Relaxed)
    }

    fn end(&self) {
        self.asked_to_end.get_or_init(Instant::now);
        self.ending.cancel();
    }

    /// Whether another may have its place, if that must be.
    fn can_be_ended(&self) -> bool {
        !self.is_shared && self.ending_for().is_none() && !self.owes_an_answer()
    }

    /// The same, without losing a request that is on its way.
    fn can_be_taken(&self) -> bool {
        let is_idle = self.under_way.load(Ordering::Acquire) == 0;
        self.can_be_ended() && !(is_idle && self.quiet_for() < SETTLED)
    }

    /// Whether it may make room for another.
    fn can_be_spared(&self) -> bool {
        let is_idle =
            self.under_way.load(Ordering::Acquire) == 0 && !self.is_blocked.load(Ordering::Relaxed);
        // By HTTP/2 the end of an answer may wait for the client when the answer is over here.
        let may_have_rest = self.has_begun() && !self.is_of_answers.load(Ordering::Relaxed);
        let quiet_min = match is_idle && !may_have_rest {
            true => SETTLED,
            false => STALLED,
        };
        self.can_be_ended() && self.quiet_for() >= quiet_min
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
    bits: AtomicU8,
    /// When a piece of the request or of the answer has passed last.
    last_ms: AtomicU64,
}

impl Turn {
    fn note(&self) {
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
            (true, false) => self.activity.owed.fetch_sub(1, Ordering::AcqRel),
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
        let turn = Arc::new(Turn {
            activity: Arc::clone(activity),
            bits: AtomicU8::new(0),
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
    next: u64,
    by_number: HashMap<u64, Arc<Activity>>,
}

impl All {
    /// Asks the connection to end that makes room for one of an address; where there has been none for a while, those that an address
    /// has beyond its part of so many. Whether there will be room: an address that would have to give up its own for it has none.
    fn make_room(&mut self, newcomer: IpAddr, connections_max: usize) -> bool {
        let part = connections_max.div_ceil(SHARE);
        let counts = self.counts();
        if let Some(spared) = self.spared(&counts) {
            spared.end();
            self.full_since = None;
            return true;
        }
        if self.full_since.get_or_insert_with(Instant::now).elapsed() < PATIENT {
            return true;
        }
        match self.giver(&counts).filter(|(count, _)| *count > part) {
            None => true,
            Some((_, giver)) if giver == newcomer => false,
            Some((count, giver)) => {
                self.take(giver, count - part);
                true
            }
        }
    }

    /// How many connections each address has, but for those that are to end.
    fn counts(&self) -> HashMap<IpAddr, usize> {
        let mut counts: HashMap<IpAddr, usize> = HashMap::new();
        let stay = |one: &&Arc<Activity>| one.ending_for().is_none();
        for one in self.by_number.values().filter(stay) {
            *counts.entry(one.network).or_default() += 1;
        }
        counts
    }

    /// The connection that makes room: of those that can be spared one of the address that has the most connections, the one that is
    /// quiet for the longest time.
    fn spared(&self, counts: &HashMap<IpAddr, usize>) -> Option<&Arc<Activity>> {
        let spareable = self.by_number.values().filter(|one| one.can_be_spared());
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
            one.has_to_end.store(true, Ordering::Relaxed);
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
mod tests {
    use super::*;

    const MANY: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(192, 0, 2, 1));
    const FEW: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(192, 0, 2, 2));

    fn quiet_for(peer: IpAddr, seconds: u64) -> Arc<Activity> {
        let quiet = Duration::from_secs(seconds);
        let opened = Instant::now().checked_sub(quiet);
        Arc::new(Activity {
            opened: opened.expect("the machine runs for longer"),
            ..Activity::of(peer, &[])
        })
    }

    /// Which of some connections makes room.
    fn spared(all: &[Arc<Activity>]) -> Option<usize> {
        let kept = All {
            full_since: None,
            next: 0,
            by_number: (0..).zip(all.iter().cloned()).collect(),
        };
        let spared = kept.spared(&kept.counts())?;
        all.iter().position(|one| Arc::ptr_eq(one, spared))
    }

    #[test]
    fn who_has_the_most_connections_gives_up_the_idle_one_that_is_quiet_longest() {
        let (many, few) = ([40, 30, 20, 15], [50, 10]);
        let of = many.map(|seconds| (MANY, seconds)).into_iter();
        let of = of.chain(few.map(|seconds| (FEW, seconds)));
        let all: Vec<_> = of.map(|(peer, seconds)| quiet_for(peer, seconds)).collect();
        assert_eq!(spared(&all), Some(0));
        let mut busy = vec![UnderWay::begun(&all[0])];
        assert_eq!(spared(&all), Some(1));
        busy.extend(all[1..4].iter().map(UnderWay::begun));
        // The address that has the most has none that can be spared.
        assert_eq!(spared(&all), Some(4));
        all[4].end();
        assert_eq!(spared(&all), Some(5));
        let busy: Vec<_> = all.iter().map(UnderWay::begun).collect();
        assert_eq!(spared(&all), None);
        drop(busy);
    }

    /// The same as if nothing had happened since it was opened.
    fn still(activity: &Arc<Activity>) -> Vec<Arc<Activity>> {
        activity.last_ms.store(0, Ordering::Relaxed);
        vec![Arc::clone(activity)]
    }

    #[test]
    fn a_client_that_takes_nothing_is_spared_and_one_that_waits_for_us_is_not() {
        let [soon, late] = [1, 6].map(|seconds| quiet_for(MANY, seconds));
        for (one, is_spared) in [(&soon, false), (&late, true)] {
            one.note_http1();
            let spared = |one| spared(&still(one)).is_some();
            one.set_blocked(true);
            assert_eq!(
                spared(one),
                is_spared,
                "it may be slow to take what there is"
            );
            one.set_blocked(false);
            assert!(spared(one), "it is idle");
            let request = UnderWay::begun(one);
            assert!(one.owes_an_answer() && !spared(one));
            request.set_ours(false);
            assert!(!one.owes_an_answer());
            assert_eq!(spared(one), is_spared);
            request.set_ours(true);
            assert!(!spared(one));
            drop(request);
            assert!(!one.owes_an_answer() && spared(one));
        }
    }

    #[test]
    fn the_rest_of_an_answer_by_http2_is_waited_for() {
        let [soon, late] = [1, 6].map(|seconds| quiet_for(MANY, seconds));
        for one in [&soon, &late] {
            drop(UnderWay::begun(one));
        }
        assert_eq!(spared(&still(&soon)), None);
        assert_eq!(spared(&still(&late)), Some(0));
        soon.note_http1();
        assert_eq!(spared(&still(&soon)), Some(0));
    }

    #[test]
    fn a_client_that_sends_nothing_of_what_it_announced_is_spared() {
        let one = quiet_for(MANY, 6);
        let spared = || spared(&still(&one)).is_some();
        let request = UnderWay::begun(&one);
        let body = request.sending();
        assert!(!spared(), "nobody has asked for the body yet");
        body.note(false);
        assert!(spared());
        body.note(true);
        assert!(!spared(), "we work on what has come");
        body.note(false);
        request.set_ours(false);
        request.set_ours(true);
        assert!(spared(), "it was answered before all had come");
        drop(body);
        assert!(!spared(), "nobody waits for the rest");
        drop(request);
        assert!(!one.owes_an_answer());
    }

    #[test]
    fn bytes_that_leave_are_a_part_of_answers_by_http1_alone() {
        let one = quiet_for(MANY, 60);
        one.note_sent();
        assert!(one.quiet_for() >= STALLED && one.still_for() < STALLED);
        one.note_http1();
        one.note_sent();
        assert!(one.quiet_for() < STALLED);
    }

    #[test]
    fn connections_that_are_to_end_are_not_counted() {
        let of = [(MANY, 9), (MANY, 8), (MANY, 7), (FEW, 6), (FEW, 5)];
        let all = of.map(|(peer, seconds)| quiet_for(peer, seconds));
        let order = std::iter::from_fn(|| {
            let next = spared(&all)?;
            all[next].end();
            Some(next)
        });
        // The oldest of the address that has the most then; of addresses that have as many the oldest of all.
        assert_eq!(order.collect::<Vec<_>>(), [0, 1, 3, 2, 4]);
    }

    #[test]
    fn an_address_gives_up_to_others_what_it_has_beyond_its_part_though_it_is_busy() {
        const SHARED: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(198, 51, 100, 1));
        let proxies = ["198.51.100.0/24".parse().expect("a network")];
        let many = (1..=30).rev().map(|tenths| (MANY, tenths));
        let of = many.chain([(FEW, 40); 2]).chain([(SHARED, 40); 40]);
        let of = of.map(|(peer, tenths)| {
            let opened = Instant::now().checked_sub(Duration::from_millis(100 * tenths));
            Arc::new(Activity {
                opened: opened.expect("the machine runs for longer"),
                ..Activity::of(peer, &proxies)
            })
        });
        let all: Vec<Arc<Activity>> = of.collect();
        let busy: Vec<_> = all.iter().map(UnderWay::begun).collect();
        let mut kept = All {
            full_since: None,
            next: 0,
            by_number: (0..).zip(all.iter().cloned()).collect(),
        };
        let max = 10 * SHARE;
        let ended = || all.iter().filter(|one| one.has_to_end()).count();
        let late = Instant::now().checked_sub(PATIENT);
        kept.full_since = late;
        assert!(kept.make_room(FEW, max));
        assert_eq!(ended(), 0, "we owe all of them an answer");
        for (one, request) in all.iter().zip(&busy) {
            request.set_ours(false);
            one.last_ms.store(0, Ordering::Relaxed);
        }
        kept.full_since = None;
        assert!(kept.make_room(FEW, max));
        assert_eq!(ended(), 0, "one that can be spared may come");
        kept.full_since = late;
        assert!(!kept.make_room(MANY, max), "it has more than its part");
        assert_eq!(ended(), 0);
        // The proxy has more, and keeps them.
        assert!(kept.make_room(FEW, max));
        assert_eq!(ended(), 20);
        assert!(all[..20].iter().all(|one| one.has_to_end()));
        assert!(kept.make_room(MANY, max));
        assert_eq!(ended(), 20, "nobody has more than a part now");
        drop(busy);
    }

    #[test]
    fn one_that_is_idle_for_a_moment_is_not_taken() {
        let one = quiet_for(MANY, 9);
        // The machine may pause in between.
        let is_kept = || {
            one.note();
            one.can_be_ended() && !one.can_be_taken()
        };
        assert!((0..99).any(|_| is_kept()));
        let request = UnderWay::begun(&one);
        request.set_ours(false);
        assert!(one.can_be_taken());
    }

    #[test]
    fn one_answer_that_is_not_taken_is_seen_beside_others() {
        let one = quiet_for(MANY, 60);
        let [stalled, taken, owed] = [(); 3].map(|()| UnderWay::begun(&one));
        for request in [&stalled, &taken, &owed] {
            request.0.last_ms.store(0, Ordering::Relaxed);
        }
        assert_eq!(one.stalled_for(), Duration::ZERO, "we owe all of them");
        stalled.set_ours(false);
        taken.set_ours(false);
        taken.note();
        assert!(one.stalled_for() >= Duration::from_secs(60));
        assert!(one.quiet_for() < STALLED);
        drop(stalled);
        assert!(one.stalled_for() < STALLED);
        let body = owed.sending();
        body.note(false);
        assert!(
            one.stalled_for() >= Duration::from_secs(60),
            "it sends nothing"
        );
        drop(owed);
        assert!(one.stalled_for() < STALLED, "it was answered");
        drop((taken, body));
        let again = UnderWay::begun(&one);
        assert_eq!(one.turns().len(), 1, "those that are over are forgotten");
        drop(again);
        let proxies = ["192.0.2.0/24".parse().expect("a network")];
        let shared = Arc::new(Activity {
            opened: one.opened,
            ..Activity::of(MANY, &proxies)
        });
        let stalled = UnderWay::begun(&shared);
        stalled.set_ours(false);
        stalled.0.last_ms.store(0, Ordering::Relaxed);
        assert_eq!(shared.stalled_for(), Duration::ZERO);
    }

    #[test]
    fn a_trusted_proxy_keeps_its_connections() {
        let proxies = ["192.0.2.0/24".parse().expect("a network")];
        let shared = Arc::new(Activity {
            opened: quiet_for(MANY, 60).opened,
            ..Activity::of(MANY, &proxies)
        });
        assert_eq!(spared(&[shared]), None);
    }

    #[tokio::test]
    async fn there_is_room_once_one_has_ended() {
        let open = Open::new(3);
        let mut slots = Vec::new();
        for peer in [FEW, MANY, MANY] {
            slots.push(open.room_for(Activity::of(peer, &[])).await.expect("room"));
        }
        let spared = slots.remove(1);
        let _busy: Vec<_> = slots
            .iter()
            .map(|slot| UnderWay::begun(&slot.activity))
            .collect();
        let ends = async {
            // It is asked to: the others are busy.
            spared.activity.asked_to_end().await;
            drop(spared);
        };
        let (found, ()) = tokio::join!(open.room_for(Activity::of(FEW, &[])), ends);
        let found = found.expect("room");
        assert_eq!(found.number, 3);
        assert_eq!(open.all().by_number.len(), 3);
    }
}
