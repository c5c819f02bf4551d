//! Laws of the entity store: erasing an athlete.

use std::collections::BTreeSet;

use schemas::entities::{Athlete, Authorization, Entity, Follow, Gender, Group, Membership};
use schemas::source::Source;
use stores::entities::EntityErase;
use stores::{Result, Stores};

use super::entity_rows::{
    NOW_MS, application, apply, athlete, authorization, authorizations, effort, efforts, group,
};

const GONE: i64 = 7;
const STAYS: i64 = 8;
const LIMIT: usize = 100;

const fn membership(club_id: i64, athlete_id: i64) -> Membership {
    Membership {
        club_id,
        athlete_id,
        is_deleted: false,
        version: 0,
    }
}

const fn follow(follower_id: i64, followed_id: i64) -> Follow {
    Follow {
        follower_id,
        followed_id,
        is_deleted: false,
        version: 0,
    }
}

/// Fills every table with rows of both athletes; one authorization each is revoked.
async fn filled(ports: &Stores) -> Result<()> {
    let entities = &*ports.entities;
    let rows = [application(1, 10), application(2, 10)];
    apply(entities, &rows.map(Entity::Application)).await?;
    for (at, id) in [(0, GONE), (100, STAYS)] {
        let efforts = [1, 1, 2, 3].iter().zip(1..);
        let efforts = efforts.map(|(segment, n)| effort(at + n, *segment, id));
        apply(entities, &efforts.map(Entity::Effort).collect::<Vec<_>>()).await?;
        let is_odd = Athlete {
            gender: Some(Gender::F),
            is_disqualified: true,
            ..athlete(id)
        };
        apply(entities, &[Entity::Athlete(is_odd)]).await?;
        let revoked = Authorization {
            revoked_at_us: Some(1),
            ..authorization(at + 3, 2, id)
        };
        let rows = [
            authorization(at + 1, 1, id),
            authorization(at + 2, 1, id),
            revoked,
        ];
        apply(entities, &rows.map(Entity::Authorization)).await?;
        let rows = [membership(1, id), membership(2, id)];
        apply(entities, &rows.map(Entity::Membership)).await?;
        let rows = [follow(id, 50), follow(51, id)];
        apply(entities, &rows.map(Entity::Follow)).await?;
    }
    drain(ports).await.map(drop)
}

/// Removes all notifications from the outbox.
async fn drain(ports: &Stores) -> Result<BTreeSet<(Source, Group)>> {
    let mut notified = BTreeSet::new();
    for source in [Source::Efforts, Source::Authorizations] {
        let pending = ports
            .entities
            .pending_notifications(source, i64::MAX, 10_000)
            .await?;
        notified.extend(
            pending
                .iter()
                .map(|notification| (notification.source, notification.group)),
        );
        let ids: Vec<i64> = pending.iter().map(|notification| notification.id).collect();
        ports.entities.remove_notifications(&ids).await?;
    }
    Ok(notified)
}

/// Returns the number of rows of an athlete by table.
async fn places(entities: &dyn EntityErase, id: i64) -> Result<Vec<(&'static str, u64)>> {
    let mut found = entities.count_athlete_rows(id).await?;
    assert!(found.iter().all(|of| !of.is_view));
    found.retain(|of| of.rows > 0);
    Ok(found.iter().map(|of| (of.table, of.rows)).collect())
}

async fn connected(ports: &Stores, application: i64) -> Result<Option<i64>> {
    let usage = ports.entities.usages_by_id(&[application]).await?.pop();
    Ok(usage.and_then(|usage| usage.connected))
}

/// All rows of an athlete are deleted in small steps, any of which may be the last for a while.
/// Groups are notified, counters decrease, and rows of other athletes stay.
pub async fn an_athlete_is_deleted_from_every_table(ports: &Stores) -> Result<()> {
    filled(ports).await?;
    let erase = &*ports.entity_eraser;
    let others = places(erase, STAYS).await?;
    let tables: Vec<&str> = others.iter().map(|(table, _)| *table).collect();
    for table in ["authorizations", "efforts", "clubs", "follows", "athletes"] {
        assert!(tables.contains(&table), "{table} is not among {tables:?}");
    }
    assert_eq!(places(erase, GONE).await?, others);
    assert_eq!(connected(ports, 1).await?, Some(2));
    let mut steps = 0;
    while erase.erase_rows(GONE, 2, NOW_MS).await? > 0 {
        steps += 1;
        assert!(steps < LIMIT, "{:?}", places(erase, GONE).await?);
    }
    erase.notify_groups_of(GONE, NOW_MS).await?;
    let notified = drain(ports).await?;
    for segment in 1..=3 {
        assert!(notified.contains(&(Source::Efforts, group(segment, GONE))));
    }
    assert!(notified.contains(&(Source::Authorizations, group(1, GONE))));
    assert!(
        notified.iter().all(|(_, group)| group.member == GONE),
        "{notified:?}"
    );
    assert_eq!(places(erase, GONE).await?, []);
    assert_eq!(places(erase, STAYS).await?, others);
    assert_eq!(connected(ports, 1).await?, Some(1));
    let left = efforts(&*ports.entities, LIMIT).await?;
    assert!(left.len() == 4 && left.iter().all(|row| row.athlete_id == STAYS));
    let left = authorizations(&*ports.entities).await?;
    assert!(left.len() == 3 && left.iter().all(|row| row.athlete_id == STAYS));
    assert_eq!(ports.entities.club_members(1).await?, [STAYS]);
    assert_eq!(ports.entities.followed_athletes(51).await?, [STAYS]);
    Ok(())
}

/// Deleting the rows of groups decreases counters and sends no notifications.
pub async fn group_rows_are_deleted_without_notifications(ports: &Stores) -> Result<()> {
    filled(ports).await?;
    let erase = &*ports.entity_eraser;
    let groups = [group(1, GONE), group(9, GONE)];
    erase.erase_groups(Source::Efforts, &groups).await?;
    erase.erase_groups(Source::Authorizations, &groups).await?;
    assert_eq!(connected(ports, 1).await?, Some(1));
    assert_eq!(drain(ports).await?, BTreeSet::new());
    let left = efforts(&*ports.entities, LIMIT).await?;
    let left = left.iter().filter(|row| row.athlete_id == GONE);
    assert_eq!(left.map(|row| row.segment_id).collect::<Vec<_>>(), [2, 3]);
    let refused = erase.erase_groups(Source::Plays, &groups).await;
    assert!(refused.is_err(), "plays have no rows");
    Ok(())
}
