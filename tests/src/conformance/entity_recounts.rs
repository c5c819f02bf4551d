//! Laws of the entity store: recounting the athletes of applications.

use std::collections::{BTreeMap, BTreeSet};

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use schemas::entities::{Authorization, Entity};
use stores::admin::EntityAdmin;
use stores::recounts::{CountedApplication, RecordedCount, Recount};
use stores::{Result, Stores};

use super::entity_rows::{NOW_MS, application, apply, authorization};

const LIMIT: usize = 100;

const fn counted(connected: u64, counted_at_ms: i64) -> RecordedCount {
    RecordedCount {
        connected,
        counted_at_ms,
    }
}

const fn countable(
    application_id: i64,
    athlete_capacity: i64,
    recorded: Option<RecordedCount>,
) -> CountedApplication {
    CountedApplication {
        application_id,
        athlete_capacity,
        recorded,
    }
}

fn numbers(recounts: &[Recount]) -> Vec<(i64, RecordedCount)> {
    let number = |recount: &Recount| (recount.application_id, recount.counted);
    recounts.iter().map(number).collect()
}

async fn recorded(entities: &dyn EntityAdmin, id: i64) -> Result<Option<RecordedCount>> {
    let applications = entities.counted_applications(&[id]).await?;
    Ok(applications
        .first()
        .and_then(|application| application.recorded))
}

/// Each athlete counts once, however many authorizations are active. Nothing is recorded before a
/// recount is requested.
pub async fn athletes_are_recounted(ports: &Stores) -> Result<()> {
    let entities = &*ports.entities;
    assert_eq!(entities.counted_applications(&[5]).await?, []);
    let rows = [(3, 0), (5, 7), (8, 9)].map(|(id, capacity)| application(id, capacity));
    apply(entities, &rows.map(Entity::Application)).await?;
    let revoked = Authorization {
        revoked_at_us: Some(1),
        ..authorization(5, 5, 12)
    };
    let rows = [
        authorization(1, 5, 10),
        authorization(2, 5, 10),
        authorization(3, 5, 11),
        authorization(4, 8, 10),
        revoked,
    ];
    apply(entities, &rows.map(Entity::Authorization)).await?;
    let applications = [(3, 0), (5, 7), (8, 9)].map(|(id, capacity)| countable(id, capacity, None));
    assert_eq!(
        entities.counted_applications_after(None, LIMIT).await?,
        applications
    );
    assert_eq!(
        entities.counted_applications_after(Some(3), 1).await?,
        applications[1..2]
    );
    assert_eq!(
        entities
            .counted_applications_after(Some(i64::MAX), 1)
            .await?,
        []
    );
    assert_eq!(
        entities.counted_applications(&[8, 9, 3, 8]).await?,
        [applications[0], applications[2]]
    );

    let recounts = entities.recount(&[8, 5, 3, 5], NOW_MS).await?;
    let expected = [(3, 0), (5, 2), (8, 1)].map(|(id, count)| (id, counted(count, NOW_MS)));
    assert_eq!(numbers(&recounts), expected);
    assert_eq!(
        entities.counted_applications_after(None, LIMIT).await?,
        applications,
        "not yet"
    );
    entities.record_recounts(&recounts).await?;
    assert_eq!(recorded(entities, 5).await?, Some(counted(2, NOW_MS)));
    assert_eq!(recorded(entities, 3).await?, Some(counted(0, NOW_MS)));

    entities.revoke(5, 10, NOW_MS).await?;
    let recounts = entities.recount(&[5], NOW_MS - 1).await?;
    entities.record_recounts(&recounts).await?;
    let expected = counted(1, NOW_MS - 1);
    assert_eq!(
        recorded(entities, 5).await?,
        Some(expected),
        "for any clock"
    );
    assert_eq!(entities.recount(&[], NOW_MS).await?, []);
    entities.record_recounts(&[]).await
}

/// Of two overlapping recounts the one that started later wins, in any order of recording and from
/// any process.
pub async fn the_later_recount_wins(ports: &Stores, other: &Stores) -> Result<()> {
    let (entities, other) = (&*ports.entities, &*other.entities);
    let rows = [5, 6].map(|id| Entity::Application(application(id, 9)));
    apply(entities, &rows).await?;
    let first = entities.recount(&[5, 6], NOW_MS).await?;
    apply(entities, &[Entity::Authorization(authorization(1, 5, 10))]).await?;
    // A clock that is behind.
    let second = other.recount(&[5], NOW_MS - 9).await?;
    assert!(second[0].ticket > first[0].ticket);
    other.record_recounts(&second).await?;
    entities.record_recounts(&first).await?;
    entities.record_recounts(&first).await?;
    for entities in [entities, other] {
        assert_eq!(recorded(entities, 5).await?, Some(counted(1, NOW_MS - 9)));
        assert_eq!(recorded(entities, 6).await?, Some(counted(0, NOW_MS)));
    }
    // A recount that started and was never recorded does not block others.
    let _lost = entities.recount(&[5], NOW_MS).await?;
    apply(entities, &[Entity::Authorization(authorization(2, 5, 11))]).await?;
    let last = other.recount(&[5], NOW_MS).await?;
    other.record_recounts(&last).await?;
    assert_eq!(recorded(entities, 5).await?, Some(counted(2, NOW_MS)));
    Ok(())
}

/// A recount after a change records that change or a later count, also with a second process that
/// does the same concurrently.
pub async fn concurrent_recounts_are_correct(ports: &Stores, other: &Stores) -> Result<()> {
    const APPLICATIONS: [i64; 3] = [21, 22, 23];
    let rows = APPLICATIONS.map(|id| Entity::Application(application(id, 1_000)));
    apply(&*ports.entities, &rows).await?;
    let work = async |entities: &dyn EntityAdmin, seed: u64| -> Result<Vec<Authorization>> {
        let mut rng = SmallRng::seed_from_u64(seed);
        let mut rows: BTreeMap<i64, Authorization> = BTreeMap::new();
        for step in 0..15 {
            let first = i64::try_from(seed).unwrap_or_default() * 1_000;
            let id = first + rng.random_range(0..20);
            let (index, athlete) = (rng.random_range(0..3), rng.random_range(0..6));
            let revoked = rng.random_bool(0.3).then_some(5);
            let existing = rows
                .get(&id)
                .map(|row| (row.application_id, row.athlete_id));
            let (application, athlete) = existing.unwrap_or((APPLICATIONS[index], athlete));
            let row = Authorization {
                revoked_at_us: revoked,
                version: step,
                ..authorization(id, application, athlete)
            };
            rows.insert(id, row.clone());
            apply(entities, &[Entity::Authorization(row)]).await?;
            let recounts = entities.recount(&[application], NOW_MS).await?;
            entities.record_recounts(&recounts).await?;
        }
        Ok(rows.into_values().collect())
    };
    let (first, second) = tokio::join!(work(&*ports.entities, 1), work(&*other.entities, 2));
    let mut athletes: BTreeMap<i64, BTreeSet<i64>> = BTreeMap::new();
    for row in first?.into_iter().chain(second?) {
        let athletes = athletes.entry(row.application_id).or_default();
        if row.revoked_at_us.is_none() {
            athletes.insert(row.athlete_id);
        }
    }
    for (id, athletes) in athletes {
        let actual = recorded(&*ports.entities, id).await?;
        let actual = actual.map(|count| count.connected);
        assert_eq!(actual, Some(athletes.len() as u64), "application {id}");
    }
    Ok(())
}
