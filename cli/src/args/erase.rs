//! Arguments of `erase`.

use clap::{ArgGroup, Args};

/// Arguments of `erase`.
#[derive(Debug, Args)]
#[command(group = ArgGroup::new("who").required(true).args(["listeners", "athletes", "list"]))]
pub(crate) struct EraseArgs {
    /// A listener to erase, more than once for several, which one batch run does together
    #[arg(long = "listener", value_name = "ID", allow_negative_numbers = true)]
    pub(crate) listeners: Vec<i64>,
    /// An athlete to erase, more than once for several
    #[arg(long = "athlete", value_name = "ID", allow_negative_numbers = true)]
    pub(crate) athletes: Vec<i64>,
    /// Show the erasures that there were, newest first
    #[arg(long, conflicts_with_all = ["listeners", "athletes", "verify", "keep_log"])]
    pub(crate) list: bool,
    /// Erase nothing: search every store, and exit 3 if the person is found
    #[arg(long, conflicts_with = "keep_log")]
    pub(crate) verify: bool,
    /// Leave the records of the log until its own retention deletes them
    #[arg(long)]
    pub(crate) keep_log: bool,
    /// Who wants the erasure, for the receipt
    #[arg(long, value_name = "WHO", default_value = "")]
    pub(crate) by: String,
    /// Why, for the receipt; it must not name the person
    #[arg(long, value_name = "TEXT", default_value = "")]
    pub(crate) reason: String,
}
