//! `migrate`: creates missing topics, keyspaces, schemas and buckets.

use schemas::source::Source;
use serde::Serialize;

use super::Context;
use crate::installation::Installation;

/// Result of `migrate`.
#[derive(Debug, Default, Serialize)]
struct Migrated {
    /// A message for each created object.
    made: Vec<String>,
}

/// Runs the command. A second run creates nothing.
pub(super) async fn run(context: &Context) -> anyhow::Result<()> {
    let options = context.settings().stores();
    let mut migrated = Migrated::default();
    for server in options.servers()? {
        let made = server.migrate().await?;
        let named = made
            .into_iter()
            .map(|made| format!("{}: {made}", server.name()));
        migrated.made.extend(named);
    }
    let installation = Installation::open(context.settings()).await?;
    migrated.made.extend(installation.create_topics().await?);
    let batch = installation.batch(&installation.engine()?)?;
    for source in Source::LOGGED {
        if batch.migrate_archive(source).await? {
            let made = format!(
                "archive: created the first version of {source} from the records of the older layout"
            );
            migrated.made.push(made);
        }
        batch.create_views(source).await?;
    }
    context.output().result(&migrated, |migrated| {
        if migrated.made.is_empty() {
            return "nothing to create".to_owned();
        }
        migrated.made.join("\n")
    })
}
