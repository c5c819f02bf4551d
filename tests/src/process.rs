//! The binary as processes, on a data folder of their own; ended by their own ids.

use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use crate::http::Client;

/// The binary that was built together with this test.
///
/// # Panics
/// If it is not there.
#[must_use]
pub fn binary() -> PathBuf {
    let test = std::env::current_exe().expect("the test's own path");
    let folder = test
        .parent()
        .and_then(Path::parent)
        .expect("the target folder");
    let binary = folder.join("backstitch");
    assert!(
        binary.exists(),
        "{} is missing: run `cargo test` for the whole workspace",
        binary.display()
    );
    binary
}

/// The configuration in a data folder: where it is there, commands are told of it.
pub const CONFIG: &str = "servers.toml";

/// A command of the binary on a data folder.
#[must_use]
pub fn command(data: &Path, args: &[&str]) -> Command {
    let mut command = Command::new(binary());
    command.arg("--data-dir").arg(data).args(args);
    let config = data.join(CONFIG);
    if config.exists() {
        command.arg("--config").arg(config);
    }
    command.env_remove("RUST_LOG");
    command
}

/// Runs a command to its end.
///
/// # Panics
/// If it can't be started.
#[must_use]
pub fn run(data: &Path, args: &[&str]) -> Output {
    command(data, args)
        .stdin(Stdio::null())
        .output()
        .expect("starting the binary")
}

/// Runs a command that must succeed; its standard output.
///
/// # Panics
/// If it fails.
pub fn done(data: &Path, args: &[&str]) -> String {
    let output = run(data, args);
    let err = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{args:?}: {} {err}", output.status);
    String::from_utf8(output.stdout).expect("UTF-8")
}

/// Runs a command with bytes on its standard input.
///
/// # Panics
/// If it can't be started or does not take them.
#[must_use]
pub fn run_with_input(data: &Path, args: &[&str], input: &[u8]) -> Output {
    let mut child = command(data, args)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("starting the binary");
    let mut stdin = child.stdin.take().expect("standard input");
    // A command that ends before it has read everything is judged by its exit status.
    drop(stdin.write_all(input));
    drop(stdin);
    child.wait_with_output().expect("waiting")
}

/// A process that is killed when this is dropped.
#[derive(Debug)]
pub struct Process {
    child: Child,
}

impl Process {
    /// Starts a command in the background.
    ///
    /// # Panics
    /// If it can't be started.
    #[must_use]
    pub fn start(data: &Path, args: &[&str]) -> Self {
        let child = command(data, args)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("starting the binary");
        Self { child }
    }

    /// Kills it at once (SIGKILL), and waits until it is gone. Whether it was still running.
    ///
    /// # Panics
    /// If it can't be waited for.
    pub fn kill(mut self) -> bool {
        let running = self.child.try_wait().expect("its state").is_none();
        self.child.kill().ok();
        self.child.wait().expect("its end");
        running
    }

    /// Waits for its end; whether it succeeded.
    ///
    /// # Panics
    /// If it can't be waited for.
    #[must_use]
    pub fn wait(mut self) -> bool {
        self.child.wait().expect("its end").success()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

/// A server process with a client of it.
#[derive(Debug)]
pub struct Server {
    _process: Process,
    /// Asks it.
    pub client: Client,
}

impl Server {
    /// Starts `serve` on a free port.
    ///
    /// # Panics
    /// If it does not say where it listens.
    #[must_use]
    pub fn start(data: &Path, extra: &[&str]) -> Self {
        let mut args = vec!["serve", "--listen", "127.0.0.1:0"];
        args.extend(extra);
        let mut child = command(data, &args)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("starting the server");
        let mut lines = BufReader::new(child.stdout.take().expect("its output"));
        let mut said = String::new();
        let base = loop {
            let mut line = String::new();
            let read = lines.read_line(&mut line).expect("its output");
            assert!(read > 0, "the server ended and said: {said}");
            if let Some(at) = line.find("http://") {
                let rest = &line[at..];
                let end = rest
                    .find(|c: char| c.is_whitespace() || c == '"')
                    .unwrap_or(rest.len());
                break rest[..end].trim_end_matches('/').to_owned();
            }
            said.push_str(&line);
        };
        // Its output is read on, so that it never waits for someone to read it.
        std::thread::spawn(move || lines.read_to_end(&mut Vec::new()));
        Self {
            _process: Process { child },
            client: Client::new(&base),
        }
    }
}
