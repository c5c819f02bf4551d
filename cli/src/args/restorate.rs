//! The arguments of `restorate`.

use clap::{Args, Subcommand};
use schemas::source::Source;

use super::By;
use super::values;

/// Arguments of `restorate`.
#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct RestorateArgs {
    #[command(subcommand)]
    pub(crate) command: Option<RestorateCommand>,
    #[command(flatten)]
    pub(crate) compare: CompareArgs,
}

/// The commands of `restorate`.
#[derive(Debug, Subcommand)]
pub(crate) enum RestorateCommand {
    /// Show what was restored, or what was compared, newest first
    List {
        /// Of this source
        #[arg(long, value_parser = values::source(), default_value = "plays")]
        source: Source,
        /// What was compared, by hand or scheduled, whether anything was restored or not
        #[arg(long)]
        comparisons: bool,
        /// How many comparisons to show
        #[arg(long, value_name = "N", default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..=10_000))]
        limit: u32,
    },
    /// Let a schedule put right what its comparison found, though there is more than it may put right unasked
    Approve(DecideArgs),
    /// Take the corrections of a restoration back
    Undo(DecideArgs),
}

/// What is decided upon, by whom and why.
#[derive(Debug, Args)]
pub(crate) struct DecideArgs {
    /// The number of the comparison (`list --comparisons`) or of the restoration (`list`)
    #[arg(value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) number: u64,
    /// Of this source
    #[arg(long, value_parser = values::source(), default_value = "plays")]
    pub(crate) source: Source,
    /// Why, for the record
    #[arg(long, value_name = "TEXT", default_value = "")]
    pub(crate) reason: String,
    #[command(flatten)]
    pub(crate) by: By,
}

/// What is compared with what, and what follows from it.
#[derive(Debug, Args)]
pub(crate) struct CompareArgs {
    /// The view whose values are compared, such as plays_owner_day_track
    #[arg(long, value_name = "VIEW", required_unless_present = "scheduled")]
    pub(crate) view: Option<String>,
    /// What is expected: `archive`, which is what all events give; a file (.csv, .jsonl, .parquet) with columns of the
    /// view and `expected`; the address of another system (https://…) that answers with the same as CSV, JSON lines or JSON;
    /// `canonical`, of boards, and of counts with --query
    #[arg(long, value_name = "WHAT", required_unless_present = "scheduled")]
    pub(crate) expected: Option<String>,
    /// With `--expected canonical`, of counts: a query of the canonical store that gives columns of the view and `expected`
    #[arg(long, value_name = "SQL")]
    pub(crate) query: Option<String>,
    /// A column of what is expected is called otherwise than the view's, such as customer=owner_id
    #[arg(long = "rename", value_name = "COLUMN=FIELD")]
    pub(crate) rename: Vec<String>,
    /// With an address: a file that holds the bearer token that says who asks
    #[arg(long, value_name = "FILE")]
    pub(crate) bearer_file: Option<String>,
    /// With an address: the variable of the environment that holds it
    #[arg(long, value_name = "NAME", conflicts_with = "bearer_file")]
    pub(crate) bearer_env: Option<String>,
    /// Carry out the scheduled reconciliations (`reconciliation` in the settings) that are due, or the one of this name
    #[arg(
        long,
        value_name = "NAME",
        num_args = 0..=1,
        default_missing_value = "",
        conflicts_with_all = ["view", "expected", "query", "rename", "bearer_file", "bearer_env", "keys", "from", "to", "sample", "tolerance", "whole", "apply", "set", "reason"]
    )]
    pub(crate) scheduled: Option<String>,
    /// Only keys with one of these values in a column, such as owner_id=1,2; an empty value stands for none. More than
    /// once for several columns
    #[arg(long = "keys", value_name = "COLUMN=VALUE,…")]
    pub(crate) keys: Vec<String>,
    /// Only buckets that begin at this instant or later: RFC 3339, or a date in UTC
    #[arg(long, value_name = "TIME", value_parser = values::instant)]
    pub(crate) from: Option<i64>,
    /// Only buckets that begin before this instant
    #[arg(long, value_name = "TIME", value_parser = values::instant)]
    pub(crate) to: Option<i64>,
    /// Only so large a part of the keys, always the same ones, such as 0.01
    #[arg(long, value_name = "PART")]
    pub(crate) sample: Option<f64>,
    /// Differences from a file up to so much are none: a count, or a part such as 0.5%; more than once for both
    #[arg(long, value_name = "N|N%")]
    pub(crate) tolerance: Vec<String>,
    /// The file names every key: what it does not name is expected to be 0
    #[arg(long)]
    pub(crate) whole: bool,
    /// How many differences to show, the largest first
    #[arg(long, value_name = "N", default_value_t = 50, value_parser = clap::value_parser!(u32).range(0..=100_000))]
    pub(crate) limit: u32,
    /// Put right what differs: rows and live state from the events, or by corrections what a file says
    #[arg(long)]
    pub(crate) apply: bool,
    /// With --apply: only if no more than this differs in all
    #[arg(long, value_name = "N", requires = "apply")]
    pub(crate) apply_max: Option<u64>,
    /// With --apply: a field of corrections that neither view nor file say, such as track_id=7
    #[arg(long = "set", value_name = "FIELD=VALUE", requires = "apply")]
    pub(crate) set: Vec<String>,
    /// Why, for the record
    #[arg(long, value_name = "TEXT", default_value = "")]
    pub(crate) reason: String,
    #[command(flatten)]
    pub(crate) by: By,
}
