//! The connections that are open. When there is no room for another, the address that has the most of those that can be spared gives
//! one up: one on which nothing is under way, or whose client takes nothing of what it asked for. So nobody shuts others out
//! by opening many.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;

use crate::Network;
use crate::http::network;

/// How soon another connection is asked to end when the one before does not.
const ROOM_RETRY: Duration = Duration::from_millis(50);
/// The next request may be on its way as long as this after the last.
const SETTLED: Duration = Duration::from_millis(50);
/// A client that takes nothing for so long of what it asked for can be spared.
const STALLED: Duration = Duration::from_secs(5);

/// What happens on a connection.
#[derive(Debug)]
pub(super) struct Activity {
    network: IpAddr,
    /// Whether it is a proxy's that is trusted: many clients have such a connection together.
    is_shared: bool,
    opened: Instant,
    has_begun: AtomicBool,
    last_ms: AtomicU64,
    /// Requests of which the answer is not over.
    under_way: AtomicUsize,
    /// Those for whose answer the client waits, and not we for the client.
    owed: AtomicUsize,
    is_of_answers: AtomicBool,
    /// Whether the client does not take the bytes that there are for it.
    is_blocked: AtomicBool,
    /// When it was asked to make room for another.
    ended: OnceLock<Instant>,
    ending: CancellationToken,
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
            under_way: AtomicUsize::new(0),
            owed: AtomicUsize::new(0),
            is_of_answers: AtomicBool::new(false),
            is_blocked: AtomicBool::new(false),
            ended: OnceLock::new(),
            ending: CancellationToken::new(),
        }
    }

    /// Notes that something happens.
    pub(super) fn note(&self) {
        let now_ms = u64::try_from(self.opened.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.last_ms.fetch_max(now_ms, Ordering::Relaxed);
    }

    /// Says that all bytes that leave it are of answers: by HTTP/2 there are others, as those that confirm pings.
    pub(super) fn sends_answers_alone(&self) {
        self.is_of_answers.store(true, Ordering::Relaxed);
    }

    /// Notes that bytes have left it.
    pub(super) fn note_sent(&self) {
        if self.is_of_answers.load(Ordering::Relaxed) {
            self.note();
        }
    }

    /// Says whether bytes wait for the client to take those before them.
    pub(super) fn has_bytes_that_wait(&self, is_blocked: bool) {
        self.is_blocked.store(is_blocked, Ordering::Relaxed);
    }

    pub(super) fn quiet_for(&self) -> Duration {
        let last = Duration::from_millis(self.last_ms.load(Ordering::Relaxed));
        self.opened.elapsed().saturating_sub(last)
    }

    /// Whether there was a request.
    pub(super) fn has_begun(&self) -> bool {
        self.has_begun.load(Ordering::Relaxed)
    }

    /// Whether the client waits for an answer, or a piece of one.
    pub(super) fn owes_an_answer(&self) -> bool {
        self.owed.load(Ordering::Acquire) > 0
    }

    /// Since when it is to make room for another; nothing if it may stay.
    pub(super) fn ending_for(&self) -> Option<Duration> {
        self.ended.get().map(Instant::elapsed)
    }

    /// Comes once it is to make room for another.
    pub(super) async fn has_to_end(&self) {
        self.ending.cancelled().await;
    }

    fn end(&self) {
        self.ended.get_or_init(Instant::now);
        self.ending.cancel();
    }

    /// Whether it may make room for another.
    fn can_be_spared(&self) -> bool {
        let is_idle =
            self.under_way.load(Ordering::Acquire) == 0 && !self.is_blocked.load(Ordering::Relaxed);
        let quiet_min = if is_idle { SETTLED } else { STALLED };
        !self.is_shared
            && self.ending_for().is_none()
            && !self.owes_an_answer()
            && self.quiet_for() >= quiet_min
    }
}

/// A request that is under way.
#[derive(Debug)]
pub(super) struct UnderWay {
    activity: Arc<Activity>,
    is_ours: bool,
}

impl UnderWay {
    /// One of which the client waits for the answer.
    pub(super) fn begun(activity: &Arc<Activity>) -> Self {
        activity.under_way.fetch_add(1, Ordering::AcqRel);
        activity.owed.fetch_add(1, Ordering::AcqRel);
        activity.has_begun.store(true, Ordering::Relaxed);
        activity.note();
        Self {
            activity: Arc::clone(activity),
            is_ours: true,
        }
    }

    /// Notes that something happens.
    pub(super) fn note(&self) {
        self.activity.note();
    }

    /// Says whether the client waits for us, and not we for the client.
    pub(super) fn set_ours(&mut self, is_ours: bool) {
        if is_ours && !self.is_ours {
            self.activity.owed.fetch_add(1, Ordering::AcqRel);
        }
        if !is_ours && self.is_ours {
            self.activity.owed.fetch_sub(1, Ordering::AcqRel);
        }
        self.is_ours = is_ours;
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.set_ours(false);
        self.activity.note();
        self.activity.under_way.fetch_sub(1, Ordering::AcqRel);
    }
}

/// All connections.
#[derive(Debug, Clone)]
pub(super) struct Open {
    room: Arc<Semaphore>,
    all: Arc<Mutex<All>>,
}

#[derive(Debug, Default)]
struct All {
    next: u64,
    by_number: HashMap<u64, Arc<Activity>>,
}

impl All {
    /// The connection that makes room: of the address that has the most, among those that can be spared, the one that is quiet for
    /// the longest time.
    fn spared(&self) -> Option<&Arc<Activity>> {
        let mut counts: HashMap<IpAddr, usize> = HashMap::new();
        for one in self.by_number.values() {
            *counts.entry(one.network).or_default() += 1;
        }
        let spareable = self.by_number.values().filter(|one| one.can_be_spared());
        spareable.max_by_key(|one| (counts.get(&one.network).copied(), one.quiet_for()))
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
            room: Arc::new(Semaphore::new(connections_max)),
            all: Arc::default(),
        }
    }

    fn all(&self) -> MutexGuard<'_, All> {
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A place for a connection, once there is room: while there is none, others are asked to end.
    pub(super) async fn room_for(&self, activity: Activity) -> Slot {
        let room = loop {
            if let Ok(room) = Arc::clone(&self.room).try_acquire_owned() {
                break room;
            }
            if let Some(spared) = self.all().spared() {
                spared.end();
            }
            let room = Arc::clone(&self.room).acquire_owned();
            if let Ok(Ok(room)) = timeout(ROOM_RETRY, room).await {
                break room;
            }
        };
        // It is quiet from now on.
        activity.note();
        let activity = Arc::new(activity);
        let mut all = self.all();
        let number = all.next;
        all.next += 1;
        all.by_number.insert(number, Arc::clone(&activity));
        drop(all);
        Slot {
            number,
            activity,
            open: self.clone(),
            _room: room,
        }
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
            next: 0,
            by_number: (0..).zip(all.iter().cloned()).collect(),
        };
        let spared = kept.spared()?;
        all.iter().position(|one| Arc::ptr_eq(one, spared))
    }

    #[test]
    fn who_has_the_most_connections_gives_up_the_idle_one_that_is_quiet_longest() {
        let of = [(FEW, 50), (MANY, 40), (MANY, 30), (MANY, 20), (FEW, 10)];
        let all = of.map(|(peer, seconds)| quiet_for(peer, seconds));
        assert_eq!(spared(&all), Some(1));
        let under_way = UnderWay::begun(&all[1]);
        assert_eq!(spared(&all), Some(2));
        all[2].end();
        assert_eq!(spared(&all), Some(3));
        all[3].end();
        // The address that has the most has none left that can be spared.
        assert_eq!(spared(&all), Some(0));
        let busy: Vec<_> = all.iter().map(UnderWay::begun).collect();
        assert_eq!(spared(&all), None);
        drop((busy, under_way));
    }

    #[test]
    fn a_client_that_takes_nothing_is_spared_and_one_that_waits_for_us_is_not() {
        let [begun, blocked] = [(); 2].map(|()| quiet_for(MANY, 1));
        let mut request = UnderWay {
            activity: Arc::clone(&begun),
            is_ours: false,
        };
        begun.under_way.fetch_add(1, Ordering::AcqRel);
        blocked.has_bytes_that_wait(true);
        // They may be slow.
        assert_eq!(spared(&[Arc::clone(&begun), Arc::clone(&blocked)]), None);
        blocked.has_bytes_that_wait(false);
        assert_eq!(spared(&[Arc::clone(&begun), blocked]), Some(1));
        let stalled = quiet_for(MANY, 6);
        stalled.has_bytes_that_wait(true);
        assert_eq!(spared(&[Arc::clone(&stalled)]), Some(0));
        let mut owed = UnderWay::begun(&stalled);
        assert_eq!(spared(&[Arc::clone(&stalled)]), None);
        owed.set_ours(false);
        request.set_ours(true);
        assert!(begun.owes_an_answer() && !stalled.owes_an_answer());
        drop((request, owed));
        assert!(!begun.owes_an_answer());
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
            slots.push(open.room_for(Activity::of(peer, &[])).await);
        }
        let spared = slots.remove(1);
        let _busy: Vec<_> = slots
            .iter()
            .map(|slot| UnderWay::begun(&slot.activity))
            .collect();
        let ends = async {
            // It is asked to: the others are busy.
            spared.activity.has_to_end().await;
            drop(spared);
        };
        let (found, ()) = tokio::join!(open.room_for(Activity::of(FEW, &[])), ends);
        assert_eq!(found.number, 3);
        assert_eq!(open.all().by_number.len(), 3);
    }
}
