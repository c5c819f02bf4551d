//! The binary `backstitch`.
//!
//! It builds stores and layers from the command line and the settings ([`installation`]), runs
//! commands, and prints their results ([`output`]). All computation is in the crates of the layers.

mod args;
#[cfg(feature = "scale")]
mod ballista;
mod clock;
mod commands;
mod engine;
mod executors;
mod failure;
mod generate;
mod ingest;
mod installation;
mod monitoring;
mod output;
mod progress;
mod random;
mod reconciling;
mod roles;
mod settings;
mod shutdown;
mod telemetry;
#[cfg(feature = "otel")]
mod traces;

use std::process::ExitCode;

use clap::FromArgMatches;
use rustix::fs::Mode;
use tokio_util::sync::CancellationToken;

use args::{Cli, Command};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    let arguments = std::env::args_os();
    if arguments.len() == 1 {
        return failure::exit_code(output::write_stdout(args::render_overview().as_bytes()));
    }
    let matches = args::build_command().try_get_matches_from(arguments);
    let cli = match matches.and_then(|matches| Cli::from_arg_matches(&matches)) {
        Ok(cli) => cli,
        Err(error) if !error.use_stderr() => {
            return failure::exit_code(output::check_stdout_write(error.print()));
        }
        Err(error) => {
            return failure::exit_code(Err(failure::usage_error(args::format_usage_error(&error))));
        }
    };
    failure::exit_code(run(cli))
}

/// Makes new files and folders private to the user, including those of libraries. Output files of
/// commands keep the caller's modes.
fn keep_files_private(command: &Command) {
    if !matches!(command, Command::Generate(_) | Command::Man { .. }) {
        let _previous = rustix::process::umask(Mode::RWXG | Mode::RWXO);
    }
}

/// Runs the command until it ends, or until the second signal.
fn run(cli: Cli) -> anyhow::Result<()> {
    keep_files_private(&cli.command);
    let context = commands::Context::new(&cli)?;
    // Each client is an open file, and the default limit of shells is low. If it cannot be raised,
    // the connection limits apply.
    let _limit = rlimit::increase_nofile_limit(u64::MAX);
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()?;
    let outcome = runtime.block_on(async {
        let stop = CancellationToken::new();
        let signals = shutdown::Signals::listen()?;
        let command = Box::pin(commands::run(cli.command, &context, stop.clone()));
        tokio::select! {
            outcome = command => outcome,
            () = signals.watch(stop) => Err(anyhow::anyhow!(
                "stopped at once by a second signal; the next start completes the interrupted work"
            )),
        }
    });
    // A thread that waits for standard input can only be left behind.
    runtime.shutdown_background();
    outcome
}
