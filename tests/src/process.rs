//! The binary as processes on a data folder. Processes are ended by their own ids.

use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use tempfile::NamedTempFile;

use crate::http::Client;

/// Returns the path of the binary that was built with this test.
///
/// # Panics
/// If it does not exist.
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
        "{} is missing: run ./test, or `cargo test --workspace`",
        binary.display()
    );
    binary
}

/// The configuration file in a data folder; commands use it if it exists.
pub const CONFIG: &str = "servers.toml";

/// Maximum wait for an expected output.
const OUTPUT_WAIT: Duration = Duration::from_secs(120);

/// Builds a command of the binary on a data folder.
#[must_use]
pub fn command(data: &Path, args: &[&str]) -> Command {
    command_with(data, CONFIG, args)
}

/// Builds a command of the binary on a data folder, with one of the configurations there.
#[must_use]
pub fn command_with(data: &Path, config: &str, args: &[&str]) -> Command {
    let mut command = Command::new(binary());
    command.arg("--data-dir").arg(data).args(args);
    let config = data.join(config);
    if config.exists() {
        command.arg("--config").arg(config);
    }
    command.env_remove("RUST_LOG");
    command
}

/// Runs a command to its end.
///
/// # Panics
/// If it cannot be started.
#[must_use]
pub fn run(data: &Path, args: &[&str]) -> Output {
    command(data, args)
        .stdin(Stdio::null())
        .output()
        .expect("starting the binary")
}

/// Runs a command that must succeed; returns its standard output.
///
/// # Panics
/// If it fails.
pub fn run_ok(data: &Path, args: &[&str]) -> String {
    check_success(&mut command(data, args), args)
}

/// Runs a command with these arguments that must succeed; returns its standard output.
pub(crate) fn check_success(command: &mut Command, args: &[&str]) -> String {
    let output = command.stdin(Stdio::null()).output();
    let output = output.expect("starting the binary");
    let err = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{args:?}: {} {err}", output.status);
    String::from_utf8(output.stdout).expect("UTF-8")
}

/// Runs a command with bytes on its standard input.
///
/// # Panics
/// If it cannot be started or does not read them.
#[must_use]
pub fn run_with_input(data: &Path, args: &[&str], input: &[u8]) -> Output {
    let mut child = command(data, args)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("starting the binary");
    let mut stdin = child.stdin.take().expect("standard input");
    // The exit status decides about a command that ends before it has read everything.
    drop(stdin.write_all(input));
    drop(stdin);
    child.wait_with_output().expect("waiting")
}

/// Resource usage of a process.
#[derive(Debug, Default, Clone, Copy)]
pub struct ResourceUsage {
    /// Peak resident memory in bytes.
    pub memory_bytes: u64,
    /// CPU time in seconds.
    pub cpu_s: f64,
}

/// Parses the CPU time from Linux's `stat` of a process: user and system time in hundredths of a
/// second.
fn cpu_s(stat: &str) -> Option<f64> {
    let (_, after_name) = stat.rsplit_once(')')?;
    let mut fields = after_name.split_whitespace().skip(11);
    let mut next = || fields.next()?.parse::<f64>().ok();
    Some((next()? + next()?) / 100.0)
}

/// A process that is killed on drop.
#[derive(Debug)]
pub struct Process {
    child: Child,
    /// Standard output and standard error.
    outputs: [NamedTempFile; 2],
    /// Resource usage at the last measurement.
    usage: ResourceUsage,
}

impl Process {
    /// Starts a command in the background.
    ///
    /// # Panics
    /// If it cannot be started.
    #[must_use]
    pub fn start(data: &Path, args: &[&str]) -> Self {
        Self::start_with(data, CONFIG, args)
    }

    /// Starts a command in the background, with one of the configurations in the data folder.
    ///
    /// # Panics
    /// If it cannot be started.
    #[must_use]
    pub fn start_with(data: &Path, config: &str, args: &[&str]) -> Self {
        Self::spawn(command_with(data, config, args))
    }

    /// Starts this command in the background.
    ///
    /// # Panics
    /// If it cannot be started.
    #[must_use]
    pub fn spawn(mut command: Command) -> Self {
        let outputs = [(); 2].map(|()| NamedTempFile::new().expect("a file"));
        let into = |file: &NamedTempFile| file.reopen().expect("a file");
        let child = command
            .stdin(Stdio::null())
            .stdout(into(&outputs[0]))
            .stderr(into(&outputs[1]))
            .spawn()
            .expect("starting the binary");
        Self {
            child,
            outputs,
            usage: ResourceUsage::default(),
        }
    }

    /// Returns the standard output and standard error so far.
    #[must_use]
    pub fn outputs(&self) -> [String; 2] {
        let read = |file: &NamedTempFile| std::fs::read(file.path()).unwrap_or_default();
        [0, 1].map(|index| String::from_utf8_lossy(&read(&self.outputs[index])).into_owned())
    }

    /// Waits until its standard output or log contains this text; returns both outputs.
    ///
    /// # Panics
    /// If the text does not appear in time.
    pub async fn wait_for_output(&self, expected: &str) -> String {
        let begun = Instant::now();
        loop {
            let text = self.outputs().concat();
            if text.contains(expected) {
                return text;
            }
            assert!(begun.elapsed() < OUTPUT_WAIT, "{expected}: {text}");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    /// Returns whether it is still running.
    ///
    /// # Panics
    /// If its state cannot be read.
    pub fn is_running(&mut self) -> bool {
        self.child.try_wait().expect("its state").is_none()
    }

    /// Sends it a signal, such as `-STOP`.
    ///
    /// # Panics
    /// If it is not running.
    pub fn signal(&self, name: &str) {
        let id = self.child.id().to_string();
        let sent = Command::new("kill").args([name, &id]).status();
        assert!(sent.expect("kill").success(), "{name}");
    }

    /// Returns its current and peak resident memory in bytes.
    ///
    /// # Panics
    /// If it is not running.
    #[must_use]
    pub fn memory_bytes(&self) -> (u64, u64) {
        memory_bytes(&self.child)
    }

    /// Waits for its end; returns whether it succeeded, and its outputs.
    ///
    /// # Panics
    /// If waiting fails.
    #[must_use]
    pub fn finish(mut self) -> (bool, [String; 2]) {
        let status = self.child.wait().expect("its end");
        (status.success(), self.outputs())
    }

    /// Waits for its end and returns its resource usage too, as of the last call of
    /// [`Self::measure_usage`]; usage after that call is missing.
    ///
    /// # Panics
    /// If waiting fails.
    #[must_use]
    pub fn finish_measured(mut self) -> (bool, [String; 2], ResourceUsage) {
        while self.is_running() {
            self.measure_usage();
            #[expect(clippy::disallowed_methods, reason = "it is looked at now and then")]
            std::thread::sleep(Duration::from_millis(10));
        }
        let usage = self.usage;
        let (succeeded, outputs) = self.finish();
        (succeeded, outputs, usage)
    }

    /// Measures its resource usage so far, which is unavailable once it has ended.
    pub fn measure_usage(&mut self) {
        let read_proc =
            |name: &str| std::fs::read_to_string(format!("/proc/{}/{name}", self.child.id()));
        let status = read_proc("status").unwrap_or_default();
        let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
        let kib = peak.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok());
        let cpu_s = cpu_s(&read_proc("stat").unwrap_or_default());
        self.usage.memory_bytes = self.usage.memory_bytes.max(kib.unwrap_or(0) * 1_024);
        self.usage.cpu_s = cpu_s.unwrap_or(self.usage.cpu_s);
    }

    /// Asks it to end and waits; returns whether it succeeded, and its outputs.
    ///
    /// # Panics
    /// If it is not running.
    #[must_use]
    pub fn end(self) -> (bool, [String; 2]) {
        self.signal("-TERM");
        self.finish()
    }

    /// Kills it with SIGKILL and waits until it is gone; returns whether it was still running.
    ///
    /// # Panics
    /// If waiting fails.
    pub fn kill(mut self) -> bool {
        let was_running = self.child.try_wait().expect("its state").is_none();
        self.child.kill().ok();
        self.child.wait().expect("its end");
        was_running
    }

    /// Waits for its end; returns whether it succeeded.
    ///
    /// # Panics
    /// If waiting fails.
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

/// A server process with a client.
#[derive(Debug)]
pub struct Server {
    child: Child,
    /// The client.
    pub client: Client,
}

impl Server {
    /// Starts `serve` on a free port.
    ///
    /// # Panics
    /// If it does not print its address.
    #[must_use]
    pub fn start(data: &Path, extra: &[&str]) -> Self {
        Self::start_with(data, CONFIG, extra)
    }

    /// Starts `serve` on a free port, with one of the configurations in the data folder.
    ///
    /// # Panics
    /// If it does not print its address.
    #[must_use]
    pub fn start_with(data: &Path, config: &str, extra: &[&str]) -> Self {
        let mut args = vec!["serve", "--listen", "127.0.0.1:0"];
        args.extend(extra);
        let mut child = command_with(data, config, &args)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("starting the server");
        let mut lines = BufReader::new(child.stdout.take().expect("its output"));
        let mut text = String::new();
        let base = loop {
            let mut line = String::new();
            let read = lines.read_line(&mut line).expect("its output");
            assert!(read > 0, "the server ended; its output: {text}");
            if let Some(start) = line.find("http://") {
                let url = &line[start..];
                let end = url
                    .find(|c: char| c.is_whitespace() || c == '"')
                    .unwrap_or(url.len());
                break url[..end].trim_end_matches('/').to_owned();
            }
            text.push_str(&line);
        };
        // Drains its output, so that it never blocks on a full pipe.
        std::thread::spawn(move || lines.read_to_end(&mut Vec::new()));
        Self {
            child,
            client: Client::new(&base),
        }
    }

    /// Returns its current and peak resident memory in bytes.
    ///
    /// # Panics
    /// If it is not running.
    #[must_use]
    pub fn memory_bytes(&self) -> (u64, u64) {
        memory_bytes(&self.child)
    }
}

/// Reads the resident memory of a process and its peak from Linux.
fn memory_bytes(child: &Child) -> (u64, u64) {
    let status = std::fs::read_to_string(format!("/proc/{}/status", child.id()));
    let status = status.expect("its status");
    let parse_bytes = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name));
        let kib = line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok());
        kib.expect("a number") * 1_024
    };
    (parse_bytes("VmRSS:"), parse_bytes("VmHWM:"))
}

impl Drop for Server {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}
