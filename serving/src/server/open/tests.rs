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

/// These connections, and no others.
fn all_of(all: &[Arc<Activity>]) -> All {
    All {
        by_number: (0..).zip(all.iter().cloned()).collect(),
        ..All::default()
    }
}

/// A request on each of some connections, whose client has yet to take the answer.
fn untaken(all: &[Arc<Activity>]) -> Vec<UnderWay> {
    let busy: Vec<_> = all.iter().map(UnderWay::begun).collect();
    for request in &busy {
        request.set_ours(false);
    }
    busy
}

/// How many of some connections have to end.
fn taken(all: &[Arc<Activity>]) -> usize {
    let taken = all.iter().filter(|one| one.must_end.get().is_some());
    taken.count()
}

/// Which of some connections makes room.
fn spared(all: &[Arc<Activity>]) -> Option<usize> {
    let kept = all_of(all);
    let counts = kept.counts(|one| one.ending_for().is_none());
    let spared = kept.spared(&counts, |_| true)?;
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
    let mut kept = all_of(&all);
    let max = 10 * SHARE;
    let ended = || taken(&all);
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
    assert!(all[..20].iter().all(|one| one.must_end.get().is_some()));
    assert!(kept.make_room(MANY, max), "there will be room");
    kept.taken_at = None;
    assert!(kept.make_room(MANY, max));
    assert_eq!(ended(), 20, "nobody has more than a part now");
    drop(busy);
}

/// So many busy connections of an address, and an idle one of another.
fn many_and_one(many: usize) -> (All, Vec<Arc<Activity>>, Vec<UnderWay>) {
    let of = std::iter::repeat_n(MANY, many).chain([FEW]);
    let all: Vec<_> = of.map(|peer| quiet_for(peer, 60)).collect();
    let busy = untaken(&all[..many]);
    (all_of(&all), all, busy)
}

#[test]
fn those_that_were_asked_to_end_and_do_not_are_taken() {
    let (mut kept, all, busy) = many_and_one(30);
    for one in &all {
        one.end();
    }
    kept.full_since = Instant::now().checked_sub(PATIENT);
    assert!(kept.make_room(FEW, 10 * SHARE));
    assert_eq!(taken(&all), 20);
    drop(busy);
}

#[test]
fn nobody_else_gives_while_room_is_on_its_way() {
    let (mut kept, all, busy) = many_and_one(30);
    let other = IpAddr::V4(std::net::Ipv4Addr::new(203, 0, 113, 1));
    let others: Vec<_> = (0..20).map(|_| quiet_for(other, 60)).collect();
    let more = untaken(&others);
    kept.by_number.extend((100..).zip(others.iter().cloned()));
    let idle = UnderWay::begun(&all[30]);
    kept.full_since = Instant::now().checked_sub(PATIENT);
    for newcomer in [FEW, other, MANY, FEW] {
        assert!(kept.make_room(newcomer, 10 * SHARE));
    }
    assert_eq!((taken(&all), taken(&others)), (20, 0));
    drop((busy, more, idle));
}

#[test]
fn who_has_more_than_its_part_closes_none_that_was_in_use_a_moment_ago() {
    let (mut kept, all, busy) = many_and_one(30);
    let few = &all[30];
    few.note_http1();
    let used = few.opened.elapsed() - Duration::from_secs(1);
    let used_ms = u64::try_from(used.as_millis()).expect("a minute");
    few.last_ms.store(used_ms, Ordering::Relaxed);
    assert!(!kept.make_room(MANY, 10 * SHARE));
    assert!(few.ending_for().is_none());
    few.last_ms.store(0, Ordering::Relaxed);
    assert!(kept.make_room(MANY, 10 * SHARE));
    assert!(few.ending_for().is_some(), "nobody misses it");
    drop(busy);
}

#[test]
fn a_request_that_comes_after_its_client_knew_keeps_no_connection() {
    let one = quiet_for(MANY, 60);
    let told = Instant::now().checked_sub(2 * UNTOLD).expect("a while ago");
    one.asked_to_end.set(told).expect("nobody has asked");
    let late = UnderWay::begun(&one);
    late.note();
    late.sending().note(true);
    late.set_ours(true);
    assert!(!one.owes_an_answer() && one.quiet_for() >= STALLED);
    drop(late);
    assert!(one.quiet_for() >= STALLED);
    assert_eq!(one.under_way.load(Ordering::Relaxed), 0);
}

#[test]
fn an_answer_that_was_owed_has_its_time_however_long_that_was() {
    let one = quiet_for(MANY, 60);
    let request = UnderWay::begun(&one);
    let told = Instant::now()
        .checked_sub(Duration::from_secs(9))
        .expect("a while ago");
    one.must_end.set(told).expect("nobody has told");
    assert!(one.must_end_for() >= Some(Duration::from_secs(9)));
    request.set_ours(false);
    assert!(one.must_end_for() < Some(Duration::from_secs(5)));
    drop(request);
}

#[test]
fn a_head_that_comes_is_no_idle_connection() {
    let one = quiet_for(MANY, 1);
    drop(UnderWay::begun(&one));
    one.note_came();
    assert_eq!(
        one.head_for(),
        None,
        "by HTTP/2 bytes come that are a part of none"
    );
    one.note_http1();
    assert!(one.head_for().is_some());
    assert_eq!(spared(&still(&one)), None);
    let request = UnderWay::begun(&one);
    one.note_came();
    assert_eq!(one.head_for(), None, "that is its body");
    drop(request);
    assert_eq!(spared(&still(&one)), Some(0));
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
