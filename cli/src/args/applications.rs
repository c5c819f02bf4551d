//! The commands of `applications`.

use clap::{Args, Subcommand, ValueEnum};
use jiff::civil::Date;

use super::values::date;

/// The largest capacity: a number that every JSON reader holds exactly.
const CAPACITY_MAX: i64 = 9_007_199_254_740_991;

fn capacity() -> clap::builder::RangedI64ValueParser {
    clap::value_parser!(i64).range(0..=CAPACITY_MAX)
}

/// The commands of `applications`.
#[derive(Debug, Subcommand)]
pub(crate) enum ApplicationsCommand {
    /// Show applications, those that use most of their capacity first
    List {
        /// How many to show
        #[arg(long, value_name = "N", default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..=100_000))]
        limit: u32,
        /// Only those in whose name or owner this is found, whatever the case
        #[arg(long, value_name = "TEXT")]
        search: Option<String>,
    },
    /// Show one application, what it asks for and what was changed
    Show {
        /// The application
        #[arg(allow_negative_numbers = true)]
        id: i64,
    },
    /// Show how many athletes were connected, day by day (UTC), as batch runs found it
    History {
        /// The application
        #[arg(allow_negative_numbers = true)]
        id: i64,
        /// The first day; 90 days before the end if left out
        #[arg(long, value_name = "DATE", value_parser = date)]
        from: Option<Date>,
        /// The day after the last one; tomorrow if left out
        #[arg(long, value_name = "DATE", value_parser = date)]
        to: Option<Date>,
    },
    /// Set how many athletes may connect, and whether that is enforced
    Set {
        /// The application
        #[arg(allow_negative_numbers = true)]
        id: i64,
        /// How many athletes may be connected at once; those that are stay
        #[arg(long, value_name = "N", value_parser = capacity(), required_unless_present = "enforce")]
        capacity: Option<i64>,
        /// Whether no more are let in than that
        #[arg(long, value_name = "SWITCH")]
        enforce: Option<Switch>,
        /// Why, for the record
        #[arg(long, value_name = "TEXT")]
        reason: Option<String>,
        #[command(flatten)]
        by: By,
    },
    /// Ask for a higher capacity
    Ask {
        /// The application
        #[arg(allow_negative_numbers = true)]
        id: i64,
        /// How many athletes it would like to connect at once
        #[arg(long, value_name = "N", value_parser = capacity())]
        capacity: i64,
        /// Why
        #[arg(long, value_name = "TEXT")]
        reason: Option<String>,
        #[command(flatten)]
        by: By,
    },
    /// Show who asks for a higher capacity
    Requests {
        /// Those that are decided too
        #[arg(long)]
        all: bool,
        /// How many to show
        #[arg(long, value_name = "N", default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..=100_000))]
        limit: u32,
    },
    /// Grant a request
    Grant {
        /// The request
        request: i64,
        /// Another capacity than was asked for
        #[arg(long, value_name = "N", value_parser = capacity())]
        capacity: Option<i64>,
        /// For who asked
        #[arg(long, value_name = "TEXT")]
        answer: Option<String>,
        #[command(flatten)]
        by: By,
    },
    /// Refuse a request
    Refuse {
        /// The request
        request: i64,
        /// For who asked
        #[arg(long, value_name = "TEXT")]
        answer: Option<String>,
        #[command(flatten)]
        by: By,
    },
}

/// Who does something.
#[derive(Debug, Args)]
pub(crate) struct By {
    /// Who does it, for the record
    #[arg(
        long,
        value_name = "NAME",
        env = "USER",
        hide_env_values = true,
        default_value = "cli"
    )]
    pub(crate) by: String,
}

/// On or off.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Switch {
    /// No more are let in than the capacity says.
    On,
    /// Everybody is let in.
    Off,
}
