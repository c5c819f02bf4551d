//! The commands.

mod applications;
mod batch;
mod check;
mod config;
mod dead_letters;
mod demo;
mod erase;
#[cfg(feature = "scale")]
mod executors;
mod explain;
mod follow;
mod generate;
mod ingest;
mod keys;
mod migrate;
mod names;
mod reconcile;
mod retention;
mod serve;

use std::path::Path;

use anyhow::Context as _;
use schemas::source::Source;
use serde_json::{Value, json};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::args::{self, BatchCommand, Cli, Command, FollowArgs};
use crate::monitoring;
use crate::output::{self, Output};
use crate::settings::{self, Flags, Loaded, Settings};
use crate::telemetry::{self, Telemetry};

/// Settings, output format and telemetry of a command.
#[derive(Debug)]
pub(crate) struct Context {
    loaded: Loaded,
    output: Output,
    _telemetry: Telemetry,
}

impl Context {
    /// Reads the settings and starts logging.
    ///
    /// # Errors
    /// Invalid settings.
    pub(crate) fn new(cli: &Cli) -> anyhow::Result<Self> {
        let globals = &cli.globals;
        let mut flags = Flags::new();
        if let Some(folder) = &globals.data_dir {
            flags.insert("data_dir", Value::from(folder.to_string_lossy()));
        }
        let variables = std::env::vars_os().filter_map(|(name, value)| {
            Some((name.into_string().ok()?, value.into_string().ok()?))
        });
        let loaded = settings::load(globals.config.as_deref(), variables, &flags)?;
        let settings = &loaded.settings.telemetry;
        let requested = globals.log_level.as_deref().or(match globals.verbose {
            0 => None,
            1 => Some("info"),
            2 => Some("debug"),
            _ => Some("trace"),
        });
        let level = match (&settings.log_level, is_service(&cli.command)) {
            (Some(level), _) => level.as_str(),
            (None, true) => "info",
            (None, false) => "warn",
        };
        let telemetry = telemetry::start(requested, settings, level)?;
        for warning in &loaded.warnings {
            tracing::warn!("{warning}");
        }
        Ok(Self {
            loaded,
            output: Output::new(globals.json),
            _telemetry: telemetry,
        })
    }

    /// The settings.
    pub(crate) fn settings(&self) -> &Settings {
        &self.loaded.settings
    }

    /// The settings and their origins.
    pub(crate) fn loaded(&self) -> &Loaded {
        &self.loaded
    }

    /// Format of results.
    pub(crate) fn output(&self) -> Output {
        self.output
    }

    /// Prints the address that this process listens on, after the prefix `role`.
    fn announce(&self, role: &str, listening: String) -> anyhow::Result<()> {
        let text = format!("{role}listening on {listening}");
        self.output
            .print_result(&json!({ "listening": listening }), |_| text)
    }
}

/// True for commands that run until a signal.
fn is_service(command: &Command) -> bool {
    match command {
        Command::Up(_) | Command::Serve(_) | Command::Scheduler(_) | Command::Executor(_) => true,
        Command::Speed(args) | Command::Archive(args) => !args.until_caught_up,
        Command::Batch(BatchCommand::Schedule(_)) => true,
        _ => false,
    }
}

/// Runs a command.
///
/// # Errors
/// Those of the command; [`crate::failure::UsageError`] for invalid arguments.
pub(crate) async fn run(
    command: Command,
    context: &Context,
    stop: CancellationToken,
) -> anyhow::Result<()> {
    // Dropping the set at the end of the command stops the metrics server.
    let mut metrics = JoinSet::new();
    let address = context.settings().telemetry.metrics_listen.as_deref();
    if let Some(address) = address.filter(|_| is_service(&command)) {
        metrics.spawn(monitoring::serve_metrics(address, stop.child_token()).await?);
    }
    Box::pin(run_command(command, context, stop)).await
}

async fn run_command(
    command: Command,
    context: &Context,
    stop: CancellationToken,
) -> anyhow::Result<()> {
    match command {
        Command::Demo(args) => demo::run(&args, context, stop).await,
        Command::Up(args) => serve::up(&args, context, stop).await,
        Command::Generate(args) => generate::run(args, context, stop).await,
        Command::Ingest(args) => ingest::run(&args, context, stop).await,
        Command::Backfill(args) => ingest::run_backfill(&args, context, stop).await,
        Command::Speed(args) => follow::speed(&args, context, stop).await,
        Command::Archive(args) => follow::archive(&args, context, stop).await,
        Command::Snapshot(args) => follow::snapshot(&args, context, stop).await,
        Command::Batch(command) => batch::run(&command, context, stop).await,
        Command::Explain(args) => explain::run(&args, context).await,
        Command::Retention(command) => retention::run(command, context, stop).await,
        Command::Reconcile(args) => Box::pin(reconcile::run(&args, context, stop)).await,
        Command::Serve(args) => serve::serve(&args, context, stop).await,
        #[cfg(not(feature = "scale"))]
        Command::Scheduler(_) => Err(crate::engine::missing_scale_error("scheduler")),
        #[cfg(not(feature = "scale"))]
        Command::Executor(_) => Err(crate::engine::missing_scale_error("executor")),
        #[cfg(feature = "scale")]
        Command::Scheduler(args) => executors::run_scheduler(&args, context, stop).await,
        #[cfg(feature = "scale")]
        Command::Executor(args) => Box::pin(executors::run_executor(&args, context, stop)).await,
        Command::DeadLetters(command) => dead_letters::run(&command, context).await,
        Command::Erase(args) => erase::run(&args, context, stop).await,
        Command::Applications(command) => applications::run(command, context).await,
        Command::Keys(command) => keys::run(command, context).await,
        Command::Names(command) => names::run(command, context).await,
        Command::Migrate => migrate::run(context).await,
        Command::Check => check::run(context).await,
        Command::Config(command) => config::run(command, context),
        Command::Man { folder } => write_manual(&folder, context),
        Command::Completions { shell } => {
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut args::build_command(), "backstitch", &mut script);
            output::write_stdout(&script)
        }
    }
}

/// Writes manual pages.
fn write_manual(folder: &Path, context: &Context) -> anyhow::Result<()> {
    let written = std::fs::create_dir_all(folder)
        .and_then(|()| clap_mangen::generate_to(args::build_command(), folder));
    written.with_context(|| format!("writing manual pages to {}", folder.display()))?;
    let first_page = folder.join("backstitch.1");
    let result = json!({ "folder": folder, "first": first_page });
    context.output().print_result(&result, |_| {
        format!(
            "manual pages written; open the first one with: man -l {}\n",
            first_page.display()
        )
    })
}

impl FollowArgs {
    /// The named sources, or all.
    fn sources(&self) -> Vec<Source> {
        let mut sources = self.sources.clone();
        sources.sort_unstable();
        sources.dedup();
        if sources.is_empty() {
            Source::LOGGED.to_vec()
        } else {
            sources
        }
    }
}
