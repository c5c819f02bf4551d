//! `dead-letters`: lists, counts, shows and replays rejected input.

mod count;
mod list;
mod replay;
mod show;

use schemas::dead_letter::{DeadLetter, DeadLetterId};
use serde::Serialize;
use stores::dead_letters::{DeadLetterFilter, StoredDeadLetter};

use super::Context;
use crate::args::DeadLettersCommand;
use crate::installation::Installation;

/// Runs the command.
pub(super) async fn run(command: &DeadLettersCommand, context: &Context) -> anyhow::Result<()> {
    let installation = Installation::open_existing(context.settings()).await?;
    match command {
        DeadLettersCommand::List { limit, filter } => {
            let filter = DeadLetterFilter::from(filter);
            list::list(context, &installation, filter, usize::try_from(*limit)?).await
        }
        DeadLettersCommand::Count { filter } => {
            count::count(context, &installation, DeadLetterFilter::from(filter)).await
        }
        DeadLettersCommand::Show { id, raw } => show::show(context, &installation, *id, *raw).await,
        DeadLettersCommand::Replay(args) => replay::replay(context, &installation, args).await,
    }
}

/// A dead letter in the output.
#[derive(Debug, Serialize)]
struct DeadLetterEntry {
    /// Its topic, partition and offset.
    id: DeadLetterId,
    /// True if the record is not a valid dead letter.
    broken: bool,
    #[serde(flatten)]
    content: DeadLetter,
}

impl From<StoredDeadLetter> for DeadLetterEntry {
    fn from(letter: StoredDeadLetter) -> Self {
        Self {
            id: letter.id,
            broken: letter.is_broken,
            content: letter.content,
        }
    }
}

/// Formats the error message for an unknown dead letter.
fn unknown_dead_letter(id: DeadLetterId) -> String {
    format!("dead letter {id} does not exist; `backstitch dead-letters list` lists them")
}
