//! The arguments of `reconcile`.

use clap::{Args, Subcommand};
use schemas::source::Source;

use super::ActorArgs;
use super::values;

/// Arguments of `reconcile`.
#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct ReconcileArgs {
    #[command(subcommand)]
    pub(crate) command: Option<ReconcileCommand>,
    #[command(flatten)]
    pub(crate) compare: CompareArgs,
}

/// The commands of `reconcile`.
#[derive(Debug, Subcommand)]
pub(crate) enum ReconcileCommand {
    /// List repairs, or with --comparisons all comparisons, newest first
    List {
        /// Source of the view
        #[arg(long, value_parser = values::source_parser(), default_value = "plays")]
        source: Source,
        /// List comparisons, manual and scheduled ones, with or without a repair
        #[arg(long)]
        comparisons: bool,
        /// Number of comparisons
        #[arg(long, value_name = "N", default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..=10_000))]
        limit: u32,
    },
    /// Allow a schedule to repair the differences of a comparison, although they exceed its limit
    Approve(DecisionArgs),
    /// Undo the corrections of a repair
    Undo(DecisionArgs),
}

/// A decision on a comparison or a repair.
#[derive(Debug, Args)]
pub(crate) struct DecisionArgs {
    /// Number of the comparison (`list --comparisons`) or of the repair (`list`)
    #[arg(value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) number: u64,
    /// Source of the view
    #[arg(long, value_parser = values::source_parser(), default_value = "plays")]
    pub(crate) source: Source,
    /// Reason, for the audit log
    #[arg(long, value_name = "TEXT", default_value = "")]
    pub(crate) reason: String,
    #[command(flatten)]
    pub(crate) actor: ActorArgs,
}

/// A comparison, and the repair of its differences.
#[derive(Debug, Args)]
pub(crate) struct CompareArgs {
    /// View whose values are compared, such as plays_owner_day_track
    #[arg(long, value_name = "VIEW", required_unless_present = "scheduled")]
    pub(crate) view: Option<String>,
    /// Source of the expected values: `archive` (a recount of all events); a file (.csv, .jsonl, .parquet) with columns of
    /// the view and `expected`; a URL (https://…) that returns the same as CSV, JSON lines or JSON; `canonical` (the entity
    /// store: boards, and counts with --query)
    #[arg(long, value_name = "SOURCE", required_unless_present = "scheduled")]
    pub(crate) expected: Option<String>,
    /// With `--expected canonical`, for counts: query of the entity store that returns columns of the view and `expected`
    #[arg(long, value_name = "SQL")]
    pub(crate) query: Option<String>,
    /// Maps a column of the expected values to a column of the view, such as customer=owner_id; repeatable
    #[arg(long = "rename", value_name = "COLUMN=FIELD")]
    pub(crate) rename: Vec<String>,
    /// With a URL: file with the bearer token
    #[arg(long, value_name = "FILE")]
    pub(crate) bearer_file: Option<String>,
    /// With a URL: environment variable with the bearer token
    #[arg(long, value_name = "NAME", conflicts_with = "bearer_file")]
    pub(crate) bearer_env: Option<String>,
    /// Run the scheduled reconciliations (`reconciliation` in the settings) that are due, or the one with this name
    #[arg(
        long,
        value_name = "NAME",
        num_args = 0..=1,
        default_missing_value = "",
        conflicts_with_all = ["view", "expected", "query", "rename", "bearer_file", "bearer_env", "keys", "from", "to", "sample", "tolerance", "whole", "apply", "set", "reason"]
    )]
    pub(crate) scheduled: Option<String>,
    /// Only keys with one of these values in a column, such as owner_id=1,2; an empty value matches a missing one;
    /// repeatable for several columns
    #[arg(long = "keys", value_name = "COLUMN=VALUE,…")]
    pub(crate) keys: Vec<String>,
    /// Only buckets that begin at this time or later: RFC 3339, or a date in UTC
    #[arg(long, value_name = "TIME", value_parser = values::parse_instant)]
    pub(crate) from: Option<i64>,
    /// Only buckets that begin before this time
    #[arg(long, value_name = "TIME", value_parser = values::parse_instant)]
    pub(crate) to: Option<i64>,
    /// Only this fraction of the keys, such as 0.01; every run selects the same keys
    #[arg(long, value_name = "F")]
    pub(crate) sample: Option<f64>,
    /// Tolerated difference from the values of a file: a count, or a percentage such as 0.5%; repeatable for both
    #[arg(long, value_name = "N|N%")]
    pub(crate) tolerance: Vec<String>,
    /// The file is complete: a key that it does not contain is expected to be 0
    #[arg(long)]
    pub(crate) whole: bool,
    /// Number of differences to show, largest first
    #[arg(long, value_name = "N", default_value_t = 50, value_parser = clap::value_parser!(u32).range(0..=100_000))]
    pub(crate) limit: u32,
    /// Repair differences: rows and live state from the events, or by corrections from a file
    #[arg(long)]
    pub(crate) apply: bool,
    /// With --apply: repair only if the differences sum up to at most N
    #[arg(long, value_name = "N", requires = "apply")]
    pub(crate) apply_max: Option<u64>,
    /// With --apply: value for a field of the corrections that neither view nor file contains, such as track_id=7
    #[arg(long = "set", value_name = "FIELD=VALUE", requires = "apply")]
    pub(crate) set: Vec<String>,
    /// Reason, for the audit log
    #[arg(long, value_name = "TEXT", default_value = "")]
    pub(crate) reason: String,
    #[command(flatten)]
    pub(crate) actor: ActorArgs,
}
