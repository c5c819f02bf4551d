//! `migrate`: makes on the servers what is missing.

use schemas::source::Source;
use serde::Serialize;

use super::Context;
use crate::installation::Installation;

/// What was made.
#[derive(Debug, Default, Serialize)]
struct Migrated {
    /// By server and topic, in sentences.
    made: Vec<String>,
}

/// Runs the command. Running it again makes nothing.
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
    migrated.made.extend(installation.make_topics().await?);
    let batch = installation.batch(&installation.engine()?)?;
    for source in Source::LOGGED {
        if batch.take_over_archive(source).await? {
            let made = format!(
                "archive: the first version of {source}, from the records of the older layout"
            );
            migrated.made.push(made);
        }
        batch.make_views(source).await?;
    }
    context.output().result(&migrated, |migrated| {
        if migrated.made.is_empty() {
            return "everything is there".to_owned();
        }
        migrated.made.join("\n")
    })
}
