//! `migrate`: creates missing topics, keyspaces, schemas and buckets.

use schemas::source::Source;
use serde::Serialize;

use super::Context;
use crate::installation::Installation;

/// Result of `migrate`.
#[derive(Debug, Default, Serialize)]
struct MigrateOutput {
    /// A message for each created object.
    #[serde(rename = "made")]
    created: Vec<String>,
}

/// Runs the command. A second run creates nothing.
pub(super) async fn run(context: &Context) -> anyhow::Result<()> {
    let options = context.settings().stores_options();
    let mut output = MigrateOutput::default();
    for server in options.servers()? {
        let objects = server.migrate().await?;
        let messages = objects
            .into_iter()
            .map(|object| format!("{}: {object}", server.name()));
        output.created.extend(messages);
    }
    let installation = Installation::open(context.settings()).await?;
    output.created.extend(installation.create_topics().await?);
    let batch = installation.create_batch(&installation.create_engine()?)?;
    for source in Source::LOGGED {
        if batch.migrate_archive(source).await? {
            let message = format!(
                "archive: created the first version of {source} from the records of the older layout"
            );
            output.created.push(message);
        }
        batch.create_views(source).await?;
    }
    context.output().print_result(&output, |output| {
        if output.created.is_empty() {
            return "nothing to create".to_owned();
        }
        output.created.join("\n")
    })
}
