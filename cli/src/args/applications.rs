//! The commands of `applications`.

use clap::{ArgGroup, Args, Subcommand, ValueEnum};
use jiff::civil::Date;
use stores::listing::Sort;

use super::values::date;

/// The largest capacity: a number that every JSON reader holds exactly.
const CAPACITY_MAX: i64 = 9_007_199_254_740_991;

fn capacity() -> clap::builder::RangedI64ValueParser {
    clap::value_parser!(i64).range(0..=CAPACITY_MAX)
}

fn part(text: &str) -> Result<f64, String> {
    let part = text.parse::<f64>().ok();
    part.filter(|part| part.is_finite() && *part >= 0.0)
        .ok_or_else(|| "it is not a part of the capacity such as 0.8".to_owned())
}

/// The commands of `applications`.
#[derive(Debug, Subcommand)]
pub(crate) enum ApplicationsCommand {
    /// Show applications, those that use most of their capacity first
    List {
        /// What they are put in order by; of numbers the largest come first
        #[arg(long, value_enum, value_name = "WHAT", default_value_t = SortBy::Usage)]
        sort: SortBy,
        /// Only those of whose capacity at least this part is in use, such as 0.8
        #[arg(long, value_name = "PART", value_parser = part, allow_negative_numbers = true)]
        usage_from: Option<f64>,
        /// How many to show
        #[arg(long, value_name = "N", default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..=100_000))]
        limit: u32,
        /// Only those whose id is this, or in whose name or owner it is found, whatever the case
        #[arg(long, value_name = "TEXT")]
        search: Option<String>,
        /// Only those of this owner
        #[arg(long, value_name = "OWNER")]
        owner: Option<String>,
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
    #[command(group(ArgGroup::new("change").args(["capacity", "enforce"]).required(true).multiple(true)))]
    Set {
        /// The application
        #[arg(allow_negative_numbers = true)]
        id: i64,
        /// How many athletes may be connected at once; those that are stay
        #[arg(long, value_name = "N", value_parser = capacity(), allow_negative_numbers = true)]
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
        #[arg(long, value_name = "N", value_parser = capacity(), allow_negative_numbers = true)]
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
        #[arg(long, value_name = "N", value_parser = capacity(), allow_negative_numbers = true)]
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

/// What applications are put in order by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum SortBy {
    /// Their ids.
    Id,
    /// Their names, whatever the case.
    Name,
    /// Connected athletes.
    Connected,
    /// Connected athletes by capacity.
    Usage,
}

impl From<SortBy> for Sort {
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
    /// No more are let in than the capacity says.
    On,
    /// Everybody is let in.
    Off,
}
