//! Arguments of `erase`.

use clap::{ArgGroup, Args, Subcommand};

/// Arguments of `erase`.
#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
#[command(group = ArgGroup::new("action").required(true).multiple(true).args(["listeners", "athletes", "list"]))]
pub(crate) struct EraseArgs {
    #[command(subcommand)]
    pub(crate) command: Option<EraseCommand>,
    #[command(flatten)]
    pub(crate) people: PeopleArgs,
    /// The older spelling of `erase list`
    #[arg(long, hide = true, conflicts_with_all = ["listeners", "athletes", "verify", "keep_log"])]
    pub(crate) list: bool,
    /// The older spelling of `erase verify`
    #[arg(long, hide = true, conflicts_with = "keep_log")]
    pub(crate) verify: bool,
    /// Keep the records in the log until the log's own retention deletes them
    #[arg(long)]
    pub(crate) keep_log: bool,
    /// Do not ask for confirmation on a terminal
    #[arg(long)]
    pub(crate) yes: bool,
    /// Person who requests the erasure, for the receipt
    #[arg(long, value_name = "NAME", default_value = "")]
    pub(crate) by: String,
    /// Reason, for the receipt; it must not name the erased person
    #[arg(long, value_name = "TEXT", default_value = "")]
    pub(crate) reason: String,
}

/// The commands of `erase`.
#[derive(Debug, Subcommand)]
pub(crate) enum EraseCommand {
    /// List receipts of erasures, newest first
    List,
    /// Search every store for a person, erase nothing, and exit 3 if the person is found
    #[command(group = ArgGroup::new("person").required(true).multiple(true).args(["listeners", "athletes"]))]
    Verify(PeopleArgs),
}

/// The people to erase or to search for.
#[derive(Debug, Args)]
pub(crate) struct PeopleArgs {
    /// Listener id; repeatable, one batch run handles all
    #[arg(long = "listener", value_name = "ID", allow_negative_numbers = true)]
    pub(crate) listeners: Vec<i64>,
    /// Athlete id; repeatable
    #[arg(long = "athlete", value_name = "ID", allow_negative_numbers = true)]
    pub(crate) athletes: Vec<i64>,
}
