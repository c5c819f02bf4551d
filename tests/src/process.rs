//! The binary as processes, on a data folder of their own; ended by their own ids.

use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use tempfile::NamedTempFile;

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
        "{} is missing: run ./test, or `cargo test --workspace`",
        binary.display()
    );
    binary
}

/// The configuration in a data folder: where it is there, commands are told of it.
pub const CONFIG: &str = "servers.toml";

/// More than a process needs until it says what it is waited for.
const SAID_WAIT: Duration = Duration::from_secs(120);

/// A command of the binary on a data folder.
#[must_use]
pub fn command(data: &Path, args: &[&str]) -> Command {
    command_with(data, CONFIG, args)
}

/// A command of the binary on a data folder, with one of the configurations there.
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
    succeeded(&mut command(data, args), args)
}

/// Runs a command of these arguments that must succeed; its standard output.
pub(crate) fn succeeded(command: &mut Command, args: &[&str]) -> String {
    let output = command.stdin(Stdio::null()).output();
    let output = output.expect("starting the binary");
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

/// What a process took.
#[derive(Debug, Default, Clone, Copy)]
pub struct Measured {
    /// The most memory that it had, in bytes.
    pub memory_bytes: u64,
    /// The time of processors, in seconds.
    pub cpu_s: f64,
}

/// The time of processors in what Linux says of a process in `stat`: of user and system, in hundredths of seconds.
fn cpu_s(stat: &str) -> Option<f64> {
    let (_, after_name) = stat.rsplit_once(')')?;
    let mut fields = after_name.split_whitespace().skip(11);
    let mut next = || fields.next()?.parse::<f64>().ok();
    Some((next()? + next()?) / 100.0)
}

/// A process that is killed when this is dropped.
#[derive(Debug)]
pub struct Process {
    child: Child,
    /// Standard output and standard error.
    said: [NamedTempFile; 2],
    /// What it had taken when it was looked at last.
    taken: Measured,
}

impl Process {
    /// Starts a command in the background.
    ///
    /// # Panics
    /// If it can't be started.
    #[must_use]
    pub fn start(data: &Path, args: &[&str]) -> Self {
        Self::start_with(data, CONFIG, args)
    }

    /// Starts a command in the background, with one of the configurations in the data folder.
    ///
    /// # Panics
    /// If it can't be started.
    #[must_use]
    pub fn start_with(data: &Path, config: &str, args: &[&str]) -> Self {
        Self::of(command_with(data, config, args))
    }

    /// Starts this in the background.
    ///
    /// # Panics
    /// If it can't be started.
    #[must_use]
    pub fn of(mut command: Command) -> Self {
        let said = [(); 2].map(|()| NamedTempFile::new().expect("a file"));
        let into = |file: &NamedTempFile| file.reopen().expect("a file");
        let child = command
            .stdin(Stdio::null())
            .stdout(into(&said[0]))
            .stderr(into(&said[1]))
            .spawn()
            .expect("starting the binary");
        Self {
            child,
            said,
            taken: Measured::default(),
        }
    }

    /// What it has written to standard output and standard error so far.
    #[must_use]
    pub fn said(&self) -> [String; 2] {
        let read = |file: &NamedTempFile| std::fs::read(file.path()).unwrap_or_default();
        [0, 1].map(|of| String::from_utf8_lossy(&read(&self.said[of])).into_owned())
    }

    /// Waits until it has said this on standard output or in its log; all that it has said.
    ///
    /// # Panics
    /// If it does not say it for long.
    pub async fn until_said(&self, what: &str) -> String {
        let begun = Instant::now();
        loop {
            let said = self.said().concat();
            if said.contains(what) {
                return said;
            }
            assert!(begun.elapsed() < SAID_WAIT, "{what}: {said}");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    /// Whether it has not ended yet.
    ///
    /// # Panics
    /// If its state can't be seen.
    pub fn is_running(&mut self) -> bool {
        self.child.try_wait().expect("its state").is_none()
    }

    /// Sends it a signal, such as `-STOP`.
    ///
    /// # Panics
    /// If it is not there any more.
    pub fn signal(&self, name: &str) {
        let id = self.child.id().to_string();
        let sent = Command::new("kill").args([name, &id]).status();
        assert!(sent.expect("kill").success(), "{name}");
    }

    /// The memory that it has now, and the most that it had, in bytes.
    ///
    /// # Panics
    /// If it is not there any more.
    #[must_use]
    pub fn memory_bytes(&self) -> (u64, u64) {
        memory_bytes(&self.child)
    }

    /// Waits for its end; whether it succeeded, and what it had said.
    ///
    /// # Panics
    /// If it can't be waited for.
    #[must_use]
    pub fn finish(mut self) -> (bool, [String; 2]) {
        let ended = self.child.wait().expect("its end");
        (ended.success(), self.said())
    }

    /// The same, with what it took, as far as [`Self::take_stock`] was asked meanwhile; what it took within its last moments
    /// is missing.
    ///
    /// # Panics
    /// If it can't be waited for.
    #[must_use]
    pub fn finish_measured(mut self) -> (bool, [String; 2], Measured) {
        while self.is_running() {
            self.take_stock();
            #[expect(clippy::disallowed_methods, reason = "it is looked at now and then")]
            std::thread::sleep(Duration::from_millis(10));
        }
        let taken = self.taken;
        let (succeeded, said) = self.finish();
        (succeeded, said, taken)
    }

    /// Notes what it has taken so far: once it has ended, nobody knows.
    pub fn take_stock(&mut self) {
        let of = |name: &str| std::fs::read_to_string(format!("/proc/{}/{name}", self.child.id()));
        let status = of("status").unwrap_or_default();
        let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
        let kib = peak.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok());
        let cpu_s = cpu_s(&of("stat").unwrap_or_default());
        self.taken.memory_bytes = self.taken.memory_bytes.max(kib.unwrap_or(0) * 1_024);
        self.taken.cpu_s = cpu_s.unwrap_or(self.taken.cpu_s);
    }

    /// Asks it to end, and waits for that; whether it succeeded, and what it had said.
    ///
    /// # Panics
    /// If it is not there any more.
    #[must_use]
    pub fn end(self) -> (bool, [String; 2]) {
        self.signal("-TERM");
        self.finish()
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
    child: Child,
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
        Self::start_with(data, CONFIG, extra)
    }

    /// Starts `serve` on a free port, with one of the configurations in the data folder.
    ///
    /// # Panics
    /// If it does not say where it listens.
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
            child,
            client: Client::new(&base),
        }
    }

    /// The memory that it has now, and the most that it had, in bytes.
    ///
    /// # Panics
    /// If it is not there any more.
    #[must_use]
    pub fn memory_bytes(&self) -> (u64, u64) {
        memory_bytes(&self.child)
    }
}

/// What Linux says of the memory of a process: the resident part of it, and its peak.
fn memory_bytes(child: &Child) -> (u64, u64) {
    let status = std::fs::read_to_string(format!("/proc/{}/status", child.id()));
    let status = status.expect("its status");
    let of = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name));
        let kib = line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok());
        kib.expect("a number") * 1_024
    };
    (of("VmRSS:"), of("VmHWM:"))
}

impl Drop for Server {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}
