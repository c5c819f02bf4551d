//! The command line.

mod applications;
mod dead_letters;
mod erase;
mod generate;
mod help;
mod keys;
mod names;
mod reconcile;
mod usage_error;
mod values;

use std::path::PathBuf;
use std::time::Duration;

use clap::{ArgAction, Args, Parser, Subcommand};
use schemas::source::Source;

pub(crate) use applications::{ActorArgs, ApplicationsCommand, Switch};
pub(crate) use dead_letters::{DeadLettersCommand, ReplayArgs};
pub(crate) use erase::{EraseArgs, EraseCommand, PeopleArgs};
pub(crate) use generate::{AuthorizationShape, FileFormat, GenerateArgs};
pub(crate) use help::{build_command, render_overview};
pub(crate) use keys::KeysCommand;
pub(crate) use names::NamesCommand;
pub(crate) use reconcile::{CompareArgs, DecisionArgs, ReconcileArgs, ReconcileCommand};
pub(crate) use usage_error::format_usage_error;
pub(crate) use values::Expiry;

const DAY: Duration = Duration::from_secs(24 * 60 * 60);
const SECOND: Duration = Duration::from_secs(1);

/// Exact counts and leaderboards: live within seconds, recomputed by batch runs
#[derive(Debug, Parser)]
#[command(name = "backstitch", version, max_term_width = 100, after_help = help::SETTINGS)]
pub(crate) struct Cli {
    #[command(flatten)]
    pub(crate) globals: Globals,
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// Flags that precede or follow the command.
#[derive(Debug, Args)]
#[command(next_help_heading = "Global options")]
pub(crate) struct Globals {
    /// Data folder of the embedded stores [default: ./backstitch-data]
    #[arg(long, global = true, value_name = "DIR")]
    pub(crate) data_dir: Option<PathBuf>,
    /// TOML file with settings (see `config schema`)
    #[arg(long, global = true, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// Print the result as one JSON document
    #[arg(long, global = true)]
    pub(crate) json: bool,
    /// Log level: error, warn, info, debug, trace, or a filter as in RUST_LOG
    #[arg(long, global = true, value_name = "LEVEL")]
    pub(crate) log_level: Option<String>,
    /// Log more: -v is info, -vv debug, -vvv trace
    #[arg(short, long, global = true, action = ArgAction::Count)]
    pub(crate) verbose: u8,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Run everything in one process with generated live traffic
    Demo(DemoArgs),
    /// Run a whole small installation in one process: speed, batch and serving
    Up(UpArgs),
    /// Generate input; the same seed gives the same bytes
    Generate(GenerateArgs),
    /// Ingest files or standard input: events into the log, rows into the entity store
    Ingest(IngestArgs),
    /// Add past events directly to the archive, without the log; all or none
    Backfill(IngestArgs),
    /// Run the speed layer
    Speed(FollowArgs),
    /// Copy the log to the archive of Parquet files
    Archive(FollowArgs),
    /// Copy entity tables to Parquet files
    Snapshot(FollowArgs),
    /// Run the batch layer, or show its runs
    #[command(subcommand)]
    Batch(BatchCommand),
    /// Explain how a total, a board or a rank is computed
    Explain(ExplainArgs),
    /// Show retention, or delete expired data
    #[command(subcommand)]
    Retention(RetentionCommand),
    /// Compare served values with expected values by key, and repair differences
    #[command(visible_alias = "restorate")]
    Reconcile(Box<ReconcileArgs>),
    /// Serve the HTTP API and the web pages
    Serve(ServeArgs),
    /// Distribute tasks of batch runs to executors (Cargo feature `scale`)
    Scheduler(SchedulerArgs),
    /// Run tasks of batch runs for a scheduler (Cargo feature `scale`)
    Executor(ExecutorArgs),
    /// List, count, show or replay rejected input
    #[command(subcommand)]
    DeadLetters(DeadLettersCommand),
    /// Remove a person from every store, and print a receipt
    Erase(EraseArgs),
    /// Manage API applications: capacities and requests for more
    #[command(subcommand)]
    Applications(ApplicationsCommand),
    /// Create, list, rotate and revoke API keys
    #[command(subcommand)]
    Keys(KeysCommand),
    /// Set display names of owners, tracks and segments
    #[command(subcommand)]
    Names(NamesCommand),
    /// Create missing topics, keyspaces, schemas and buckets on the servers
    Migrate,
    /// Test every configured store, and report faults
    Check,
    /// Show or check the settings
    #[command(subcommand, after_help = help::SETTINGS)]
    Config(ConfigCommand),
    /// Write manual pages, one for each command
    Man {
        /// Target folder; created if missing
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
    /// Stop after N seconds of traffic and compare; exit 0 only if every served value equals an independent recount
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=86_400))]
    pub(crate) seconds: Option<u64>,
    /// Events and rows per second, fewer at night, up to twice as many in the evening; one in five is a row, at most 100
    /// [default: 20, with --seconds 200]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=20_000))]
    pub(crate) rate: Option<u32>,
    /// Events of generated history (two months); one effort per eight events, at most 20,000
    #[arg(long, value_name = "N", default_value_t = 40_000, value_parser = clap::value_parser!(u32).range(0..=1_000_000))]
    pub(crate) history: u32,
    /// Address to listen on; port 0 picks a free one [default: 127.0.0.1:8080, or a free port]
    #[arg(long, value_name = "ADDR")]
    pub(crate) listen: Option<String>,
    /// Time between batch runs, such as 30s [default: 60s, with --seconds N a quarter of it]
    #[arg(long, value_name = "DURATION", value_parser = values::duration_parser(SECOND, SECOND..=DAY))]
    pub(crate) batch_interval: Option<Duration>,
    /// Seed of the generated traffic
    #[arg(long, value_name = "S", default_value_t = 1)]
    pub(crate) seed: u64,
}

/// Arguments of `up`.
#[derive(Debug, Args)]
pub(crate) struct UpArgs {
    /// Address to listen on; port 0 picks a free one
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:8080")]
    pub(crate) listen: String,
    /// Time between batch runs, such as 10m
    #[arg(long, value_name = "DURATION", default_value = "60s", value_parser = values::duration_parser(SECOND, SECOND..=DAY))]
    pub(crate) batch_interval: Duration,
}

/// Arguments of `ingest`.
#[derive(Debug, Args)]
pub(crate) struct IngestArgs {
    /// Source of the input
    #[arg(value_parser = values::source_parser())]
    pub(crate) source: Source,
    /// Files, read in this order; `-` is standard input
    #[arg(required = true, value_name = "FILE")]
    pub(crate) files: Vec<PathBuf>,
    /// Format, if the file name has no known extension
    #[arg(long, value_enum)]
    pub(crate) format: Option<FileFormat>,
}

/// Arguments of the commands that follow the log.
#[derive(Debug, Args)]
pub(crate) struct FollowArgs {
    /// Source to follow; repeatable [default: all]
    #[arg(long = "source", value_name = "SOURCE", value_parser = values::source_parser())]
    pub(crate) sources: Vec<Source>,
    /// Exit at the end of the log
    #[arg(long)]
    pub(crate) until_caught_up: bool,
}

/// The commands of `batch`.
#[derive(Debug, Subcommand)]
pub(crate) enum BatchCommand {
    /// Start a run: archive, compute, check, publish; exit 0 only when it is published
    Run(BatchRunArgs),
    /// Start runs at an interval, and after each run the reconciliations that are due
    Schedule(BatchScheduleArgs),
    /// List the newest runs
    List {
        /// Number of runs
        #[arg(long, value_name = "N", default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=1_000))]
        limit: u32,
        /// Only this source
        #[arg(long, value_parser = values::source_parser())]
        source: Option<Source>,
    },
    /// Show the details of one run
    Show {
        /// Epoch of the run
        #[arg(value_name = "RUN")]
        run: u64,
        /// Source of the run [default: the only source with runs]
        #[arg(long, value_parser = values::source_parser())]
        source: Option<Source>,
    },
}

/// Arguments of `batch run`.
#[derive(Debug, Args)]
pub(crate) struct BatchRunArgs {
    /// Recompute only this view at the newest cut; repeatable
    #[arg(long = "job", value_name = "JOB")]
    pub(crate) jobs: Vec<String>,
    /// Recompute every time bucket, not only changed ones
    #[arg(long)]
    pub(crate) full: bool,
    /// Publish also a result that fails its check
    #[arg(long)]
    pub(crate) force: bool,
    #[command(flatten)]
    pub(crate) engine: EngineArgs,
}

/// Arguments of `batch schedule`.
#[derive(Debug, Args)]
pub(crate) struct BatchScheduleArgs {
    /// Time from the start of a run to the start of the next one, such as 10m
    #[arg(long, value_name = "DURATION", default_value = "1h", value_parser = values::duration_parser(SECOND, SECOND..=DAY))]
    pub(crate) every: Duration,
    #[command(flatten)]
    pub(crate) engine: EngineArgs,
}

/// The engine that computes batch runs.
#[derive(Debug, Args)]
pub(crate) struct EngineArgs {
    /// `local` computes in this process, `ballista://HOST:PORT` on the executors of a scheduler (Cargo feature `scale`)
    #[arg(long, value_name = "ENGINE", default_value = "local")]
    pub(crate) engine: String,
}

/// Arguments of `serve`.
#[derive(Debug, Args)]
pub(crate) struct ServeArgs {
    /// Address to listen on; port 0 picks a free one
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:8080")]
    pub(crate) listen: String,
}

/// Arguments of `scheduler`.
#[derive(Debug, Args)]
pub(crate) struct SchedulerArgs {
    /// Address to listen on, without authentication; port 0 picks a free one
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:50050")]
    pub(crate) listen: String,
    /// Host name under which executors reach this scheduler [default: the host of --listen]
    #[arg(long, value_name = "HOST")]
    pub(crate) advertise: Option<String>,
    /// Time without a heartbeat after which an executor is lost and its tasks go to others
    #[arg(long, value_name = "DURATION", default_value = "20s", value_parser = values::duration_parser(SECOND, 5 * SECOND..=DAY / 24))]
    pub(crate) executor_timeout: Duration,
}

/// Arguments of `executor`.
#[derive(Debug, Args)]
pub(crate) struct ExecutorArgs {
    /// Scheduler to work for
    #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:50050")]
    pub(crate) scheduler: String,
    /// Address to listen on, with this port and the next one, without authentication; port 0 picks two free ones
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:0")]
    pub(crate) listen: String,
    /// Tasks that run at the same time [default: query.threads]
    #[arg(long, value_name = "N", value_parser = parse_threads)]
    pub(crate) threads: Option<usize>,
}

/// Parses a number of threads.
fn parse_threads(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(threads) if (1..=1024).contains(&threads) => Ok(threads),
        _ => Err("expected a number from 1 to 1024".to_owned()),
    }
}

/// Arguments of `explain`.
#[derive(Debug, Args)]
pub(crate) struct ExplainArgs {
    /// Parameters of GET /explain, such as owner_id=1 period=month date=2026-03-01, or segment_id=7 athlete_id=42
    #[arg(required = true, value_name = "NAME=VALUE")]
    pub(crate) parameters: Vec<String>,
}

/// The commands of `retention`.
#[derive(Debug, Clone, Copy, Subcommand)]
pub(crate) enum RetentionCommand {
    /// Show how much data of each kind exists, how much is expired, and what keeps expired data
    Show,
    /// Delete data that is expired by the settings under `retention`
    Run {
        /// Delete nothing; only show what would be deleted
        #[arg(long)]
        dry_run: bool,
    },
}

/// The commands of `config`.
#[derive(Debug, Clone, Copy, Subcommand)]
pub(crate) enum ConfigCommand {
    /// Print every setting and the origin of its value
    Show,
    /// Check the settings
    Check,
    /// Print the JSON Schema of the configuration file
    Schema,
}

#[cfg(test)]
mod documented_tests;
#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        build_command().debug_assert();
    }

    #[test]
    fn global_flags_precede_or_follow_the_command() {
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
    fn old_spellings_still_work() {
        for line in [
            "backstitch restorate list",
            "backstitch reconcile --view v --expected archive",
            "backstitch generate plays --rows 1 --seed 1 --until 2026-01-01 -o f",
            "backstitch generate plays",
            "backstitch dead-letters list --since 2026-03-06",
            "backstitch dead-letters list --from 2026-03-06",
            "backstitch up --batch-interval 60",
            "backstitch batch schedule --every 600",
            "backstitch batch schedule --every 10m",
            "backstitch scheduler --executor-timeout 5",
            "backstitch keys rotate k --overlap 24",
            "backstitch keys rotate k --overlap 2d",
            "backstitch erase --list",
            "backstitch erase list",
            "backstitch erase --listener 3 --verify",
            "backstitch erase verify --listener 3",
        ] {
            Cli::try_parse_from(line.split(' ')).unwrap_or_else(|error| panic!("{line}: {error}"));
        }
    }

    #[test]
    fn usage_errors_are_one_line() {
        for line in [
            "backstitch batch",
            "backstitch generate plays --rows x --seed 1 -o f",
            "backstitch ingest songs f",
            "backstitch nothing",
            "backstitch --nothing",
            "backstitch generate plays --rows 1 --seed 1 -o f --late 2",
            "backstitch up --batch-interval 2d",
            "backstitch up --batch-interval soon",
            "backstitch erase",
            "backstitch erase verify",
            "backstitch erase --list --listener 3",
            "backstitch dead-letters show plays/0@1",
            "backstitch dead-letters list --since yesterday",
            "backstitch dead-letters replay --source plays --id backstitch.plays.v1.dlq/0@1",
        ] {
            let error = Cli::try_parse_from(line.split(' ')).unwrap_err();
            let text = format_usage_error(&error);
            assert!(!text.contains('\n') && text.contains("--help"), "{text}");
            assert!(!text.starts_with("error"), "{text}");
        }
    }
}
