//! Dumps that are read in ranges of keys.

use std::collections::BTreeSet;

use futures::TryStreamExt;
use schemas::entities::Entity;
use schemas::source::Source;
use stores::entities::{EntityRead, EntityWrite};
use stores::sql::{EntityStore, SqlOptions};
use stores::{ErrorKind, Result};
use tests::conformance::entity_rows::{authorization, effort, effort_rows};

use super::{Schema, Server};

super::on_both! {
    dumps_are_complete_and_ordered
    a_dump_whose_connection_ends_fails
}

/// A key with more rows than many ranges.
const LARGE_KEY: i64 = 77;
const ROWS: i64 = 6_000;

/// A schema with very different numbers of rows by key, and a store that reads it in small ranges.
async fn create_filled_schema(server: Server) -> Result<(Schema, EntityStore)> {
    let schema = Schema::new(server).await;
    let options = SqlOptions {
        dump_range_rows: 250,
        ..schema.options.clone()
    };
    let entity_store = EntityStore::open(&options, &schema.namespace).await?;
    let row = |id: i64| {
        let key = match id {
            0..2_000 => LARGE_KEY,
            2_000..2_300 => i64::MIN,
            2_300..2_310 => i64::MAX,
            _ => id * id % 997 * 1_000_003,
        };
        Entity::Effort(effort(id, key, id * 7 % 31))
    };
    let rows: Vec<Entity> = (0..ROWS).map(row).collect();
    entity_store.apply(&rows, 1).await?;
    Ok((schema, entity_store))
}

/// The keys, athletes and ids of a dump; checks the order.
async fn read_ids(
    entity_store: &EntityStore,
    keys: Option<&[i64]>,
) -> Result<Vec<(i64, i64, i64)>> {
    let mut rows = Vec::new();
    let mut dump = entity_store.dump(Source::Efforts, keys, 100).await?;
    while let Some(batch) = dump.try_next().await? {
        assert!((1..=100).contains(&batch.num_rows()));
        let batch = effort_rows(&batch);
        rows.extend(
            batch
                .iter()
                .map(|row| (row.segment_id, row.athlete_id, row.id)),
        );
    }
    assert!(rows.is_sorted(), "in the order of key, member and id");
    Ok(rows)
}

/// All rows come once and in order while rows change, with and without table statistics of the
/// server. So do the rows of many keys.
async fn dumps_are_complete_and_ordered(server: Server) -> Result<()> {
    let (schema, entity_store) = create_filled_schema(server).await?;
    let all_rows = read_ids(&entity_store, None).await?;
    assert_eq!(all_rows.len(), 6_000);
    let keys: Vec<i64> = all_rows
        .iter()
        .map(|row| row.0)
        .collect::<BTreeSet<_>>()
        .into_iter()
        .collect();
    assert_eq!(keys.iter().filter(|key| **key == LARGE_KEY).count(), 1);

    for has_statistics in [false, true] {
        if has_statistics {
            schema.run(match server {
                Server::Postgres => "ANALYZE efforts;",
                Server::MariaDb => "DO 0; ANALYZE TABLE efforts;",
            });
        }
        assert_eq!(
            read_ids(&entity_store, None).await?,
            all_rows,
            "with statistics: {has_statistics}"
        );
        assert_eq!(
            read_ids(&entity_store, Some(&keys)).await?,
            all_rows,
            "with statistics: {has_statistics}"
        );
        for some_keys in [
            &keys[..1],
            &keys[3..200],
            &[LARGE_KEY, -5][..],
            &[i64::MAX, 0][..],
        ] {
            let expected = all_rows.iter().filter(|row| some_keys.contains(&row.0));
            let expected: Vec<_> = expected.copied().collect();
            assert_eq!(read_ids(&entity_store, Some(some_keys)).await?, expected);
        }
        // No part of the dump shows a concurrent change.
        let dump = entity_store.dump(Source::Efforts, None, 100).await?;
        let new_rows: Vec<Entity> = (10_000..10_500)
            .map(|id| {
                Entity::Effort(effort(
                    id,
                    all_rows[usize::try_from(id % 6_000).unwrap_or_default()].0,
                    5,
                ))
            })
            .collect();
        entity_store.apply(&new_rows, 1).await?;
        let dumped: Vec<_> = dump.try_collect().await?;
        let dumped: usize = dumped.iter().map(arrow::array::RecordBatch::num_rows).sum();
        assert_eq!(dumped, all_rows.len(), "as of the beginning");
        assert_eq!(
            read_ids(&entity_store, None).await?.len(),
            all_rows.len() + 500
        );
        schema.run("DELETE FROM efforts WHERE id >= 10000;");
    }
    // A small or empty table is one range.
    let rows: Vec<Entity> = (0..3)
        .map(|id| Entity::Authorization(authorization(id, 1, id)))
        .collect();
    for expected in [0, 3] {
        let dump = entity_store.dump(Source::Authorizations, None, 10).await?;
        let dumped: Vec<_> = dump.try_collect().await?;
        let dumped: usize = dumped.iter().map(arrow::array::RecordBatch::num_rows).sum();
        assert_eq!(dumped, expected);
        entity_store.apply(&rows, 1).await?;
    }
    Ok(())
}

/// All connections share one snapshot. If the connection that exported it ends first, the dump
/// fails, and a new one may start.
async fn a_dump_whose_connection_ends_fails(server: Server) -> Result<()> {
    let (schema, entity_store) = create_filled_schema(server).await?;
    let mut dump = entity_store.dump(Source::Efforts, None, 100).await?;
    dump.try_next().await?.expect("a batch");
    let name = schema.name();
    match server {
        Server::Postgres => {
            let dumps = format!(
                "SELECT count(*) FROM pg_stat_activity WHERE pid IN
                     (SELECT pid FROM pg_locks WHERE relation = '{name}.efforts'::regclass)"
            );
            // Each connection reads a range; the first one was opened first.
            let mut open = schema.run(&dumps);
            for _ in 0..100 {
                if open == "4" {
                    break;
                }
                tokio::time::sleep(std::time::Duration::from_millis(20)).await;
                open = schema.run(&dumps);
            }
            assert_eq!(open, "4", "connections that read");
            let ended = schema.run(&format!(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid IN
                     (SELECT pid FROM pg_locks WHERE relation = '{name}.efforts'::regclass)
                 ORDER BY backend_start LIMIT 1"
            ));
            assert_eq!(ended, "t");
        }
        Server::MariaDb => {
            let kill = schema.run(&format!(
                "SELECT GROUP_CONCAT(CONCAT('KILL ', id) SEPARATOR ';') FROM information_schema.processlist
                 WHERE db = '{name}' AND id <> CONNECTION_ID()"
            ));
            schema.run(&kill);
        }
    }
    let mut rows = 100;
    let error = loop {
        match dump.try_next().await {
            Ok(Some(batch)) => rows += batch.num_rows(),
            Ok(None) => panic!("a dump that lost a connection has ended with {rows} rows"),
            Err(error) => break error,
        }
    };
    assert!(rows < 6_000);
    assert_eq!(error.kind(), ErrorKind::Retry, "{error}");
    assert!(error.to_string().contains("start again"), "{error}");
    assert!(dump.try_next().await?.is_none(), "rows follow it");
    assert_eq!(read_ids(&entity_store, None).await?.len(), 6_000);
    Ok(())
}
