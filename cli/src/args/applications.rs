//! The commands of `applications`.

use clap::{ArgGroup, Args, Subcommand, ValueEnum};
use jiff::civil::Date;
use stores::listing::ApplicationSort;

use super::values::parse_date;

/// Maximum capacity: the largest integer that every JSON reader represents exactly.
const CAPACITY_MAX: i64 = 9_007_199_254_740_991;

fn capacity_parser() -> clap::builder::RangedI64ValueParser {
    clap::value_parser!(i64).range(0..=CAPACITY_MAX)
}

/// Parses a usage: connected athletes by capacity.
fn parse_usage(text: &str) -> Result<f64, String> {
    let usage = text.parse::<f64>().ok();
    usage
        .filter(|usage| usage.is_finite() && *usage >= 0.0)
        .ok_or_else(|| "expected a fraction of the capacity, such as 0.8".to_owned())
}

/// The commands of `applications`.
#[derive(Debug, Subcommand)]
pub(crate) enum ApplicationsCommand {
    /// List applications, highest usage of capacity first
    List {
        /// Sort key; numbers sort in descending order
        #[arg(long, value_enum, value_name = "KEY", default_value_t = SortBy::Usage)]
        sort: SortBy,
        /// Only applications that use at least this fraction of their capacity, such as 0.8
        #[arg(long, value_name = "F", value_parser = parse_usage, allow_negative_numbers = true)]
        usage_from: Option<f64>,
        /// Number of applications
        #[arg(long, value_name = "N", default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..=100_000))]
        limit: u32,
        /// Only applications with this id, or whose name or owner contains the text; ignores case
        #[arg(long, value_name = "TEXT")]
        search: Option<String>,
        /// Only applications of this owner
        #[arg(long, value_name = "OWNER")]
        owner: Option<String>,
    },
    /// Show one application, its pending request and its changes
    Show {
        /// Application id
        #[arg(allow_negative_numbers = true)]
        id: i64,
    },
    /// Show connected athletes by UTC day, as batch runs counted them
    History {
        /// Application id
        #[arg(allow_negative_numbers = true)]
        id: i64,
        /// First day [default: 90 days before the end]
        #[arg(long, value_name = "DATE", value_parser = parse_date)]
        from: Option<Date>,
        /// Day after the last one [default: tomorrow]
        #[arg(long, value_name = "DATE", value_parser = parse_date)]
        to: Option<Date>,
    },
    /// Set the capacity of an application, and turn its enforcement on or off
    #[command(group(ArgGroup::new("change").args(["capacity", "enforce"]).required(true).multiple(true)))]
    Set {
        /// Application id
        #[arg(allow_negative_numbers = true)]
        id: i64,
        /// Maximum of connected athletes; existing connections stay
        #[arg(long, value_name = "N", value_parser = capacity_parser(), allow_negative_numbers = true)]
        capacity: Option<i64>,
        /// Reject connections beyond the capacity
        #[arg(long, value_name = "SWITCH")]
        enforce: Option<Switch>,
        /// Reason, for the audit log
        #[arg(long, value_name = "TEXT")]
        reason: Option<String>,
        #[command(flatten)]
        actor: ActorArgs,
    },
    /// Request a higher capacity
    Ask {
        /// Application id
        #[arg(allow_negative_numbers = true)]
        id: i64,
        /// Requested capacity
        #[arg(long, value_name = "N", value_parser = capacity_parser(), allow_negative_numbers = true)]
        capacity: i64,
        /// Reason
        #[arg(long, value_name = "TEXT")]
        reason: Option<String>,
        #[command(flatten)]
        actor: ActorArgs,
    },
    /// List requests for a higher capacity
    Requests {
        /// Include decided requests
        #[arg(long)]
        all: bool,
        /// Number of requests
        #[arg(long, value_name = "N", default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..=100_000))]
        limit: u32,
    },
    /// Grant a request
    Grant {
        /// Request id
        request: i64,
        /// Granted capacity [default: the requested one]
        #[arg(long, value_name = "N", value_parser = capacity_parser(), allow_negative_numbers = true)]
        capacity: Option<i64>,
        /// Answer to the requester
        #[arg(long, value_name = "TEXT")]
        answer: Option<String>,
        #[command(flatten)]
        actor: ActorArgs,
    },
    /// Refuse a request
    Refuse {
        /// Request id
        request: i64,
        /// Answer to the requester
        #[arg(long, value_name = "TEXT")]
        answer: Option<String>,
        #[command(flatten)]
        actor: ActorArgs,
    },
}

/// The person who acts.
#[derive(Debug, Args)]
pub(crate) struct ActorArgs {
    /// Person who acts, for the audit log
    #[arg(
        long,
        value_name = "NAME",
        env = "USER",
        hide_env_values = true,
        default_value = "cli"
    )]
    pub(crate) by: String,
}

/// Sort key of applications.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum SortBy {
    /// Id
    Id,
    /// Name, ignoring case
    Name,
    /// Connected athletes
    Connected,
    /// Connected athletes as a fraction of the capacity
    Usage,
}

impl From<SortBy> for ApplicationSort {
    fn from(sort: SortBy) -> Self {
        match sort {
            SortBy::Id => Self::Id,
            SortBy::Name => Self::Name,
            SortBy::Connected => Self::Connected,
            SortBy::Usage => Self::Usage,
        }
    }
}

/// On or off.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Switch {
    /// Reject connections beyond the capacity
    On,
    /// Accept every connection
    Off,
}
