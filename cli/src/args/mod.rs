//! The command line.

mod applications;
mod complaint;
mod dead_letters;
mod erase;
mod generate;
mod keys;
mod names;
mod restorate;
mod values;

use std::path::PathBuf;

use clap::{ArgAction, Args, Parser, Subcommand};
use schemas::source::Source;

pub(crate) use applications::{ApplicationsCommand, By, Switch};
pub(crate) use complaint::complaint;
pub(crate) use dead_letters::{DeadLettersCommand, ReplayArgs};
pub(crate) use erase::EraseArgs;
pub(crate) use generate::{Format, GenerateArgs, Shape};
pub(crate) use keys::KeysCommand;
pub(crate) use names::NamesCommand;
pub(crate) use restorate::{CompareArgs, DecideArgs, RestorateArgs, RestorateCommand};

/// Exact, fast counts: a speed layer sews forward, a batch layer comes back and makes it firm.
#[derive(Debug, Parser)]
#[command(name = "backstitch", version, max_term_width = 100)]
pub(crate) struct Cli {
    #[command(flatten)]
    pub(crate) globals: Globals,
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// Flags that stand before or after the command.
#[derive(Debug, Args)]
#[command(next_help_heading = "Everywhere")]
pub(crate) struct Globals {
    /// The folder that holds everything [default: ./backstitch-data]
    #[arg(long, global = true, value_name = "DIR")]
    pub(crate) data_dir: Option<PathBuf>,
    /// A TOML file with settings (see `config schema`)
    #[arg(long, global = true, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// Print the result as one JSON document
    #[arg(long, global = true)]
    pub(crate) json: bool,
    /// What is logged: error, warn, info, debug, trace, or as in RUST_LOG
    #[arg(long, global = true, value_name = "LEVEL")]
    pub(crate) log_level: Option<String>,
    /// Log more: information, twice for details, three times for everything
    #[arg(short, long, global = true, action = ArgAction::Count)]
    pub(crate) verbose: u8,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Show everything in one process, with made-up live traffic
    Demo(DemoArgs),
    /// Run a whole small installation: speed, batch and serving in one process
    Up(UpArgs),
    /// Make up input, the same for the same seed
    Generate(GenerateArgs),
    /// Take files or standard input in: events into the log, rows into the canonical store
    Ingest(IngestArgs),
    /// Take events of the past straight into the archive, without the log: all of them, or none
    Backfill(IngestArgs),
    /// Run the speed layer
    Speed(FollowArgs),
    /// Copy the log to the archive of Parquet files
    Archive(FollowArgs),
    /// Copy canonical tables to Parquet files
    Snapshot(FollowArgs),
    /// Run the batch layer, or show its runs
    #[command(subcommand)]
    Batch(BatchCommand),
    /// Say why a total, a board or a place on it is what it is
    Explain(ExplainArgs),
    /// Show how long everything is kept, or let old things go
    #[command(subcommand)]
    Retention(RetentionCommand),
    /// Compare what is served with what is expected, key by key, and put right what differs
    Restorate(Box<RestorateArgs>),
    /// Serve the HTTP API
    Serve(ServeArgs),
    /// Give the tasks of batch runs on several machines to executors (Cargo feature `scale`)
    Scheduler(SchedulerArgs),
    /// Carry out tasks of batch runs, for a scheduler (Cargo feature `scale`)
    Executor(ExecutorArgs),
    /// Show and count what could not be taken, or try it again
    #[command(subcommand)]
    DeadLetters(DeadLettersCommand),
    /// Remove a person from every store, and say what was removed where
    Erase(EraseArgs),
    /// Look after applications: how many athletes may connect, and who asks for more
    #[command(subcommand)]
    Applications(ApplicationsCommand),
    /// Make, list and take back keys of the API
    #[command(subcommand)]
    Keys(KeysCommand),
    /// Say what owners, tracks and segments are called on pages
    #[command(subcommand)]
    Names(NamesCommand),
    /// Make on the servers what is missing: topics, keyspaces, schemas, buckets
    Migrate,
    /// Test every store and name what is wrong
    Check,
    /// Show or check the settings
    #[command(subcommand)]
    Config(ConfigCommand),
    /// Write manual pages, one for each command
    Man {
        /// The folder for them, which is made if it is not there
        #[arg(value_name = "FOLDER")]
        folder: PathBuf,
    },
    /// Print completions for a shell
    Completions {
        /// The shell
        shell: clap_complete::Shell,
    },
}

/// Arguments of `demo`.
#[derive(Debug, Args)]
pub(crate) struct DemoArgs {
    /// End after so many seconds of traffic and a comparison; exit 0 only if every served value equals an independent recount
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=86_400))]
    pub(crate) seconds: Option<u64>,
    /// Events and rows a second, less at night, up to twice as many in the evening: one in five is a row of efforts, athletes and so on, at most 100
    /// [default: 20, with --seconds 200]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=20_000))]
    pub(crate) rate: Option<u32>,
    /// Events of generated history (two months); one effort per eight events, at most 20,000
    #[arg(long, value_name = "N", default_value_t = 40_000, value_parser = clap::value_parser!(u32).range(0..=1_000_000))]
    pub(crate) history: u32,
    /// Where to listen; port 0 takes a free one [default: 127.0.0.1:8080, or a free port]
    #[arg(long, value_name = "ADDR")]
    pub(crate) listen: Option<String>,
    /// Seconds between batch runs [default: 60, with --seconds N a quarter of it]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=86_400))]
    pub(crate) batch_interval: Option<u64>,
    /// The seed of the made-up traffic
    #[arg(long, value_name = "S", default_value_t = 1)]
    pub(crate) seed: u64,
}

/// Arguments of `up`.
#[derive(Debug, Args)]
pub(crate) struct UpArgs {
    /// Where to listen; port 0 takes a free one
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:8080")]
    pub(crate) listen: String,
    /// Seconds between batch runs
    #[arg(long, value_name = "N", default_value_t = 60, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    pub(crate) batch_interval: u64,
}

/// Arguments of `ingest`.
#[derive(Debug, Args)]
pub(crate) struct IngestArgs {
    /// The source that the input is of
    #[arg(value_parser = values::source())]
    pub(crate) source: Source,
    /// Files to take, in their order; `-` is standard input
    #[arg(required = true, value_name = "FILE")]
    pub(crate) files: Vec<PathBuf>,
    /// The format, where the file's name does not tell
    #[arg(long, value_enum)]
    pub(crate) format: Option<Format>,
}

/// Arguments of what follows the log.
#[derive(Debug, Args)]
pub(crate) struct FollowArgs {
    /// A source to follow, more than once for several [default: all]
    #[arg(long = "source", value_name = "SOURCE", value_parser = values::source())]
    pub(crate) sources: Vec<Source>,
    /// End when the end of the log is reached
    #[arg(long)]
    pub(crate) until_caught_up: bool,
}

/// The commands of `batch`.
#[derive(Debug, Subcommand)]
pub(crate) enum BatchCommand {
    /// Run: roll, archive, compute, check, publish; exit 0 only when the run is published
    Run(BatchRunArgs),
    /// Run again and again until it is told to end, and after each run the reconciliations that are due
    Schedule(BatchScheduleArgs),
    /// Show the newest runs
    List {
        /// How many runs
        #[arg(long, value_name = "N", default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=1_000))]
        limit: u32,
        /// Only of this source
        #[arg(long, value_parser = values::source())]
        source: Option<Source>,
    },
    /// Show everything about one run
    Show {
        /// The run's epoch
        #[arg(value_name = "RUN")]
        run: u64,
        /// The source that the run is of
        #[arg(long, value_parser = values::source(), default_value = "plays")]
        source: Source,
    },
}

/// Arguments of `batch run`.
#[derive(Debug, Args)]
pub(crate) struct BatchRunArgs {
    /// Compute only this view anew at the newest cut, more than once for several
    #[arg(long = "job", value_name = "JOB")]
    pub(crate) jobs: Vec<String>,
    /// Compute every bucket anew, not only those that were touched
    #[arg(long)]
    pub(crate) full: bool,
    /// Publish a result that fails its check, too
    #[arg(long)]
    pub(crate) force: bool,
    #[command(flatten)]
    pub(crate) engine: EngineArgs,
}

/// Arguments of `batch schedule`.
#[derive(Debug, Args)]
pub(crate) struct BatchScheduleArgs {
    /// Seconds from the beginning of a run to that of the next one
    #[arg(long, value_name = "N", default_value_t = 3_600, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    pub(crate) every: u64,
    #[command(flatten)]
    pub(crate) engine: EngineArgs,
}

/// What computes batch runs.
#[derive(Debug, Args)]
pub(crate) struct EngineArgs {
    /// What computes: `local` is this process, `ballista://HOST:PORT` the executors of a scheduler (Cargo feature `scale`)
    #[arg(long, value_name = "ENGINE", default_value = "local")]
    pub(crate) engine: String,
}

/// Arguments of `serve`.
#[derive(Debug, Args)]
pub(crate) struct ServeArgs {
    /// Where to listen; port 0 takes a free one
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:8080")]
    pub(crate) listen: String,
}

/// Arguments of `scheduler`.
#[derive(Debug, Args)]
pub(crate) struct SchedulerArgs {
    /// Where to listen; port 0 takes a free one. Nobody is asked who they are there
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:50050")]
    pub(crate) listen: String,
    /// The host by which executors reach it [default: that of --listen]
    #[arg(long, value_name = "HOST")]
    pub(crate) advertise: Option<String>,
    /// An executor that has not been heard of for so many seconds is lost: others do what it was at
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = clap::value_parser!(u64).range(5..=3_600))]
    pub(crate) executor_timeout: u64,
}

/// Arguments of `executor`.
#[derive(Debug, Args)]
pub(crate) struct ExecutorArgs {
    /// The scheduler to work for
    #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:50050")]
    pub(crate) scheduler: String,
    /// Where to listen, on this port and the one after it; port 0 takes two free ones. Nobody is asked who they are there
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:0")]
    pub(crate) listen: String,
    /// Tasks that it carries out at once [default: query.threads]
    #[arg(long, value_name = "N", value_parser = threads)]
    pub(crate) threads: Option<usize>,
}

/// A number of threads.
fn threads(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(threads) if (1..=1024).contains(&threads) => Ok(threads),
        _ => Err("a number from 1 to 1024 is expected".to_owned()),
    }
}

/// Arguments of `explain`.
#[derive(Debug, Args)]
pub(crate) struct ExplainArgs {
    /// What is asked, as GET /explain takes it: owner_id=1 period=month date=2026-03-01, or segment_id=7 athlete_id=42
    #[arg(required = true, value_name = "NAME=VALUE")]
    pub(crate) parameters: Vec<String>,
}

/// The commands of `retention`.
#[derive(Debug, Clone, Copy, Subcommand)]
pub(crate) enum RetentionCommand {
    /// Show what there is of each kind, what would go, and what stays and why
    Show,
    /// Let go of what the settings under `retention` say
    Run {
        /// Delete nothing, only show what would go
        #[arg(long)]
        dry_run: bool,
    },
}

/// The commands of `config`.
#[derive(Debug, Clone, Copy, Subcommand)]
pub(crate) enum ConfigCommand {
    /// Print every setting, and where its value comes from
    Show,
    /// Say whether the settings can be used
    Check,
    /// Print the JSON Schema of the configuration file
    Schema,
}

#[cfg(test)]
mod documented_tests;
#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn global_flags_stand_before_or_after() {
        for line in [
            "backstitch --json --data-dir d batch list",
            "backstitch batch list --json --data-dir d",
            "backstitch batch --json list --data-dir d",
        ] {
            let cli = Cli::try_parse_from(line.split(' ')).unwrap();
            assert!(cli.globals.json, "{line}");
            assert_eq!(cli.globals.data_dir, Some(PathBuf::from("d")), "{line}");
        }
    }

    #[test]
    fn complaints_are_one_line() {
        for line in [
            "backstitch",
            "backstitch generate plays",
            "backstitch generate plays --rows x --seed 1 -o f",
            "backstitch ingest songs f",
            "backstitch nothing",
            "backstitch --nothing",
            "backstitch generate plays --rows 1 --seed 1 -o f --late 2",
            "backstitch dead-letters show plays/0@1",
            "backstitch dead-letters list --since yesterday",
            "backstitch dead-letters replay --source plays --id backstitch.plays.v1.dlq/0@1",
        ] {
            let error = Cli::try_parse_from(line.split(' ')).unwrap_err();
            let text = complaint(&error);
            assert!(!text.contains('\n') && text.contains("--help"), "{text}");
            assert!(!text.starts_with("error"), "{text}");
        }
    }
}
