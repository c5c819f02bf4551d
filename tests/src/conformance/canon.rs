//! The laws of the canonical port.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use arrow::array::RecordBatch;
use futures::TryStreamExt;
use schemas::entities::{Athlete, Authorization, Effort, Entity, Gender, Group, schema};
use schemas::source::Source;
use stores::canon::{
    Applied, Authorized, CanonRead, CanonWrite, NOTIFICATIONS_MAX, Notification, Revoked,
};
use stores::{ErrorKind, Result};

use super::Ports;
use super::canon_model::{
    AuthorizationRow, EffortRow, application, athlete, authorization, authorization_rows, effort,
    effort_rows,
};

const NOW_MS: i64 = 1_700_000_000_000;

fn group(key: i64, member: i64) -> Group {
    Group { key, member }
}

fn told(notifications: &[Notification]) -> Vec<(Source, Group)> {
    let ids: Vec<i64> = notifications.iter().map(|told| told.id).collect();
    assert!(ids.is_sorted_by(|a, b| a < b), "numbers rise: {ids:?}");
    let groups = notifications.iter().map(|told| (told.source, told.group));
    groups.collect()
}

/// Applies rows of which none is rejected.
async fn apply(canon: &dyn CanonWrite, rows: &[Entity]) -> Result<Applied> {
    let applied = canon.apply(rows, NOW_MS).await?;
    assert_eq!(applied.rejected, [], "every row can be taken");
    assert_eq!(applied.accepted, rows.len() as u64);
    Ok(applied)
}

async fn batches(
    canon: &dyn CanonRead,
    source: Source,
    keys: Option<&[i64]>,
    batch_rows: usize,
) -> Result<Vec<RecordBatch>> {
    let dump = canon.dump(source, keys, batch_rows).await?;
    let batches: Vec<RecordBatch> = dump.try_collect().await?;
    for batch in &batches {
        assert_eq!(Some(batch.schema()), schema(source), "the columns of views");
        let rows = 1..=batch_rows.max(1);
        assert!(rows.contains(&batch.num_rows()), "{}", batch.num_rows());
    }
    Ok(batches)
}

async fn efforts(canon: &dyn CanonRead, batch_rows: usize) -> Result<Vec<EffortRow>> {
    let batches = batches(canon, Source::Efforts, None, batch_rows).await?;
    Ok(batches.iter().flat_map(effort_rows).collect())
}

async fn authorizations(canon: &dyn CanonRead) -> Result<Vec<AuthorizationRow>> {
    let batches = batches(canon, Source::Authorizations, None, 100).await?;
    Ok(batches.iter().flat_map(authorization_rows).collect())
}

/// In an empty store nothing is found, and nothing is an error.
pub async fn nothing_is_there_at_first(ports: &Ports) -> Result<()> {
    let canon = &*ports.canon;
    for source in [Source::Efforts, Source::Authorizations] {
        let found = canon.groups(source, &[group(1, 2)]).await?;
        assert_eq!((Some(found.schema()), found.num_rows()), (schema(source), 0));
        assert_eq!(canon.groups(source, &[]).await?.num_rows(), 0);
        assert_eq!(batches(canon, source, None, 10).await?, []);
        assert_eq!(batches(canon, source, Some(&[]), 10).await?, []);
        assert_eq!(batches(canon, source, Some(&[1, 2]), 10).await?, []);
    }
    assert_eq!(canon.club_members(1).await?, [0_i64; 0]);
    assert_eq!(canon.followed_by(1).await?, [0_i64; 0]);
    assert_eq!(canon.application(1).await?, None);
    assert_eq!(canon.applications(None, 10).await?, []);
    assert_eq!(canon.pending(i64::MAX, 10).await?, []);
    assert_eq!(canon.set_capacity(1, 5).await?, None);
    let refused = canon.authorize(1, 2, NOW_MS).await?;
    assert_eq!(refused, Authorized::UnknownApplication);
    let refused = canon.revoke(1, 2, NOW_MS).await?;
    assert_eq!(refused, Revoked::UnknownApplication);
    canon.notified(&[]).await?;
    canon.notified(&[1, 2]).await?;
    assert_eq!(canon.apply(&[], NOW_MS).await?, Applied::default());
    Ok(())
}

/// Sources whose rows make no groups are refused.
pub async fn only_some_sources_have_groups(ports: &Ports) -> Result<()> {
    for source in Source::ALL {
        let has_groups = schema(source).is_some();
        let groups = ports.canon.groups(source, &[group(1, 2)]).await;
        let dump = ports.canon.dump(source, None, 10).await;
        assert_eq!(groups.is_ok(), has_groups, "{source}");
        assert_eq!(dump.is_ok(), has_groups, "{source}");
        for error in [groups.err(), dump.err()].into_iter().flatten() {
            assert_eq!(error.kind(), ErrorKind::Reject, "{error}");
        }
    }
    Ok(())
}

/// Every value comes back as it was, also at the ends of its range; days are those of the place.
pub async fn values_come_back(ports: &Ports) -> Result<()> {
    let canon = &*ports.canon;
    // One o'clock at night, New Year's Day in Berlin.
    let at_us = 1_704_067_200_000_000 - 1;
    let extreme = |id: i64, athlete_id: i64| Effort {
        id,
        segment_id: id,
        athlete_id,
        activity_id: i64::MIN,
        elapsed_time_s: i64::MAX,
        started_at_us: at_us,
        tz: "Europe/Berlin".to_owned(),
        is_hidden: id < 0,
        is_deleted: id > 0,
        version: id,
    };
    let ids = [i64::MIN, -1, 0, 1, (1 << 53) + 1, i64::MAX];
    let mut rows: Vec<Entity> = ids.map(|id| Entity::Effort(extreme(id, id))).into();
    let weights = [0.001, 70.1, 1.0 / 3.0, 99.999_999_999_999_99, 1000.0, 7e-5];
    for (id, weight_kg) in ids.into_iter().zip(weights) {
        rows.push(Entity::Athlete(Athlete {
            name: Some("\"O'Neill\\\u{0}\n\u{1f6b4}".to_owned()),
            gender: Some(Gender::X),
            birth_year: Some(id),
            weight_kg: Some(weight_kg),
            country: Some("IE".to_owned()),
            ..athlete(id)
        }));
    }
    let mut far = extreme(7, -7);
    (far.segment_id, far.tz) = (i64::MAX, "Pacific/Honolulu".to_owned());
    rows.push(Entity::Effort(far));
    apply(canon, &rows).await?;

    let found = efforts(canon, 3).await?;
    let order = [i64::MIN, -1, 0, 1, (1 << 53) + 1, 7, i64::MAX];
    assert_eq!(found.iter().map(|row| row.id).collect::<Vec<_>>(), order);
    for row in &found {
        let is_far = row.id == 7;
        assert_eq!(row.day, if is_far { 20_231_231 } else { 20_240_101 });
        assert_eq!(row.started_at_us, at_us);
        assert_eq!((row.activity_id, row.elapsed_time_s), (i64::MIN, i64::MAX));
        assert_eq!((row.is_hidden, row.is_deleted), (row.id < 0, row.id > 0));
        let told = ids.iter().position(|id| *id == row.athlete_id);
        assert_eq!(row.weight_kg, told.map(|place| weights[place]), "exactly");
        assert_eq!(row.birth_year, told.map(|place| ids[place]));
        assert_eq!(row.gender.as_deref(), told.map(|_| "X"));
    }
    let asked: Vec<Group> = ids.iter().map(|id| group(*id, *id)).collect();
    let groups = effort_rows(&canon.groups(Source::Efforts, &asked).await?);
    let expected: Vec<EffortRow> = found.into_iter().filter(|row| row.id != 7).collect();
    assert_eq!(groups, expected, "groups and dumps tell the same");

    let owner = serde_json::json!({"name": "\u{0}\"ü", "id": i64::MAX, "of": [null, 1.5]});
    let mut named = application(i64::MAX, (1 << 53) - 1);
    (named.name, named.owner) = (String::new(), owner);
    let least = application(i64::MIN, 0);
    let both = [named.clone(), least.clone()].map(Entity::Application);
    apply(canon, &both).await?;
    assert_eq!(canon.application(i64::MAX).await?.as_ref(), Some(&named));
    let listed = canon.applications(None, 5).await?;
    assert_eq!(listed, [least, named]);
    assert_eq!(canon.applications(Some(i64::MAX), 5).await?, []);
    assert_eq!(canon.applications(Some(i64::MIN), 5).await?, listed[1..]);
    Ok(())
}

/// An older version changes nothing and is accepted, an equal one is applied, and a deleted row
/// keeps its version.
pub async fn versions_decide(ports: &Ports) -> Result<()> {
    let canon = &*ports.canon;
    let timed = |elapsed_time_s: i64, version: i64| {
        let mut row = effort(1, 2, 3);
        (row.elapsed_time_s, row.version) = (elapsed_time_s, version);
        row
    };
    let touched = [(Source::Efforts, group(2, 3))];
    for (row, applies) in [
        (timed(10, 5), true),
        (timed(11, 4), false),
        (timed(12, 5), true),
        (timed(12, 5), true),
        (Effort { is_deleted: true, ..timed(13, 7) }, true),
        (timed(14, 6), false),
        (timed(15, 7), true),
        (timed(16, -1), false),
    ] {
        let before = efforts(canon, 10).await?;
        let applied = apply(canon, &[Entity::Effort(row.clone())]).await?;
        let after = efforts(canon, 10).await?;
        if applies {
            assert_eq!(told(&applied.notifications), touched, "{row:?}");
            let now = (after[0].elapsed_time_s, after[0].is_deleted);
            assert_eq!(now, (row.elapsed_time_s, row.is_deleted));
        } else {
            assert_eq!(applied.notifications, [], "{row:?}");
            assert_eq!(after, before, "{row:?}");
        }
    }
    Ok(())
}

/// A row that would move to another group is rejected with the column that says so, whatever its
/// version; the others of the same call are taken.
pub async fn rows_never_move(ports: &Ports) -> Result<()> {
    let canon = &*ports.canon;
    let rows = [
        Entity::Effort(Effort { is_deleted: true, version: 9, ..effort(1, 2, 3) }),
        Entity::Authorization(authorization(1, 2, 3)),
    ];
    apply(canon, &rows).await?;
    let rows = [
        Entity::Effort(Effort { version: 1, ..effort(1, 20, 3) }),
        Entity::Effort(effort(5, 6, 7)),
        Entity::Authorization(Authorization { version: 8, ..authorization(1, 2, 30) }),
        Entity::Effort(effort(5, 6, 70)),
        Entity::Authorization(authorization(1, 20, 30)),
        Entity::Effort(Effort { version: 99, ..effort(1, 2, 30) }),
    ];
    let applied = canon.apply(&rows, NOW_MS).await?;
    assert_eq!(applied.accepted, 1);
    assert_eq!(told(&applied.notifications), [(Source::Efforts, group(6, 7))]);
    let reasons: Vec<(usize, &str)> = applied
        .rejected
        .iter()
        .map(|(index, reason)| (*index, reason.split(':').next().unwrap_or_default()))
        .collect();
    let expected = [
        (0, "segment_id"),
        (2, "athlete_id"),
        (3, "athlete_id"),
        (4, "application_id"),
        (5, "athlete_id"),
    ];
    assert_eq!(reasons, expected, "{:?}", applied.rejected);
    let reason = &applied.rejected[0].1;
    for number in ["effort 1 ", " 2 ", " 20"] {
        assert!(reason.contains(number), "{reason}");
    }
    Ok(())
}

/// What views see of an athlete touches the groups of all efforts of that athlete; a name does not.
/// What is too much to be told at once waits in the outbox, each group once.
pub async fn athletes_touch_their_groups(ports: &Ports) -> Result<()> {
    const SEGMENTS: i64 = NOTIFICATIONS_MAX as i64 + 2345;
    let canon = &*ports.canon;
    let all: BTreeSet<Group> = (0..SEGMENTS).map(|segment| group(segment, 7)).collect();
    let rows: Vec<Entity> = (0..SEGMENTS)
        .flat_map(|segment| {
            let again = effort(segment + SEGMENTS, segment, 7);
            [effort(segment, segment, 7), again, effort(-1 - segment, segment, 8)]
        })
        .map(Entity::Effort)
        .collect();
    let mut waiting = drain(canon, apply(canon, &rows).await?).await?;
    assert_eq!(waiting.len(), 2 * all.len(), "each group is told of once");
    assert!(all.iter().all(|group| waiting.contains(group)));

    for (now, changes) in [
        (athlete(7), false),
        (Athlete { name: Some("A".to_owned()), ..athlete(7) }, false),
        (Athlete { country: Some("FR".to_owned()), ..athlete(7) }, false),
        (Athlete { birth_year: Some(1980), ..athlete(7) }, true),
        (Athlete { birth_year: Some(1980), version: 3, ..athlete(7) }, false),
        (Athlete { gender: Some(Gender::F), version: 2, ..athlete(7) }, false),
        (Athlete { is_deleted: true, version: 3, ..athlete(7) }, true),
    ] {
        let applied = apply(canon, &[Entity::Athlete(now.clone())]).await?;
        let expected = if changes { NOTIFICATIONS_MAX } else { 0 };
        assert_eq!(applied.notifications.len(), expected, "{now:?}");
        assert_eq!(applied.more_pending, changes);
        waiting = drain(canon, applied).await?;
        assert_eq!(waiting, if changes { all.clone() } else { BTreeSet::new() });
    }
    // Of several rows of one athlete only what they come to in the end is seen.
    let there_and_back = [
        Entity::Athlete(Athlete { weight_kg: Some(70.0), version: 4, ..athlete(7) }),
        Entity::Athlete(Athlete { is_deleted: true, version: 4, ..athlete(7) }),
        Entity::Effort(effort(0, 0, 7)),
    ];
    let applied = apply(canon, &there_and_back).await?;
    assert_eq!(told(&applied.notifications), [(Source::Efforts, group(0, 7))]);
    Ok(())
}

/// Everything in the outbox, each group once; it is empty afterwards.
async fn drain(canon: &dyn CanonWrite, applied: Applied) -> Result<BTreeSet<Group>> {
    let (mut groups, mut ids) = (BTreeSet::new(), BTreeSet::new());
    let mut next = applied.notifications;
    let mut waits = applied.more_pending;
    while !next.is_empty() {
        for told in &next {
            assert!(ids.insert(told.id), "a number is given once");
            assert!(groups.insert(told.group), "{:?} is told of twice", told.group);
        }
        let numbers: Vec<i64> = next.iter().map(|told| told.id).collect();
        canon.notified(&numbers).await?;
        next = canon.pending(i64::MAX, 1000).await?;
        assert!(waits || next.is_empty(), "{} more wait", next.len());
    }
    waits = !canon.pending(i64::MAX, 1).await?.is_empty();
    assert!(!waits, "the outbox is empty");
    Ok(groups)
}

/// What was committed waits in the outbox until it is taken out, whoever asks; numbers rise and
/// are never given twice.
pub async fn the_outbox_keeps_until_told(ports: &Ports) -> Result<()> {
    let canon = &*ports.canon;
    let rows: Vec<Entity> = (0..5).map(|id| Entity::Effort(effort(id, id, 1))).collect();
    let first = canon.apply(&rows[..3], 1000).await?.notifications;
    let second = canon.apply(&rows[3..], 2000).await?.notifications;
    let all = [first.clone(), second.clone()].concat();
    assert_eq!(told(&all).len(), 5);
    assert_eq!(canon.pending(i64::MAX, 100).await?, all);
    assert_eq!(canon.pending(2001, 4).await?, all[..4]);
    assert_eq!(canon.pending(2000, 100).await?, first, "made before, not then");
    assert_eq!(canon.pending(1000, 100).await?, []);
    assert_eq!(canon.pending(i64::MAX, 0).await?, []);

    canon.notified(&[first[1].id, first[1].id, i64::MAX]).await?;
    let left = [first[0], first[2], second[0], second[1]];
    assert_eq!(canon.pending(i64::MAX, 100).await?, left);
    let numbers: Vec<i64> = all.iter().map(|told| told.id).collect();
    canon.notified(&numbers).await?;
    assert_eq!(canon.pending(i64::MAX, 100).await?, []);
    let third = canon.apply(&rows[..1], 1000).await?.notifications;
    assert!(third[0].id > second[1].id, "{third:?}");
    // A rejected call leaves nothing there.
    canon.notified(&[third[0].id]).await?;
    canon.apply(&[Entity::Effort(effort(0, 77, 1))], 1000).await?;
    assert_eq!(canon.pending(i64::MAX, 100).await?, []);
    Ok(())
}

/// Dumps bring every row once in the order of key, member and id, in batches of any size, for all
/// keys or for some.
pub async fn dumps_are_in_order(ports: &Ports) -> Result<()> {
    let canon = &*ports.canon;
    // A few keys with many rows, among them members with many, and many keys with few.
    let rows = |id: i64| match id % 4 {
        0 => (5, id % 7),
        1 => (9, 3),
        _ => (id % 101, id % 13),
    };
    let mut all: Vec<Entity> = Vec::new();
    for id in (0..4000).rev() {
        let (key, member) = rows(id);
        all.push(Entity::Effort(effort(id, key, member)));
        all.push(Entity::Authorization(authorization(id, key, member)));
    }
    canon.apply(&all, NOW_MS).await?;
    let mut expected: Vec<(i64, i64, i64)> = (0..4000)
        .map(|id| (rows(id).0, rows(id).1, id))
        .collect();
    expected.sort_unstable();
    let every: Vec<i64> = (-3..10_000).rev().collect();
    let some = [9, 1000, 5, 9, -4, 77, 0];
    for source in [Source::Efforts, Source::Authorizations] {
        for batch_rows in [0, 1, 7, 1000, 4096, usize::MAX] {
            for keys in [None, Some(&every[..]), Some(&some[..]), Some(&some[..1])] {
                // One row a batch takes its time.
                if batch_rows < 7 && keys.is_none_or(|keys| keys.len() > 1) {
                    continue;
                }
                let mut expected = expected.clone();
                expected.retain(|row| keys.is_none_or(|keys| keys.contains(&row.0)));
                let found = batches(canon, source, keys, batch_rows).await?;
                let found: Vec<(i64, i64, i64)> = found.iter().flat_map(places).collect();
                assert!(found == expected, "{source}, {batch_rows} rows a batch");
            }
        }
    }
    // Whoever has seen enough goes.
    let mut dump = canon.dump(Source::Efforts, None, 10).await?;
    assert_eq!(dump.try_next().await?.map(|batch| batch.num_rows()), Some(10));
    drop(dump);
    canon.apply(&all[..1], NOW_MS).await?;
    Ok(())
}

/// Key, member and id of rows of either source.
fn places(batch: &RecordBatch) -> Vec<(i64, i64, i64)> {
    if Some(batch.schema()) == schema(Source::Efforts) {
        let rows = effort_rows(batch).into_iter();
        return rows.map(|row| (row.segment_id, row.athlete_id, row.id)).collect();
    }
    let rows = authorization_rows(batch).into_iter();
    rows.map(|row| (row.application_id, row.athlete_id, row.id)).collect()
}

/// Many groups are read at once, also with others between them, unknown ones, and twice the same.
pub async fn many_groups_are_read(ports: &Ports) -> Result<()> {
    let canon = &*ports.canon;
    let rows: Vec<Entity> = (0..9000)
        .map(|id| Entity::Effort(effort(id, id % 97, id % 89)))
        .collect();
    apply(canon, &rows).await?;
    let mut asked: Vec<Group> = (0..9000)
        .rev()
        .filter(|id| id % 3 > 0)
        .map(|id| group(id % 97, id % 89))
        .collect();
    asked.extend([group(96, 1000), group(-5, 3), asked[0]]);
    let wanted: BTreeSet<Group> = asked.iter().copied().collect();
    let found = canon.groups(Source::Efforts, &asked).await?;
    let mut expected: Vec<(i64, i64, i64)> = (0..9000)
        .map(|id| (id % 97, id % 89, id))
        .filter(|(key, member, _)| wanted.contains(&group(*key, *member)))
        .collect();
    expected.sort_unstable();
    assert!(places(&found) == expected);
    Ok(())
}

/// Athletes connect while there is room; whoever is connected already stays so. Rows that are
/// applied are counted too, and whether there is room is not asked of them.
pub async fn connecting_keeps_to_the_capacity(ports: &Ports) -> Result<()> {
    let canon = &*ports.canon;
    // Authorizations may come before their application.
    let early: Vec<Entity> = [(1, 10), (2, 11), (3, 11)]
        .map(|(id, member)| Entity::Authorization(authorization(id, 5, member)))
        .into();
    apply(canon, &early).await?;
    let unknown = canon.authorize(5, 12, NOW_MS).await?;
    assert_eq!(unknown, Authorized::UnknownApplication);
    apply(canon, &[Entity::Application(application(5, 2))]).await?;

    let full = |connected, capacity| Authorized::Full { connected, capacity };
    assert_eq!(canon.authorize(5, 12, NOW_MS).await?, full(2, 2));
    assert_eq!(canon.authorize(5, 11, NOW_MS).await?, Authorized::Already);
    let wider = canon.set_capacity(5, 3).await?;
    assert_eq!(wider, Some(application(5, 3)), "and nothing else changes");
    let made = canon.authorize(5, 12, NOW_MS).await?;
    let Authorized::New { id, notification } = made else {
        panic!("there is room: {made:?}");
    };
    assert!((1..1 << 53).contains(&id), "{id}");
    assert_eq!(told(&[notification]), [(Source::Authorizations, group(5, 12))]);
    assert!(canon.pending(i64::MAX, 100).await?.contains(&notification));
    let rows = authorizations(canon).await?;
    assert_eq!(rows.last().map(|row| (row.id, row.created_at_us, row.revoked_at_us)), Some((id, NOW_MS * 1000, None)));

    // One of two authorizations is taken back: the athlete is still connected.
    let revoked = |id, member, at| Authorization { revoked_at_us: at, ..authorization(id, 5, member) };
    apply(canon, &[Entity::Authorization(revoked(2, 11, Some(1)))]).await?;
    assert_eq!(canon.authorize(5, 13, NOW_MS).await?, full(3, 3));
    apply(canon, &[Entity::Authorization(revoked(3, 11, Some(i64::MIN)))]).await?;
    assert!(matches!(canon.authorize(5, 13, NOW_MS).await?, Authorized::New { .. }));
    assert_eq!(canon.authorize(5, 11, NOW_MS).await?, full(3, 3));
    // What is applied asks for no room.
    apply(canon, &[Entity::Authorization(revoked(2, 11, None))]).await?;
    assert_eq!(canon.authorize(5, 14, NOW_MS).await?, full(4, 3));
    Ok(())
}

/// Disconnecting takes back all of an athlete's authorizations of an application, and a line from
/// before does not bring one back.
pub async fn revoking_takes_back_everything(ports: &Ports) -> Result<()> {
    let canon = &*ports.canon;
    let rows = [
        Entity::Application(application(5, 1)),
        Entity::Authorization(authorization(1, 5, 10)),
        Entity::Authorization(Authorization { version: i64::MAX, ..authorization(2, 5, 10) }),
        Entity::Authorization(Authorization { revoked_at_us: Some(7), ..authorization(3, 5, 10) }),
        Entity::Authorization(authorization(4, 5, 11)),
    ];
    apply(canon, &rows).await?;
    let done = canon.revoke(5, 10, NOW_MS).await?;
    let Revoked::Done(Some(notification)) = done else {
        panic!("the athlete was connected: {done:?}");
    };
    assert_eq!(told(&[notification]), [(Source::Authorizations, group(5, 10))]);
    assert_eq!(canon.revoke(5, 10, NOW_MS).await?, Revoked::Done(None));
    assert_eq!(canon.revoke(5, 99, NOW_MS).await?, Revoked::Done(None));
    let now = Some(NOW_MS * 1000);
    let times = |rows: Vec<AuthorizationRow>| -> BTreeMap<i64, Option<i64>> {
        rows.into_iter().map(|row| (row.id, row.revoked_at_us)).collect()
    };
    let expected = BTreeMap::from([(1, now), (2, now), (3, Some(7)), (4, None)]);
    assert_eq!(times(authorizations(canon).await?), expected);

    // The same lines once more: older now, but for the one whose version can't rise.
    let applied = apply(canon, &rows[1..2]).await?;
    assert_eq!(applied.notifications, []);
    assert_eq!(times(authorizations(canon).await?), expected);
    assert_eq!(canon.authorize(5, 12, NOW_MS).await?, Authorized::Full { connected: 1, capacity: 1 });
    // A newer one decides again.
    let newer = Authorization { version: 1, ..authorization(1, 5, 10) };
    apply(canon, &[Entity::Authorization(newer)]).await?;
    assert_eq!(canon.authorize(5, 10, NOW_MS).await?, Authorized::Already);
    Ok(())
}

/// However many ask at once, no more are connected than there are places.
pub async fn places_are_given_once(one: &Ports, other: &Ports) -> Result<()> {
    const PLACES: i64 = 5;
    apply(&*one.canon, &[Entity::Application(application(1, PLACES))]).await?;
    let mut asking = tokio::task::JoinSet::new();
    for athlete_id in 0..50 {
        // Each asks twice.
        let canon = Arc::clone(if athlete_id % 3 == 0 { &one.canon } else { &other.canon });
        asking.spawn(async move { canon.authorize(1, athlete_id / 2, NOW_MS).await });
    }
    let (mut ids, mut already, mut full) = (BTreeSet::new(), 0, 0);
    while let Some(answer) = asking.join_next().await {
        match answer.expect("it ends")? {
            Authorized::New { id, .. } => assert!(ids.insert(id), "an id is given once"),
            Authorized::Already => already += 1,
            Authorized::Full { connected, capacity } => {
                assert_eq!((connected, capacity), (PLACES, PLACES));
                full += 1;
            }
            Authorized::UnknownApplication => panic!("the application is known"),
        }
    }
    assert_eq!((ids.len(), already, full), (5, 5, 40));
    let rows = authorizations(&*other.canon).await?;
    let athletes: BTreeSet<i64> = rows.iter().map(|row| row.athlete_id).collect();
    assert_eq!((rows.len(), athletes.len()), (5, 5));
    assert_eq!(one.canon.pending(i64::MAX, 100).await?.len(), 5);
    Ok(())
}

/// What one process changes, the other sees.
pub async fn changes_are_seen_by_all(one: &Ports, other: &Ports) -> Result<()> {
    let (one, other) = (&*one.canon, &*other.canon);
    for round in 0..10 {
        let (from, to) = if round % 2 == 0 { (one, other) } else { (other, one) };
        let mut row = effort(1, 2, 3);
        row.elapsed_time_s = 100 + round;
        let applied = apply(from, &[Entity::Effort(row), Entity::Application(application(4, round))]).await?;
        assert_eq!(efforts(to, 10).await?[0].elapsed_time_s, 100 + round);
        let group = to.groups(Source::Efforts, &[group(2, 3)]).await?;
        assert_eq!(effort_rows(&group)[0].elapsed_time_s, 100 + round);
        assert_eq!(to.application(4).await?, Some(application(4, round)));
        let pending = to.pending(i64::MAX, 10).await?;
        assert_eq!(pending, applied.notifications);
        to.notified(&[pending[0].id]).await?;
        assert_eq!(from.pending(i64::MAX, 10).await?, []);
    }
    Ok(())
}

/// Dumps and groups show what was stored at one moment, whatever is written meanwhile; a dump that
/// of its beginning.
pub async fn reads_show_one_moment(one: &Ports, other: &Ports) -> Result<()> {
    const ROWS: i64 = 300;
    const ROUNDS: i64 = 60;
    let all_at = |elapsed_time_s: i64| -> Vec<Entity> {
        let row = |id| {
            let mut row = effort(id, id % 5, id % 7);
            row.elapsed_time_s = elapsed_time_s;
            Entity::Effort(row)
        };
        (0..ROWS).map(row).collect()
    };
    apply(&*one.canon, &all_at(1)).await?;
    let early = other.canon.dump(Source::Efforts, None, 7).await?;
    let writer = Arc::clone(&one.canon);
    let mut writing = tokio::task::JoinSet::new();
    writing.spawn(async move {
        for round in 2..ROUNDS {
            writer.apply(&all_at(round), NOW_MS).await?;
        }
        Result::Ok(())
    });
    let groups: Vec<Group> = (0..5)
        .flat_map(|key| (0..7).map(move |member| group(key, member)))
        .collect();
    let keys: Vec<i64> = (0..5).collect();
    let of_one_moment = |rows: &[EffortRow]| {
        assert_eq!(rows.len(), usize::try_from(ROWS).unwrap_or_default());
        let times: BTreeSet<i64> = rows.iter().map(|row| row.elapsed_time_s).collect();
        assert_eq!(times.len(), 1, "{times:?}");
        *times.first().expect("a time")
    };
    let mut last = 0;
    while last + 1 < ROUNDS {
        let found = batches(&*other.canon, Source::Efforts, Some(&keys), 11).await?;
        let found: Vec<EffortRow> = found.iter().flat_map(effort_rows).collect();
        let now = of_one_moment(&found);
        assert!(now >= last, "{now} after {last}");
        let found = other.canon.groups(Source::Efforts, &groups).await?;
        last = of_one_moment(&effort_rows(&found));
        assert!(last >= now, "{last} after {now}");
    }
    while let Some(done) = writing.join_next().await {
        done.expect("it ends")?;
    }
    let early: Vec<RecordBatch> = early.try_collect().await?;
    let early: Vec<EffortRow> = early.iter().flat_map(effort_rows).collect();
    assert_eq!(of_one_moment(&early), 1, "the moment at which it began");
    Ok(())
}
