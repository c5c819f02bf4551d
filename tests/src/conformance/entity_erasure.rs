//! Laws of the entity store: erasing an athlete.

use std::collections::BTreeSet;

use schemas::entities::{Athlete, Authorization, Entity, Follow, Gender, Group, Membership};
use schemas::source::Source;
use stores::entities::EntityErase;
use stores::{Result, Stores};

use super::entity_rows::{
    NOW_MS, application, apply, athlete, authorization, authorizations, effort, efforts, group,
};

const ERASED: i64 = 7;
const OTHER: i64 = 8;
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
async fn fill_tables(ports: &Stores) -> Result<()> {
    let entities = &*ports.entities;
    let rows = [application(1, 10), application(2, 10)];
    apply(entities, &rows.map(Entity::Application)).await?;
    for (first_id, id) in [(0, ERASED), (100, OTHER)] {
        let efforts = [1, 1, 2, 3].iter().zip(1..);
        let efforts = efforts.map(|(segment, n)| effort(first_id + n, *segment, id));
        apply(entities, &efforts.map(Entity::Effort).collect::<Vec<_>>()).await?;
        let row = Athlete {
            gender: Some(Gender::F),
            is_disqualified: true,
            ..athlete(id)
        };
        apply(entities, &[Entity::Athlete(row)]).await?;
        let revoked = Authorization {
            revoked_at_us: Some(1),
            ..authorization(first_id + 3, 2, id)
        };
        let rows = [
            authorization(first_id + 1, 1, id),
            authorization(first_id + 2, 1, id),
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
async fn count_rows(entities: &dyn EntityErase, id: i64) -> Result<Vec<(&'static str, u64)>> {
    let mut counts = entities.count_athlete_rows(id).await?;
    assert!(counts.iter().all(|count| !count.is_view));
    counts.retain(|count| count.rows > 0);
    Ok(counts
        .iter()
        .map(|count| (count.table, count.rows))
        .collect())
}

async fn connected(ports: &Stores, application: i64) -> Result<Option<i64>> {
    let usage = ports.entities.usages_by_id(&[application]).await?.pop();
    Ok(usage.and_then(|usage| usage.connected))
}

/// All rows of an athlete are deleted in small steps, any of which may be the last for a while.
/// Groups are notified, counters decrease, and rows of other athletes stay.
pub async fn an_athlete_is_deleted_from_every_table(ports: &Stores) -> Result<()> {
    fill_tables(ports).await?;
    let eraser = &*ports.entity_eraser;
    let others = count_rows(eraser, OTHER).await?;
    let tables: Vec<&str> = others.iter().map(|(table, _)| *table).collect();
    for table in ["authorizations", "efforts", "clubs", "follows", "athletes"] {
        assert!(tables.contains(&table), "{table} is not among {tables:?}");
    }
    assert_eq!(count_rows(eraser, ERASED).await?, others);
    assert_eq!(connected(ports, 1).await?, Some(2));
    let mut steps = 0;
    while eraser.erase_rows(ERASED, 2, NOW_MS).await? > 0 {
        steps += 1;
        assert!(steps < LIMIT, "{:?}", count_rows(eraser, ERASED).await?);
    }
    eraser.notify_groups_of(ERASED, NOW_MS).await?;
    let notified = drain(ports).await?;
    for segment in 1..=3 {
        assert!(notified.contains(&(Source::Efforts, group(segment, ERASED))));
    }
    assert!(notified.contains(&(Source::Authorizations, group(1, ERASED))));
    assert!(
        notified.iter().all(|(_, group)| group.member == ERASED),
        "{notified:?}"
    );
    assert_eq!(count_rows(eraser, ERASED).await?, []);
    assert_eq!(count_rows(eraser, OTHER).await?, others);
    assert_eq!(connected(ports, 1).await?, Some(1));
    let remaining = efforts(&*ports.entities, LIMIT).await?;
    assert!(remaining.len() == 4 && remaining.iter().all(|row| row.athlete_id == OTHER));
    let remaining = authorizations(&*ports.entities).await?;
    assert!(remaining.len() == 3 && remaining.iter().all(|row| row.athlete_id == OTHER));
    assert_eq!(ports.entities.club_members(1).await?, [OTHER]);
    assert_eq!(ports.entities.followed_athletes(51).await?, [OTHER]);
    Ok(())
}

/// Deleting the rows of groups decreases counters and sends no notifications.
pub async fn group_rows_are_deleted_without_notifications(ports: &Stores) -> Result<()> {
    fill_tables(ports).await?;
    let eraser = &*ports.entity_eraser;
    let groups = [group(1, ERASED), group(9, ERASED)];
    eraser.erase_groups(Source::Efforts, &groups).await?;
    eraser.erase_groups(Source::Authorizations, &groups).await?;
    assert_eq!(connected(ports, 1).await?, Some(1));
    assert_eq!(drain(ports).await?, BTreeSet::new());
    let remaining = efforts(&*ports.entities, LIMIT).await?;
    let remaining = remaining.iter().filter(|row| row.athlete_id == ERASED);
    assert_eq!(
        remaining.map(|row| row.segment_id).collect::<Vec<_>>(),
        [2, 3]
    );
    let refused = eraser.erase_groups(Source::Plays, &groups).await;
    assert!(refused.is_err(), "plays have no rows");
    Ok(())
}
