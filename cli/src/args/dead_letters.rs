//! The commands of `dead-letters`.

use clap::{Args, Subcommand};
use schemas::dead_letter::DeadLetterId;
use schemas::source::Source;
use stores::dead_letters::DeadLetterFilter;

use super::values;

/// The commands of `dead-letters`.
#[derive(Debug, Subcommand)]
pub(crate) enum DeadLettersCommand {
    /// List rejected input, newest first
    List {
        /// Number of dead letters
        #[arg(long, value_name = "N", default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..=100_000))]
        limit: u32,
        #[command(flatten)]
        filter: FilterArgs,
    },
    /// Count rejected input by source and kind of reason
    Count {
        #[command(flatten)]
        filter: FilterArgs,
    },
    /// Show one dead letter
    Show {
        /// The dead letter as `list` shows it: TOPIC/PARTITION@OFFSET
        #[arg(value_name = "ID")]
        id: DeadLetterId,
        /// Write only its original bytes to standard output
        #[arg(long)]
        raw: bool,
    },
    /// Check rejected input again, and ingest valid lines; safe to repeat
    Replay(ReplayArgs),
}

/// Filters of dead letters.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct FilterArgs {
    /// Only this source
    #[arg(long, value_parser = values::source_parser())]
    pub(crate) source: Option<Source>,
    /// Only dead letters whose reason, or its kind as in `count`, contains this text
    #[arg(long, value_name = "TEXT")]
    pub(crate) reason: Option<String>,
    /// Only dead letters that were rejected at this time or later: an instant, or a date in UTC
    #[arg(long, alias = "since", value_name = "TIME", value_parser = values::parse_instant)]
    pub(crate) from: Option<i64>,
}

impl From<&FilterArgs> for DeadLetterFilter {
    fn from(filter: &FilterArgs) -> Self {
        Self {
            source: filter.source,
            reason: filter.reason.clone(),
            since_ms: filter.from,
        }
    }
}

/// Arguments of `dead-letters replay`.
#[derive(Debug, Default, Args)]
pub(crate) struct ReplayArgs {
    #[command(flatten)]
    pub(crate) filter: FilterArgs,
    /// Only this dead letter; repeatable
    #[arg(long = "id", value_name = "ID", conflicts_with_all = ["source", "reason", "from"])]
    pub(crate) ids: Vec<DeadLetterId>,
    /// Write nothing; only report the outcome of each dead letter
    #[arg(long)]
    pub(crate) dry_run: bool,
}
