//! Servers that belong to one test, which can kill, stop and restart them. They end with the test.

use std::net::TcpListener;
use std::ops::Range;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::{Duration, Instant};

use tempfile::TempDir;

/// Maximum startup time.
const START_MAX: Duration = Duration::from_secs(240);
/// Number of log lines in the message about a server that does not start.
const LOG_LINES: usize = 20;

/// A server started by `deploy/servers` with its own ports and folder.
#[derive(Debug)]
pub struct DedicatedServer {
    name: &'static str,
    folder: TempDir,
    port: u16,
    variables: Vec<(&'static str, String)>,
    child: Child,
}

impl DedicatedServer {
    /// Starts a Redis with its append-only file.
    #[must_use]
    pub fn redis() -> Self {
        Self::start("redis", "REDIS_PORT", Vec::new())
    }

    /// Starts a Cassandra of one node.
    #[must_use]
    pub fn cassandra() -> Self {
        Self::start("cassandra", "CASSANDRA_PORT", Vec::new())
    }

    /// Starts a Kafka of one broker. Clients of [`DedicatedServer::behind_proxy`] are directed to
    /// `proxy`, the port of a proxy in front of it.
    #[must_use]
    pub fn kafka(proxy: Option<u16>) -> Self {
        let proxy = proxy.map(|port| ("KAFKA_PROXY_PORT", port.to_string()));
        Self::start("kafka", "KAFKA_PORT", Vec::from_iter(proxy))
    }

    /// Starts a Kafka with TLS at [`DedicatedServer::secure`] for the user `backstitch` with the
    /// same password. `pem` is a file with its key and certificate.
    #[must_use]
    pub fn secure_kafka(pem: &str) -> Self {
        let pem = ("TLS_PEM", pem.to_owned());
        Self::start("kafka", "KAFKA_PORT", vec![pem])
    }

    /// Starts a Cassandra with TLS for the user `cassandra` with the same password. `pem` is a file
    /// with its key and certificate.
    #[must_use]
    pub fn secure_cassandra(pem: &str) -> Self {
        let pem = ("TLS_PEM", pem.to_owned());
        Self::start("cassandra", "CASSANDRA_PORT", vec![pem])
    }

    fn start(
        name: &'static str,
        port_variable: &'static str,
        mut variables: Vec<(&'static str, String)>,
    ) -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let port = free_ports(4);
        variables.push((port_variable, port.to_string()));
        let path = folder.path().to_string_lossy().into_owned();
        variables.push(("BACKSTITCH_SERVERS_DIR", path));
        let child = spawn(name, &variables);
        let mut server = Self {
            name,
            folder,
            port,
            variables,
            child,
        };
        server.wait();
        server
    }

    /// Returns its address.
    #[must_use]
    pub fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    /// Returns the address at which a Kafka serves clients behind a proxy.
    #[must_use]
    pub fn behind_proxy(&self) -> String {
        format!("127.0.0.1:{}", self.port + 2)
    }

    /// Returns the TLS address of a Kafka.
    #[must_use]
    pub fn secure(&self) -> String {
        format!("127.0.0.1:{}", self.port + 3)
    }

    /// Returns its data folder.
    #[must_use]
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Kills it with SIGKILL, as the kernel does when memory runs out.
    ///
    /// # Panics
    /// If it is not running.
    pub fn kill(&mut self) {
        let exit_status = self.child.try_wait().expect("its state");
        assert!(
            exit_status.is_none(),
            "{} had ended: {exit_status:?}",
            self.name
        );
        self.child.kill().expect("a process");
        self.child.wait().expect("its end");
    }

    /// Restarts it after it was killed, and waits until it answers.
    pub fn restart(&mut self) {
        self.child = spawn(self.name, &self.variables);
        self.wait();
    }

    /// Runs a command on a Redis and returns the reply.
    ///
    /// # Panics
    /// If `redis-cli` is not installed.
    #[must_use]
    pub fn run_redis_command(&self, command: &[&str]) -> String {
        let output = Command::new("redis-cli")
            .args(["-p", &self.port.to_string()])
            .args(command)
            .output()
            .expect("redis-cli");
        String::from_utf8_lossy(&output.stdout).trim().to_owned()
    }

    fn wait(&mut self) {
        let begun = Instant::now();
        loop {
            let mut status = deploy(&["status", self.name], &self.variables);
            let status = status.stderr(Stdio::null()).status();
            if status.expect("deploy/servers").success() {
                return;
            }
            let exit_status = self.child.try_wait().expect("its state");
            if exit_status.is_some() || begun.elapsed() > START_MAX {
                let log = self.folder.path().join("log").join(self.name);
                let log = std::fs::read_to_string(log.with_extension("log")).unwrap_or_default();
                // The last lines contain the reason.
                let last_lines = log.lines().rev().take(LOG_LINES).collect::<Vec<_>>();
                let last_lines = last_lines.into_iter().rev().collect::<Vec<_>>().join("\n");
                panic!(
                    "{} does not answer ({exit_status:?}) after {:?}: {last_lines}",
                    self.name,
                    begun.elapsed()
                );
            }
            #[expect(
                clippy::disallowed_methods,
                reason = "a server's start is waited for anywhere"
            )]
            std::thread::sleep(Duration::from_millis(200));
        }
    }
}

impl Drop for DedicatedServer {
    fn drop(&mut self) {
        // The server may have been killed already.
        let _gone = self.child.kill();
        let _gone = self.child.wait();
    }
}

fn deploy(arguments: &[&str], variables: &[(&'static str, String)]) -> Command {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../deploy/servers");
    let mut command = Command::new(script);
    command
        .args(arguments)
        // The server may be killed and must not lose acknowledged writes.
        .env_remove("BACKSTITCH_SERVERS_FOR_TESTS")
        .envs(variables.iter().map(|(name, value)| (*name, value)))
        .stdin(Stdio::null());
    command
}

fn spawn(name: &str, variables: &[(&'static str, String)]) -> Child {
    let mut run = deploy(&["run", name], variables);
    let child = run.stdout(Stdio::null()).stderr(Stdio::null()).spawn();
    child.expect("deploy/servers")
}

/// Ports for servers, below the range of ephemeral ports. Otherwise a restarting server could find
/// its port used by an outgoing connection, even one of its own clients that keeps connecting.
const PORTS: Range<u16> = 12_000..22_000;

/// Returns the first of `count` consecutive ports that are unused and were not returned before in
/// this process.
///
/// # Panics
/// If there are no ports.
#[must_use]
pub fn free_ports(count: u16) -> u16 {
    static NEXT: OnceLock<AtomicU16> = OnceLock::new();
    // Two test processes begin at different ports.
    let next = NEXT.get_or_init(|| AtomicU16::new(rand::random_range(PORTS)));
    for _ in 0..PORTS.len() / usize::from(count) {
        let first = next.fetch_add(count, Ordering::Relaxed) % (PORTS.end - PORTS.start - count);
        let mut ports = PORTS.skip(first.into()).take(count.into());
        // The cluster bus of Redis uses the port 10,000 above.
        let is_free = |port| TcpListener::bind(("127.0.0.1", port)).is_ok();
        if ports.all(|port| is_free(port) && is_free(port + 10_000)) {
            return PORTS.start + first;
        }
    }
    panic!("no free ports");
}
