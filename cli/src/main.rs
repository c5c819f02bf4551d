//! The binary `backstitch`: it parses, wires and drains.
//!
//! Everything that computes is in the layers' crates. Here the command line and the settings become
//! stores and layers ([`installation`]), commands run them, and results are printed ([`output`]).

mod args;
mod clock;
mod commands;
mod draws;
mod engine;
#[cfg(feature = "scale")]
mod executors;
mod failure;
mod generate;
mod ingest;
mod installation;
mod monitoring;
mod output;
mod progress;
mod reconciling;
mod roles;
mod settings;
mod shutdown;
mod telemetry;
#[cfg(feature = "otel")]
mod traces;

use std::process::ExitCode;

use clap::Parser;
use rustix::fs::Mode;
use tokio_util::sync::CancellationToken;

use args::{Cli, Command};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) if !error.use_stderr() => {
            return failure::exit_code(output::closed(error.print()));
        }
        Err(error) => return failure::exit_code(Err(failure::usage(args::complaint(&error)))),
    };
    failure::exit_code(run(cli))
}

/// Makes files and folders of this process readable by its own user alone, whatever makes them: stores, their libraries or
/// SQLite. Files that a command makes for its caller have the caller's modes.
fn keep_files_private(command: &Command) {
    if !matches!(command, Command::Generate(_) | Command::Man { .. }) {
        let _former = rustix::process::umask(Mode::RWXG | Mode::RWXO);
    }
}

/// Runs the command until it is done, or until the second signal to end.
fn run(cli: Cli) -> anyhow::Result<()> {
    keep_files_private(&cli.command);
    let context = commands::Context::of(&cli)?;
    // Each client is an open file, and shells permit few of them for programs of long ago. Where no more are
    // permitted, the limits of connections hold.
    let _raised = rlimit::increase_nofile_limit(u64::MAX);
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
                "ended at once by a second signal; what was under way is made good at the next start"
            )),
        }
    });
    // A thread that waits for standard input can't be ended otherwise.
    runtime.shutdown_background();
    outcome
}
