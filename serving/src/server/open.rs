//! The connections that are open. When there is no room for another, the address that has the most of them gives one up on which
//! nothing is under way: so nobody shuts others out by opening many.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;

use crate::http::network;

/// How soon another connection is asked to end when the one before does not.
const ROOM_RETRY: Duration = Duration::from_millis(50);

/// What happens on a connection.
#[derive(Debug)]
pub(super) struct Activity {
    network: IpAddr,
    opened: Instant,
    has_begun: AtomicBool,
    last_ms: AtomicU64,
    /// Requests of which the answer is not over.
    under_way: AtomicUsize,
    /// Cancelled once it is to make room for another.
    ending: CancellationToken,
}

impl Activity {
    fn new(peer: IpAddr) -> Self {
        Self {
            network: network(peer),
            opened: Instant::now(),
            has_begun: AtomicBool::new(false),
            last_ms: AtomicU64::new(0),
            under_way: AtomicUsize::new(0),
            ending: CancellationToken::new(),
        }
    }

    /// Notes that something happens.
    pub(super) fn note(&self) {
        let now_ms = u64::try_from(self.opened.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.last_ms.fetch_max(now_ms, Ordering::Relaxed);
    }

    pub(super) fn quiet_for(&self) -> Duration {
        let last = Duration::from_millis(self.last_ms.load(Ordering::Relaxed));
        self.opened.elapsed().saturating_sub(last)
    }

    /// Whether there was a request.
    pub(super) fn has_begun(&self) -> bool {
        self.has_begun.load(Ordering::Relaxed)
    }

    /// Whether no request is under way.
    pub(super) fn is_idle(&self) -> bool {
        self.under_way.load(Ordering::Acquire) == 0
    }

    pub(super) fn is_to_end(&self) -> bool {
        self.ending.is_cancelled()
    }

    /// Comes once it is to make room for another.
    pub(super) async fn has_to_end(&self) {
        self.ending.cancelled().await;
    }

    fn end(&self) {
        self.note();
        self.ending.cancel();
    }
}

/// A request that is under way.
#[derive(Debug)]
pub(super) struct UnderWay(Arc<Activity>);

impl UnderWay {
    pub(super) fn begun(activity: &Arc<Activity>) -> Self {
        activity.under_way.fetch_add(1, Ordering::AcqRel);
        activity.has_begun.store(true, Ordering::Relaxed);
        activity.note();
        Self(Arc::clone(activity))
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.0.note();
        self.0.under_way.fetch_sub(1, Ordering::AcqRel);
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
    /// The connection that makes room: of the address that has the most, among those on which nothing is under way, the one that is
    /// quiet for the longest time.
    fn spared(&self) -> Option<&Arc<Activity>> {
        let staying = || self.by_number.values().filter(|one| !one.is_to_end());
        let mut counts: HashMap<IpAddr, usize> = HashMap::new();
        for one in staying() {
            *counts.entry(one.network).or_default() += 1;
        }
        staying()
            .filter(|one| one.is_idle())
            .max_by_key(|one| (counts.get(&one.network).copied(), one.quiet_for()))
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
    pub(super) async fn room_for(&self, peer: IpAddr) -> Slot {
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
        let activity = Arc::new(Activity::new(peer));
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
            ..Activity::new(peer)
        })
    }

    #[test]
    fn who_has_the_most_connections_gives_up_the_idle_one_that_is_quiet_longest() {
        let of = [(FEW, 50), (MANY, 40), (MANY, 30), (MANY, 20), (FEW, 10)];
        let all: Vec<_> = of
            .into_iter()
            .map(|(peer, quiet)| quiet_for(peer, quiet))
            .collect();
        let kept = All {
            next: 5,
            by_number: (0..).zip(all.iter().cloned()).collect(),
        };
        let spared = || {
            let spared = kept.spared()?;
            all.iter().position(|one| Arc::ptr_eq(one, spared))
        };
        assert_eq!(spared(), Some(1));
        let under_way = UnderWay::begun(&all[1]);
        assert_eq!(spared(), Some(2));
        all[2].end();
        // Two stay of each.
        assert_eq!(spared(), Some(0));
        let busy: Vec<_> = all.iter().map(UnderWay::begun).collect();
        assert_eq!(spared(), None);
        drop((busy, under_way));
        assert!(spared().is_some_and(|one| one != 2));
    }

    #[tokio::test]
    async fn there_is_room_once_one_has_ended() {
        let open = Open::new(3);
        let mut slots = Vec::new();
        for peer in [FEW, MANY, MANY] {
            slots.push(open.room_for(peer).await);
        }
        let _under_way = UnderWay::begun(&slots[2].activity);
        let spared = slots.remove(1);
        let ends = async {
            spared.activity.has_to_end().await;
            drop(spared);
        };
        let (found, ()) = tokio::join!(open.room_for(FEW), ends);
        assert_eq!(found.number, 3);
        assert_eq!(open.all().by_number.len(), 3);
    }
}
