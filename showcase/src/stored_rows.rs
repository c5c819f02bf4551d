//! Reads the tables of the entity store, and compares them with the expected rows.

use schemas::source::Source;

use crate::rows::TABLES;
use crate::shared::{SharedState, lock};

fn build_select(source: Source, columns: &str) -> String {
    let columns = columns
        .replace(' ', ", ")
        .replace(
            "is_disqualified",
            "(SELECT count(*) FROM disqualified d WHERE d.athlete_id = athletes.id) AS is_disqualified",
        )
        .replace("is_revoked", "revoked_at_us IS NOT NULL AS is_revoked");
    format!("SELECT {columns} FROM {source}")
}

/// Adds the rows that are stored now to the expected rows.
pub(crate) async fn load_tables(shared: &SharedState) -> anyhow::Result<()> {
    for (source, _, columns) in TABLES {
        for row in shared.query(&build_select(source, columns)).await? {
            lock(&shared.rows).put(source, row);
        }
    }
    Ok(())
}

/// Compares all tables with the expected rows.
pub(crate) async fn compare_tables(shared: &SharedState) -> anyhow::Result<()> {
    for (source, keys, columns) in TABLES {
        let was_running = shared.setup.batch.is_running();
        let stored = shared.query(&build_select(source, columns)).await?;
        shared.count_answer("rows", was_running);
        let differences = lock(&shared.rows).compare(source, keys, &stored);
        let mut summary = lock(&shared.summary);
        differences
            .iter()
            .for_each(|difference| summary.record_difference(difference));
    }
    Ok(())
}
