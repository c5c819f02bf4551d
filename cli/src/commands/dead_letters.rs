//! `dead-letters`: what could not be taken, shown, counted, and taken once it can be.

mod count;
mod list;
mod replay;
mod show;

use schemas::dead_letter::{DeadLetter, LetterId};
use serde::Serialize;
use stores::dead_letters::{Asked, Letter};

use super::Context;
use crate::args::DeadLettersCommand;
use crate::installation::Installation;

/// Runs the command.
pub(super) async fn run(command: &DeadLettersCommand, context: &Context) -> anyhow::Result<()> {
    let installation = Installation::open_existing(context.settings()).await?;
    match command {
        DeadLettersCommand::List { limit, wanted } => {
            let asked = Asked::from(wanted);
            list::list(context, &installation, asked, usize::try_from(*limit)?).await
        }
        DeadLettersCommand::Count { wanted } => {
            count::count(context, &installation, Asked::from(wanted)).await
        }
        DeadLettersCommand::Show { id, raw } => show::show(context, &installation, *id, *raw).await,
        DeadLettersCommand::Replay(args) => replay::replay(context, &installation, args).await,
    }
}

/// A letter, as it is printed.
#[derive(Debug, Serialize)]
struct Shown {
    /// Its place in the log, by which it goes.
    id: LetterId,
    /// Whether the record there is no dead letter.
    broken: bool,
    #[serde(flatten)]
    content: DeadLetter,
}

impl From<Letter> for Shown {
    fn from(letter: Letter) -> Self {
        Self {
            id: letter.id,
            broken: letter.is_broken,
            content: letter.content,
        }
    }
}

/// What to say of a letter that is not there.
fn unknown(id: LetterId) -> String {
    format!("dead letter {id}: there is none; `backstitch dead-letters list` shows those there are")
}
