//! Laws of the entity store: athletes who connect to applications.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use schemas::entities::{Application, Athlete, Authorization, Entity};
use schemas::source::Source;
use stores::admin::{ApplicationChange, AuditContext};
use stores::entities::{AuthorizeOutcome, RevokeOutcome};
use stores::{Result, Stores};

use super::entities::pending;
use super::entity_rows::{
    AuthorizationRow, NOW_MS, application, apply, athlete, authorization, authorizations, group,
    source_groups,
};

/// Athletes connect until the capacity is reached; connected athletes stay connected. Applied rows
/// are counted too, but are not limited by the capacity.
pub async fn connections_respect_the_capacity(ports: &Stores) -> Result<()> {
    let entities = &*ports.entities;
    // Authorizations may precede their application.
    let early: Vec<Entity> = [(1, 10), (2, 11), (3, 11)]
        .map(|(id, member)| Entity::Authorization(authorization(id, 5, member)))
        .into();
    apply(entities, &early).await?;
    let unknown = entities.authorize(5, 12, NOW_MS).await?;
    assert_eq!(unknown, AuthorizeOutcome::UnknownApplication);
    apply(entities, &[Entity::Application(application(5, 2))]).await?;

    let full = |connected, capacity| AuthorizeOutcome::CapacityReached {
        connected,
        capacity,
    };
    assert_eq!(entities.authorize(5, 12, NOW_MS).await?, full(2, 2));
    assert_eq!(
        entities.authorize(5, 11, NOW_MS).await?,
        AuthorizeOutcome::AlreadyConnected
    );
    let (change, by) = (ApplicationChange::capacity(3), AuditContext::default());
    let changed = entities.change_application(5, change, &by, 1).await?;
    let changed = changed.expect("an application").application;
    assert_eq!(changed, application(5, 3), "and nothing else changes");
    let outcome = entities.authorize(5, 12, NOW_MS).await?;
    let AuthorizeOutcome::New { id, notification } = outcome else {
        panic!("there is room: {outcome:?}");
    };
    assert!((1..1 << 53).contains(&id), "{id}");
    assert_eq!(
        source_groups(&[notification]),
        [(Source::Authorizations, group(5, 12))]
    );
    assert!(pending(entities, 100).await?.contains(&notification));
    let rows = authorizations(entities).await?;
    assert_eq!(
        rows.last()
            .map(|row| (row.id, row.created_at_us, row.revoked_at_us)),
        Some((id, NOW_MS * 1000, None))
    );

    // The athlete stays connected when one of two authorizations is revoked.
    let revoked = |id, member, time_us| Authorization {
        revoked_at_us: time_us,
        ..authorization(id, 5, member)
    };
    apply(entities, &[Entity::Authorization(revoked(2, 11, Some(1)))]).await?;
    assert_eq!(entities.authorize(5, 13, NOW_MS).await?, full(3, 3));
    apply(
        entities,
        &[Entity::Authorization(revoked(3, 11, Some(i64::MIN)))],
    )
    .await?;
    assert!(matches!(
        entities.authorize(5, 13, NOW_MS).await?,
        AuthorizeOutcome::New { .. }
    ));
    assert_eq!(entities.authorize(5, 11, NOW_MS).await?, full(3, 3));
    // Applied rows may exceed the capacity.
    apply(entities, &[Entity::Authorization(revoked(2, 11, None))]).await?;
    assert_eq!(entities.authorize(5, 14, NOW_MS).await?, full(4, 3));
    Ok(())
}

/// A deleted athlete is connected to no application, frees capacity and cannot connect. A line can
/// restore the athlete, in any order of lines.
pub async fn deleted_athletes_are_connected_to_nothing(ports: &Stores) -> Result<()> {
    let entities = &*ports.entities;
    let line = |id, is_deleted, version| {
        Entity::Athlete(Athlete {
            is_deleted,
            version,
            ..athlete(id)
        })
    };
    let rows = [
        Entity::Application(application(5, 2)),
        Entity::Application(application(6, 9)),
        Entity::Authorization(authorization(1, 5, 10)),
        Entity::Authorization(authorization(2, 5, 10)),
        Entity::Authorization(authorization(3, 5, 11)),
        Entity::Authorization(authorization(4, 6, 10)),
        line(12, true, 0),
    ];
    apply(entities, &rows).await?;
    let read_connected = async || -> Result<Vec<Option<i64>>> {
        let usages = entities.usages_by_id(&[5, 6]).await?;
        Ok(usages.into_iter().map(|usage| usage.connected).collect())
    };
    let read_deleted = async || -> Result<Vec<i64>> {
        let rows = authorizations(entities).await?.into_iter();
        let rows = rows.filter(|row| row.athlete_is_deleted);
        Ok(rows.map(|row| row.id).collect())
    };
    let deleted = AuthorizeOutcome::AthleteDeleted;
    assert_eq!(read_connected().await?, [Some(2), Some(1)]);
    assert_eq!(entities.authorize(6, 12, NOW_MS).await?, deleted);
    assert_eq!(read_deleted().await?, Vec::<i64>::new());

    let groups = [
        (Source::Authorizations, group(5, 10)),
        (Source::Authorizations, group(6, 10)),
    ];
    let applied = apply(entities, &[line(10, true, 3)]).await?;
    assert_eq!(source_groups(&applied.notifications), groups);
    assert_eq!(read_connected().await?, [Some(1), Some(0)]);
    assert_eq!(read_deleted().await?, [1, 2, 4]);
    assert_eq!(entities.authorize(5, 10, NOW_MS).await?, deleted);
    let outcome = entities.authorize(5, 13, NOW_MS).await?;
    assert!(
        matches!(outcome, AuthorizeOutcome::New { .. }),
        "{outcome:?}"
    );
    // An older line changes nothing.
    let applied = apply(entities, &[line(10, false, 2)]).await?;
    assert_eq!(applied.notifications, []);
    // An applied row of a deleted athlete connects nothing until the athlete is restored.
    let late = Entity::Authorization(authorization(7, 6, 12));
    apply(entities, &[late]).await?;
    assert_eq!(read_connected().await?, [Some(2), Some(0)]);
    apply(entities, &[line(10, false, 3), line(12, false, 0)]).await?;
    assert_eq!(read_connected().await?, [Some(3), Some(2)]);
    assert_eq!(read_deleted().await?, Vec::<i64>::new());

    // One call deletes an athlete and revokes another athlete's authorization.
    let revoked = Authorization {
        revoked_at_us: Some(1),
        ..authorization(4, 6, 10)
    };
    let rows = [Entity::Authorization(revoked), line(12, true, 0)];
    apply(entities, &rows).await?;
    assert_eq!(read_connected().await?, [Some(3), Some(0)]);
    let outcome = entities.revoke(6, 12, NOW_MS).await?;
    assert!(
        matches!(outcome, RevokeOutcome::Done(Some(_))),
        "{outcome:?}"
    );
    apply(entities, &[line(12, false, 0)]).await?;
    assert_eq!(read_connected().await?, [Some(3), Some(0)]);
    Ok(())
}

/// A capacity that was set stays until a newer line sets another one. A line with an older version
/// does not.
pub async fn a_capacity_stays_until_a_newer_line(ports: &Stores) -> Result<()> {
    let entities = &*ports.entities;
    let line = |capacity, version| Application {
        version,
        ..application(5, capacity)
    };
    apply(entities, &[Entity::Application(line(2, 4))]).await?;
    let (change, by) = (ApplicationChange::capacity(7), AuditContext::default());
    let changed = entities.change_application(5, change, &by, 1).await?;
    assert_eq!(changed.map(|usage| usage.application), Some(line(7, 4)));
    apply(entities, &[Entity::Application(line(3, 3))]).await?;
    assert_eq!(entities.application(5).await?, Some(line(7, 4)));
    apply(entities, &[Entity::Application(line(2, 4))]).await?;
    assert_eq!(entities.application(5).await?, Some(line(2, 4)));
    Ok(())
}

/// Disconnecting revokes all of an athlete's authorizations for an application. A newer line
/// restores one; an older line does not.
pub async fn disconnecting_revokes_every_authorization(ports: &Stores) -> Result<()> {
    let entities = &*ports.entities;
    let rows = [
        Entity::Application(application(5, 1)),
        Entity::Authorization(authorization(1, 5, 10)),
        Entity::Authorization(Authorization {
            version: 3,
            ..authorization(2, 5, 10)
        }),
        Entity::Authorization(Authorization {
            revoked_at_us: Some(7),
            ..authorization(3, 5, 10)
        }),
        Entity::Authorization(authorization(4, 5, 11)),
    ];
    apply(entities, &rows).await?;
    let outcome = entities.revoke(5, 10, NOW_MS).await?;
    let RevokeOutcome::Done(Some(notification)) = outcome else {
        panic!("the athlete was connected: {outcome:?}");
    };
    assert_eq!(
        source_groups(&[notification]),
        [(Source::Authorizations, group(5, 10))]
    );
    assert_eq!(
        entities.revoke(5, 10, NOW_MS).await?,
        RevokeOutcome::Done(None)
    );
    assert_eq!(
        entities.revoke(5, 99, NOW_MS).await?,
        RevokeOutcome::Done(None)
    );
    let now_us = Some(NOW_MS * 1000);
    let times = |rows: Vec<AuthorizationRow>| -> BTreeMap<i64, Option<i64>> {
        rows.into_iter()
            .map(|row| (row.id, row.revoked_at_us))
            .collect()
    };
    let expected = BTreeMap::from([(1, now_us), (2, now_us), (3, Some(7)), (4, None)]);
    assert_eq!(times(authorizations(entities).await?), expected);

    let full = AuthorizeOutcome::CapacityReached {
        connected: 1,
        capacity: 1,
    };
    let older = Entity::Authorization(authorization(2, 5, 10));
    let applied = apply(entities, &[older]).await?;
    assert_eq!(applied.notifications, []);
    assert_eq!(times(authorizations(entities).await?), expected);
    assert_eq!(entities.authorize(5, 12, NOW_MS).await?, full);
    apply(entities, &rows[1..2]).await?;
    assert_eq!(
        entities.authorize(5, 10, NOW_MS).await?,
        AuthorizeOutcome::AlreadyConnected
    );
    Ok(())
}

/// Concurrent requests never exceed the capacity, and a connected athlete always succeeds.
pub async fn concurrent_connections_respect_the_capacity(
    ports: &Stores,
    other_ports: &Stores,
) -> Result<()> {
    const CAPACITY: i64 = 500;
    const FREE: i64 = 10;
    const REQUESTS: i64 = 1_000;
    const CONNECTED: i64 = 50;
    let connected = 0..CAPACITY - FREE;
    let rows = connected.map(|n| Entity::Authorization(authorization(n, 1, n)));
    let application = Entity::Application(application(1, CAPACITY));
    let rows: Vec<Entity> = [application].into_iter().chain(rows).collect();
    apply(&*ports.entities, &rows).await?;
    let mut requesting = tokio::task::JoinSet::new();
    for n in 0..REQUESTS {
        let entities = Arc::clone(if n % 3 == 0 {
            &ports.entities
        } else {
            &other_ports.entities
        });
        // Some athletes are connected already. Each of the others connects twice.
        let athlete_id = if n < CONNECTED { n } else { CAPACITY + n / 2 };
        requesting.spawn(async move { entities.authorize(1, athlete_id, NOW_MS).await });
    }
    let (mut ids, mut already, mut full) = (BTreeSet::new(), 0, 0);
    while let Some(outcome) = requesting.join_next().await {
        match outcome.expect("it ends")? {
            AuthorizeOutcome::New { id, .. } => assert!(ids.insert(id), "ids are unique"),
            AuthorizeOutcome::AlreadyConnected => already += 1,
            AuthorizeOutcome::CapacityReached {
                connected,
                capacity,
            } => {
                assert_eq!((connected, capacity), (CAPACITY, CAPACITY));
                full += 1;
            }
            unexpected => panic!("application and athletes are known: {unexpected:?}"),
        }
    }
    let already_connected = CONNECTED + FREE;
    assert_eq!(ids.len() as u64, FREE.unsigned_abs(), "new ones");
    assert_eq!(
        (already, full),
        (already_connected, REQUESTS - FREE - already_connected)
    );
    let rows = authorizations(&*other_ports.entities).await?;
    let athletes: BTreeSet<i64> = rows.iter().map(|row| row.athlete_id).collect();
    assert_eq!((rows.len(), athletes.len()), (500, 500));
    let new = rows.iter().filter(|row| ids.contains(&row.id));
    assert_eq!(new.count(), ids.len());
    Ok(())
}
