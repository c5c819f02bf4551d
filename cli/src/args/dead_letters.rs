//! The commands of `dead-letters`.

use clap::{Args, Subcommand};
use schemas::dead_letter::LetterId;
use schemas::source::Source;
use stores::dead_letters::Asked;

use super::values;

/// The commands of `dead-letters`.
#[derive(Debug, Subcommand)]
pub(crate) enum DeadLettersCommand {
    /// Show what could not be taken, newest first
    List {
        /// How many to show
        #[arg(long, value_name = "N", default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..=100_000))]
        limit: u32,
        #[command(flatten)]
        wanted: Wanted,
    },
    /// Count what could not be taken, by source and kind of reason
    Count {
        #[command(flatten)]
        wanted: Wanted,
    },
    /// Show everything about one dead letter
    Show {
        /// The letter, as `list` shows it: TOPIC/PARTITION@OFFSET
        #[arg(value_name = "ID")]
        id: LetterId,
        /// Write its bytes alone to standard output, as they came
        #[arg(long)]
        raw: bool,
    },
    /// Check what could not be taken again, and take what is good now; twice is as once
    Replay(ReplayArgs),
}

/// Which letters are wanted.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct Wanted {
    /// Only of this source
    #[arg(long, value_parser = values::source())]
    pub(crate) source: Option<Source>,
    /// Only those in whose reason, or the kind of it that `count` shows, this is found
    #[arg(long, value_name = "TEXT")]
    pub(crate) reason: Option<String>,
    /// Only those that were set aside then or later: an instant, or a date in UTC
    #[arg(long, value_name = "TIME", value_parser = values::instant)]
    pub(crate) since: Option<i64>,
}

impl From<&Wanted> for Asked {
    fn from(wanted: &Wanted) -> Self {
        Self {
            source: wanted.source,
            reason: wanted.reason.clone(),
            since_ms: wanted.since,
        }
    }
}

/// Arguments of `dead-letters replay`.
#[derive(Debug, Default, Args)]
pub(crate) struct ReplayArgs {
    #[command(flatten)]
    pub(crate) wanted: Wanted,
    /// Only this letter, more than once for several
    #[arg(long = "id", value_name = "ID", conflicts_with_all = ["source", "reason", "since"])]
    pub(crate) ids: Vec<LetterId>,
    /// Only say what would become of them, and write nothing
    #[arg(long)]
    pub(crate) dry_run: bool,
}
