//! Concurrent changes of the same rows.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use futures::TryStreamExt;
use schemas::entities::{Athlete, Authorization, Effort, Entity, Gender, Group};
use schemas::source::Source;
use stores::Result;
use stores::admin::{ApplicationChange, AuditContext, EntityAdmin};
use stores::entities::{AuthorizeOutcome, EntityRead, EntityWrite};
use stores::sql::{EntityStore, SqlOptions};
use tests::conformance::entity_rows::{application, athlete, authorization, effort, effort_rows};
use tokio::task::JoinSet;

use super::{Schema, Server};

super::on_both! {
    the_newest_version_wins_in_any_order
    capacity_is_never_exceeded
    concurrent_athlete_and_effort_changes_are_published
    a_dump_shows_one_snapshot_and_may_be_dropped
}

/// Two clients repeatedly apply the same ids in different orders and versions. No call fails, and
/// the newest versions stay.
#[expect(clippy::too_many_lines, reason = "one scenario")]
async fn the_newest_version_wins_in_any_order(server: Server) -> Result<()> {
    const ROWS: i64 = 120;
    const ROUNDS: i64 = 12;
    let schema = Schema::new(server).await;
    let mut writers = JoinSet::new();
    for client in 0..4_i64 {
        let entity_store = schema.open_store().await?;
        writers.spawn(async move {
            for round in 0..ROUNDS {
                // Each of the four clients has its own version in each round.
                let version = round * 4 + client;
                let row = |id: i64| {
                    [
                        Entity::Effort(Effort {
                            elapsed_time_s: version + 1,
                            version,
                            ..effort(id, id % 5, id % 7)
                        }),
                        Entity::Authorization(Authorization {
                            created_at_us: version,
                            revoked_at_us: (version % 2 == 0).then_some(1),
                            version,
                            ..authorization(id, id % 3, id % 11)
                        }),
                        Entity::Athlete(Athlete {
                            birth_year: Some(version + 1),
                            version,
                            ..athlete(id % 7)
                        }),
                        Entity::Application(application(id % 3, 1000)),
                    ]
                };
                let mut rows: Vec<Entity> = (0..ROWS).flat_map(row).collect();
                if client % 2 == 1 {
                    rows.reverse();
                }
                let applied = entity_store.apply(&rows, 1).await?;
                assert_eq!(applied.rejected, []);
            }
            Result::Ok(())
        });
    }
    while let Some(outcome) = writers.join_next().await {
        outcome.expect("the task ends")?;
    }
    let entity_store = schema.open_store().await?;
    let last = ROUNDS * 4 - 1;
    let rows: Vec<_> = entity_store
        .dump(Source::Efforts, None, 1000)
        .await?
        .try_collect()
        .await?;
    let rows: Vec<_> = rows.iter().flat_map(effort_rows).collect();
    assert_eq!(rows.len(), 120);
    for row in &rows {
        assert_eq!(
            (row.elapsed_time_s, row.birth_year),
            (last + 1, Some(last + 1))
        );
    }
    // The counters match the rows: all of the last version, none revoked.
    for id in 0..3 {
        let pairs: BTreeSet<i64> = (0..ROWS)
            .filter(|row| row % 3 == id)
            .map(|row| row % 11)
            .collect();
        let connected = i64::try_from(pairs.len()).unwrap_or_default();
        let (change, by) = (
            ApplicationChange::capacity(connected),
            AuditContext::default(),
        );
        entity_store.change_application(id, change, &by, 1).await?;
        let full = AuthorizeOutcome::CapacityReached {
            connected,
            capacity: connected,
        };
        assert_eq!(entity_store.authorize(id, 999, 1).await?, full);
    }
    Ok(())
}

/// Fifty athletes connect at once to an application with a capacity of five.
async fn capacity_is_never_exceeded(server: Server) -> Result<()> {
    let schema = Schema::new(server).await;
    let options = SqlOptions {
        connections_max: 50,
        ..schema.options.clone()
    };
    let entity_store = Arc::new(EntityStore::open(&options, &schema.namespace).await?);
    entity_store
        .apply(&[Entity::Application(application(1, 5))], 1)
        .await?;
    let mut requests = JoinSet::new();
    for athlete_id in 0..50 {
        let entity_store = Arc::clone(&entity_store);
        requests.spawn(async move { entity_store.authorize(1, athlete_id, 1).await });
    }
    let mut outcome_counts = BTreeMap::new();
    while let Some(outcome) = requests.join_next().await {
        let outcome = match outcome.expect("the task ends")? {
            AuthorizeOutcome::New { .. } => "new",
            AuthorizeOutcome::CapacityReached {
                connected: 5,
                capacity: 5,
            } => "full",
            unexpected => panic!("{unexpected:?}"),
        };
        *outcome_counts.entry(outcome).or_insert(0) += 1;
    }
    assert_eq!(outcome_counts, BTreeMap::from([("full", 45), ("new", 5)]));
    Ok(())
}

/// The last notification of an athlete's group is published when both the effort and the athlete
/// are visible, so no board stays wrong.
async fn concurrent_athlete_and_effort_changes_are_published(server: Server) -> Result<()> {
    const SEGMENTS: i64 = 40;
    let schema = Schema::new(server).await;
    let (writer, reader) = (
        schema.open_store().await?,
        Arc::new(schema.open_store().await?),
    );
    let mut writers = JoinSet::new();
    writers.spawn(async move {
        for segment in 0..SEGMENTS {
            writer
                .apply(&[Entity::Effort(effort(segment, segment, 7))], 1)
                .await?;
        }
        Result::Ok(())
    });
    let changer = Arc::clone(&reader);
    writers.spawn(async move {
        for version in 0..SEGMENTS {
            let row = Athlete {
                gender: (version % 2 == 0).then_some(Gender::F).or(Some(Gender::M)),
                birth_year: Some(version),
                version,
                ..athlete(7)
            };
            changer.apply(&[Entity::Athlete(row)], 1).await?;
        }
        Result::Ok(())
    });
    // The contents of a view: each group as it was read after its last notification.
    let mut view_rows: BTreeMap<Group, Option<i64>> = BTreeMap::new();
    loop {
        let is_over = writers.is_empty();
        let notifications = reader
            .pending_notifications(Source::Efforts, i64::MAX, 1000)
            .await?;
        let mut groups: Vec<Group> = notifications
            .iter()
            .map(|notification| notification.group)
            .collect();
        groups.sort_unstable();
        groups.dedup();
        let rows = reader.groups(Source::Efforts, &groups).await?;
        for row in effort_rows(&rows) {
            let group = Group {
                key: row.segment_id,
                member: row.athlete_id,
            };
            view_rows.insert(group, row.birth_year);
        }
        let ids: Vec<i64> = notifications
            .iter()
            .map(|notification| notification.id)
            .collect();
        reader.remove_notifications(&ids).await?;
        if is_over && notifications.is_empty() {
            break;
        }
        if let Some(outcome) = writers.try_join_next() {
            outcome.expect("the task ends")?;
        }
    }
    let expected: BTreeMap<Group, Option<i64>> = (0..SEGMENTS)
        .map(|key| (Group { key, member: 7 }, Some(SEGMENTS - 1)))
        .collect();
    assert_eq!(view_rows, expected);
    Ok(())
}

/// A dump shows one snapshot, however late it is read, and a dropped dump closes its connection.
async fn a_dump_shows_one_snapshot_and_may_be_dropped(server: Server) -> Result<()> {
    const ROWS: i64 = 20_000;
    let schema = Schema::new(server).await;
    let entity_store = schema.open_store().await?;
    let rows_with_time = |elapsed_time_s: i64| -> Vec<Entity> {
        let row = |id| Effort {
            elapsed_time_s,
            ..effort(id, id % 50, id % 70)
        };
        (0..ROWS).map(row).map(Entity::Effort).collect()
    };
    entity_store.apply(&rows_with_time(1), 1).await?;
    let mut dump = entity_store.dump(Source::Efforts, None, 100).await?;
    let dropped = entity_store.dump(Source::Efforts, None, 100).await?;
    entity_store.apply(&rows_with_time(2), 1).await?;
    entity_store
        .apply(&[Entity::Effort(effort(ROWS + 1, 1, 1))], 1)
        .await?;
    let mut rows = 0;
    while let Some(batch) = dump.try_next().await? {
        assert!(
            effort_rows(&batch)
                .iter()
                .all(|row| row.elapsed_time_s == 1)
        );
        rows += batch.num_rows();
    }
    assert_eq!(rows, 20_000);
    drop(dropped);
    let dumps = match server {
        Server::Postgres => format!(
            "SELECT count(*) FROM pg_stat_activity WHERE query LIKE '%FROM dump%' AND pid <> pg_backend_pid()
             AND pid IN (SELECT pid FROM pg_locks WHERE relation = '{}.efforts'::regclass)",
            schema.name()
        ),
        Server::MariaDb => format!(
            "SELECT count(*) FROM information_schema.processlist WHERE db = '{}'
             AND id <> CONNECTION_ID() AND (info LIKE '%e.athlete_id, e.id%' OR command = 'Execute')",
            schema.name()
        ),
    };
    for _ in 0..100 {
        if schema.run(&dumps) == "0" {
            return Ok(());
        }
        tokio::time::sleep(std::time::Duration::from_millis(100)).await;
    }
    panic!("the dump's connection stays: {}", schema.run(&dumps));
}
