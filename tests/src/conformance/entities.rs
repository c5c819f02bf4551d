//! Laws of the entity store: the effect of applied rows and their notifications.

use std::collections::BTreeSet;

use schemas::entities::{
    Application, Athlete, Authorization, Effort, Entity, Follow, Gender, Group, Membership, schema,
};
use schemas::source::Source;
use stores::admin::{ApplicationChange, AuditContext};
use stores::entities::{
    ApplyOutcome, AuthorizeOutcome, EntityWrite, NOTIFICATIONS_MAX, Notification, RevokeOutcome,
};
use stores::{ErrorKind, Result, Stores};

use super::entity_rows::{
    EffortRow, NOW_MS, application, apply, athlete, authorization, batches, effort, effort_rows,
    efforts, group, source_groups,
};

/// An empty store returns nothing and no errors.
pub async fn a_new_store_is_empty(ports: &Stores) -> Result<()> {
    let entities = &*ports.entities;
    for source in [Source::Efforts, Source::Authorizations] {
        let rows = entities.groups(source, &[group(1, 2)]).await?;
        assert_eq!((Some(rows.schema()), rows.num_rows()), (schema(source), 0));
        assert_eq!(entities.groups(source, &[]).await?.num_rows(), 0);
        assert_eq!(batches(entities, source, None, 10).await?, []);
        assert_eq!(batches(entities, source, Some(&[]), 10).await?, []);
        assert_eq!(batches(entities, source, Some(&[1, 2]), 10).await?, []);
    }
    assert_eq!(entities.club_members(1).await?, [0_i64; 0]);
    assert_eq!(entities.followed_athletes(1).await?, [0_i64; 0]);
    assert_eq!(entities.application(1).await?, None);
    assert_eq!(entities.applications(None, 10).await?, []);
    assert_eq!(pending(entities, 10).await?, []);
    let (change, by) = (ApplicationChange::capacity(5), AuditContext::default());
    assert_eq!(
        entities.change_application(1, change, &by, NOW_MS).await?,
        None
    );
    let refused = entities.authorize(1, 2, NOW_MS).await?;
    assert_eq!(refused, AuthorizeOutcome::UnknownApplication);
    let refused = entities.revoke(1, 2, NOW_MS).await?;
    assert_eq!(refused, RevokeOutcome::UnknownApplication);
    entities.remove_notifications(&[]).await?;
    entities.remove_notifications(&[1, 2]).await?;
    assert_eq!(entities.apply(&[], NOW_MS).await?, ApplyOutcome::default());
    Ok(())
}

/// Sources whose rows form no groups are refused.
pub async fn only_some_sources_have_groups(ports: &Stores) -> Result<()> {
    for source in Source::ALL {
        let has_groups = schema(source).is_some();
        let groups = ports.entities.groups(source, &[group(1, 2)]).await;
        let dump = ports.entities.dump(source, None, 10).await;
        assert_eq!(groups.is_ok(), has_groups, "{source}");
        assert_eq!(dump.is_ok(), has_groups, "{source}");
        for error in [groups.err(), dump.err()].into_iter().flatten() {
            assert_eq!(error.kind(), ErrorKind::Reject, "{error}");
        }
    }
    Ok(())
}

/// Every value is returned unchanged, including the limits of its range. Days are local days.
pub async fn values_round_trip(ports: &Stores) -> Result<()> {
    let entities = &*ports.entities;
    // One second before the end of the hour that starts New Year's Day in Berlin.
    let start_us = 1_704_067_200_000_000 - 1;
    let extreme = |id: i64, athlete_id: i64| Effort {
        id,
        segment_id: id,
        athlete_id,
        activity_id: i64::MIN,
        elapsed_time_s: i64::MAX,
        started_at_us: start_us,
        tz: "Europe/Berlin".to_owned(),
        is_hidden: id < 0,
        is_deleted: id > 0,
        version: id,
    };
    let ids = [i64::MIN, -1, 0, 1, (1 << 53) + 1, i64::MAX];
    let mut rows: Vec<Entity> = ids.map(|id| Entity::Effort(extreme(id, id))).into();
    // The largest numbers below a boundary between weight classes.
    let below = [
        95.0_f64.next_down(),
        55.0_f64.next_down(),
        115.0_f64.next_down(),
    ];
    let weights = [0.001, 1.0 / 3.0, 1000.0, below[0], below[1], below[2]];
    for (id, weight_kg) in ids.into_iter().zip(weights) {
        rows.push(Entity::Athlete(Athlete {
            name: Some("\"O'Neill\\\u{1}\n\u{1f6b4}".to_owned()),
            gender: Some(Gender::X),
            birth_year: Some(id),
            weight_kg: Some(weight_kg),
            country: Some("IE".to_owned()),
            ..athlete(id)
        }));
    }
    let mut other_zone = extreme(7, -7);
    (other_zone.segment_id, other_zone.tz) = (i64::MAX, "Pacific/Honolulu".to_owned());
    rows.push(Entity::Effort(other_zone));
    apply(entities, &rows).await?;

    let stored_rows = efforts(entities, 3).await?;
    let order = [i64::MIN, -1, 0, 1, (1 << 53) + 1, 7, i64::MAX];
    let stored_ids: Vec<i64> = stored_rows.iter().map(|row| row.id).collect();
    assert_eq!(stored_ids, order);
    for row in &stored_rows {
        let day = if row.id == 7 { 20_231_231 } else { 20_240_101 };
        assert_eq!(row.day, day, "in its time zone");
        assert_eq!(row.started_at_us, start_us);
        assert_eq!((row.activity_id, row.elapsed_time_s), (i64::MIN, i64::MAX));
        assert_eq!((row.is_hidden, row.is_deleted), (row.id < 0, row.id > 0));
        let index = ids.iter().position(|id| *id == row.athlete_id);
        let weight_kg = index.map(|position| weights[position]);
        assert_eq!(row.weight_kg, weight_kg, "exactly");
        assert_eq!(row.birth_year, index.map(|position| ids[position]));
        assert_eq!(row.gender.as_deref(), index.map(|_| "X"));
    }
    let requested: Vec<Group> = ids.iter().map(|id| group(*id, *id)).collect();
    let groups = effort_rows(&entities.groups(Source::Efforts, &requested).await?);
    let expected: Vec<EffortRow> = stored_rows.into_iter().filter(|row| row.id != 7).collect();
    assert_eq!(groups, expected, "groups and dumps agree");
    applications_round_trip(entities).await
}

/// Values of applications, too, are returned unchanged.
async fn applications_round_trip(entities: &dyn EntityWrite) -> Result<()> {
    let owner = serde_json::json!({"name": "\u{0}\"ü", "id": i64::MAX, "of": [null, 1.5]});
    let mut named = application(i64::MAX, (1 << 53) - 1);
    (named.name, named.owner) = (String::new(), owner);
    let smallest = application(i64::MIN, 0);
    let applications = [named.clone(), smallest.clone()].map(Entity::Application);
    apply(entities, &applications).await?;
    assert_eq!(entities.application(i64::MAX).await?.as_ref(), Some(&named));
    let listed = entities.applications(None, 5).await?;
    assert_eq!(listed, [smallest, named]);
    assert_eq!(entities.applications(Some(i64::MAX), 5).await?, []);
    assert_eq!(entities.applications(Some(i64::MIN), 5).await?, listed[1..]);
    Ok(())
}

/// A text with U+0000, which some databases cannot store, is either stored unchanged or its row is
/// rejected with the column's name. The other rows of the call are applied.
pub async fn a_nul_character_is_stored_or_rejected(ports: &Stores) -> Result<()> {
    let entities = &*ports.entities;
    let nul_text = "a\u{0}b".to_owned();
    let mut named = application(1, 7);
    named.name.clone_from(&nul_text);
    let rows = [
        Entity::Application(named.clone()),
        Entity::Athlete(Athlete {
            name: Some(nul_text.clone()),
            gender: Some(Gender::F),
            ..athlete(5)
        }),
        Entity::Effort(effort(1, 2, 5)),
        Entity::Application(application(2, 7)),
    ];
    let applied = entities.apply(&rows, NOW_MS).await?;
    let rejected = applied.rejected.len();
    assert_eq!(applied.accepted, (rows.len() - rejected) as u64);
    let applications = entities.applications(None, 10).await?;
    let gender = efforts(entities, 10).await?[0].gender.clone();
    if rejected == 0 {
        assert_eq!(applications, [named, application(2, 7)]);
        assert_eq!(gender.as_deref(), Some("F"));
        return Ok(());
    }
    let columns = applied.rejected.iter().map(|(index, reason)| {
        let column = reason.split(':').next().unwrap_or_default();
        (*index, column)
    });
    assert_eq!(columns.collect::<Vec<_>>(), [(0, "name"), (1, "name")]);
    assert_eq!((applications, gender), (vec![application(2, 7)], None));
    Ok(())
}

/// An older version is accepted without effect, an equal one is applied, and a deleted row keeps
/// its version.
pub async fn newer_versions_win(ports: &Stores) -> Result<()> {
    let entities = &*ports.entities;
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
        (
            Effort {
                is_deleted: true,
                ..timed(13, 7)
            },
            true,
        ),
        (timed(14, 6), false),
        (timed(15, 7), true),
        (timed(16, -1), false),
    ] {
        let before = efforts(entities, 10).await?;
        let applied = apply(entities, &[Entity::Effort(row.clone())]).await?;
        let after = efforts(entities, 10).await?;
        if applies {
            assert_eq!(source_groups(&applied.notifications), touched, "{row:?}");
            let stored = (after[0].elapsed_time_s, after[0].is_deleted);
            assert_eq!(stored, (row.elapsed_time_s, row.is_deleted));
        } else {
            assert_eq!(applied.notifications, [], "{row:?}");
            assert_eq!(after, before, "{row:?}");
        }
    }
    Ok(())
}

/// Stored versions can be read by the ids of rows of any source.
pub async fn stored_versions_are_returned(ports: &Stores) -> Result<()> {
    let entities = &*ports.entities;
    let rows = |id: i64, version: i64| {
        [
            Entity::Effort(Effort {
                version,
                ..effort(id, 2, 3)
            }),
            Entity::Athlete(Athlete {
                version: version + 1,
                ..athlete(id)
            }),
            Entity::Membership(Membership {
                club_id: 1,
                athlete_id: id,
                is_deleted: true,
                version: version + 2,
            }),
            Entity::Follow(Follow {
                follower_id: id,
                followed_id: 1,
                is_deleted: false,
                version: version + 3,
            }),
            Entity::Authorization(Authorization {
                version: version + 4,
                ..authorization(id, 5, 6)
            }),
            Entity::Application(Application {
                version: version + 5,
                ..application(id, 1)
            }),
        ]
    };
    assert_eq!(entities.versions(&rows(7, 0)).await?, [None; 6]);
    apply(entities, &rows(7, 10)).await?;
    let versions = [10, 11, 12, 13, 14, 15].map(Some);
    assert_eq!(entities.versions(&rows(7, 0)).await?, versions);
    let more_rows = [rows(8, 0), rows(7, 99)].concat();
    let expected = [[None; 6], versions].concat();
    assert_eq!(entities.versions(&more_rows).await?, expected);
    assert_eq!(entities.versions(&[]).await?, []);
    Ok(())
}

/// A row that would move to another group is rejected with the column's name, even with a newer
/// version. The other rows of the call are applied.
pub async fn rows_never_move(ports: &Stores) -> Result<()> {
    let entities = &*ports.entities;
    let rows = [
        Entity::Effort(Effort {
            is_deleted: true,
            version: 9,
            ..effort(1, 2, 3)
        }),
        Entity::Authorization(authorization(1, 2, 3)),
    ];
    apply(entities, &rows).await?;
    let rows = [
        Entity::Effort(Effort {
            version: 1,
            ..effort(1, 20, 3)
        }),
        Entity::Effort(effort(5, 6, 7)),
        Entity::Authorization(Authorization {
            version: 8,
            ..authorization(1, 2, 30)
        }),
        Entity::Effort(effort(5, 6, 70)),
        Entity::Authorization(authorization(1, 20, 30)),
        Entity::Effort(Effort {
            version: 99,
            ..effort(1, 2, 30)
        }),
    ];
    let applied = entities.apply(&rows, NOW_MS).await?;
    assert_eq!(applied.accepted, 1);
    assert_eq!(
        source_groups(&applied.notifications),
        [(Source::Efforts, group(6, 7))]
    );
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

/// A change of an athlete's columns that views read touches the groups of all the athlete's
/// efforts; a name does not. Notifications beyond the limit stay in the outbox, each group once.
#[expect(clippy::too_many_lines, reason = "one scenario")]
pub async fn athletes_touch_their_groups(ports: &Stores) -> Result<()> {
    const SEGMENTS: i64 = NOTIFICATIONS_MAX as i64 + 2345;
    let entities = &*ports.entities;
    let all_groups: BTreeSet<Group> = (0..SEGMENTS).map(|segment| group(segment, 7)).collect();
    let rows: Vec<Entity> = (0..SEGMENTS)
        .flat_map(|segment| {
            let second_effort = effort(segment + SEGMENTS, segment, 7);
            [
                effort(segment, segment, 7),
                second_effort,
                effort(-1 - segment, segment, 8),
            ]
        })
        .map(Entity::Effort)
        .collect();
    let mut notified = drain(entities, apply(entities, &rows).await?).await?;
    assert_eq!(
        notified.len(),
        2 * all_groups.len(),
        "each group is notified once"
    );
    assert!(all_groups.iter().all(|group| notified.contains(group)));

    for (row, touches_groups) in [
        (athlete(7), false),
        (
            Athlete {
                name: Some("A".to_owned()),
                ..athlete(7)
            },
            false,
        ),
        (
            Athlete {
                country: Some("FR".to_owned()),
                ..athlete(7)
            },
            false,
        ),
        (
            Athlete {
                birth_year: Some(1980),
                ..athlete(7)
            },
            true,
        ),
        (
            Athlete {
                birth_year: Some(1980),
                version: 3,
                ..athlete(7)
            },
            false,
        ),
        (
            Athlete {
                gender: Some(Gender::F),
                version: 2,
                ..athlete(7)
            },
            false,
        ),
        (
            Athlete {
                is_disqualified: true,
                version: 3,
                ..athlete(7)
            },
            true,
        ),
        (
            Athlete {
                is_disqualified: true,
                version: 4,
                ..athlete(7)
            },
            false,
        ),
        (
            Athlete {
                is_disqualified: false,
                version: 3,
                ..athlete(7)
            },
            false,
        ),
        (
            Athlete {
                is_deleted: true,
                version: 5,
                ..athlete(7)
            },
            true,
        ),
    ] {
        let applied = apply(entities, &[Entity::Athlete(row.clone())]).await?;
        let expected = if touches_groups { NOTIFICATIONS_MAX } else { 0 };
        assert_eq!(applied.notifications.len(), expected, "{row:?}");
        assert_eq!(applied.more_pending, touches_groups);
        notified = drain(entities, applied).await?;
        assert_eq!(
            notified,
            if touches_groups {
                all_groups.clone()
            } else {
                BTreeSet::new()
            }
        );
    }
    // Several rows of one athlete in one call take effect as their final result.
    let reverted_rows = [
        Entity::Athlete(Athlete {
            weight_kg: Some(70.0),
            version: 5,
            ..athlete(7)
        }),
        Entity::Athlete(Athlete {
            is_deleted: true,
            version: 5,
            ..athlete(7)
        }),
        Entity::Effort(effort(0, 0, 7)),
    ];
    let applied = apply(entities, &reverted_rows).await?;
    assert_eq!(
        source_groups(&applied.notifications),
        [(Source::Efforts, group(0, 7))]
    );
    Ok(())
}

/// Returns the notifications in the outbox for any log, oldest first.
pub(super) async fn pending(entities: &dyn EntityWrite, limit: usize) -> Result<Vec<Notification>> {
    let mut notifications = Vec::new();
    for source in Source::LOGGED {
        notifications.extend(
            entities
                .pending_notifications(source, i64::MAX, limit)
                .await?,
        );
    }
    notifications.sort_unstable_by_key(|notification| notification.id);
    notifications.truncate(limit);
    Ok(notifications)
}

/// Empties the outbox and returns each group once.
async fn drain(entities: &dyn EntityWrite, applied: ApplyOutcome) -> Result<BTreeSet<Group>> {
    let (mut groups, mut ids) = (BTreeSet::new(), BTreeSet::new());
    let mut batch = applied.notifications;
    let mut more_pending = applied.more_pending;
    while !batch.is_empty() {
        for notification in &batch {
            assert!(ids.insert(notification.id), "numbers are unique");
            assert!(
                groups.insert(notification.group),
                "{:?} is notified twice",
                notification.group
            );
        }
        let numbers: Vec<i64> = batch.iter().map(|notification| notification.id).collect();
        entities.remove_notifications(&numbers).await?;
        batch = pending(entities, 1000).await?;
        assert!(
            more_pending || batch.is_empty(),
            "{} more wait",
            batch.len()
        );
    }
    more_pending = !pending(entities, 1).await?.is_empty();
    assert!(!more_pending, "the outbox is empty");
    Ok(groups)
}

/// A committed notification stays in the outbox until it is removed, whichever process reads it.
/// Numbers increase and are never reused.
pub async fn the_outbox_keeps_unpublished_notifications(ports: &Stores) -> Result<()> {
    let entities = &*ports.entities;
    let rows: Vec<Entity> = (0..5).map(|id| Entity::Effort(effort(id, id, 1))).collect();
    let first = entities.apply(&rows[..3], 1000).await?.notifications;
    let second = entities.apply(&rows[3..], 2000).await?.notifications;
    let notifications = [first.clone(), second.clone()].concat();
    assert_eq!(source_groups(&notifications).len(), 5);
    assert_eq!(pending(entities, 100).await?, notifications);
    let read_pending = async |newest, limit| {
        entities
            .pending_notifications(Source::Efforts, newest, limit)
            .await
    };
    assert_eq!(read_pending(i64::MAX, 4).await?, notifications[..4]);
    assert_eq!(read_pending(first[2].id, 100).await?, first);
    assert_eq!(read_pending(first[0].id - 1, 100).await?, []);
    assert_eq!(read_pending(i64::MAX, 0).await?, []);
    assert_eq!(
        entities
            .pending_notifications(Source::Authorizations, i64::MAX, 100)
            .await?,
        []
    );

    entities
        .remove_notifications(&[first[1].id, first[1].id, i64::MAX])
        .await?;
    let remaining = [first[0], first[2], second[0], second[1]];
    assert_eq!(pending(entities, 100).await?, remaining);
    let numbers: Vec<i64> = notifications
        .iter()
        .map(|notification| notification.id)
        .collect();
    entities.remove_notifications(&numbers).await?;
    assert_eq!(pending(entities, 100).await?, []);
    let third = entities.apply(&rows[..1], 1000).await?.notifications;
    assert!(third[0].id > second[1].id, "{third:?}");
    // A rejected call adds no notifications.
    entities.remove_notifications(&[third[0].id]).await?;
    entities
        .apply(&[Entity::Effort(effort(0, 77, 1))], 1000)
        .await?;
    assert_eq!(pending(entities, 100).await?, []);
    Ok(())
}
