//! Servers of a test's own, which may be killed, stopped and started again. They end with the test.

use std::net::TcpListener;
use std::ops::Range;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::{Duration, Instant};

use tempfile::TempDir;

/// How long one may take until it answers.
const START_MAX: Duration = Duration::from_secs(240);
/// So many lines of the log of one that does not start are told.
const LOG_LINES: usize = 20;

/// A server that `deploy/servers` knows, on ports and in a folder of its own.
#[derive(Debug)]
pub struct OwnServer {
    name: &'static str,
    folder: TempDir,
    port: u16,
    variables: Vec<(&'static str, String)>,
    child: Child,
}

impl OwnServer {
    /// A Redis with its append-only file.
    #[must_use]
    pub fn redis() -> Self {
        Self::start("redis", "REDIS_PORT", Vec::new())
    }

    /// A Cassandra of one node.
    #[must_use]
    pub fn cassandra() -> Self {
        Self::start("cassandra", "CASSANDRA_PORT", Vec::new())
    }

    /// A Kafka of one broker. Clients that come to [`OwnServer::behind_proxy`] are told to go on at
    /// `proxy`, which must be a port that leads there.
    #[must_use]
    pub fn kafka(proxy: Option<u16>) -> Self {
        let proxy = proxy.map(|port| ("KAFKA_PROXY_PORT", port.to_string()));
        Self::start("kafka", "KAFKA_PORT", Vec::from_iter(proxy))
    }

    /// A Kafka that speaks TLS at [`OwnServer::secure`] and lets the user `backstitch` in, whose password is
    /// the same. `pem` is a file with its key and certificate.
    #[must_use]
    pub fn secure_kafka(pem: &str) -> Self {
        let pem = ("TLS_PEM", pem.to_owned());
        Self::start("kafka", "KAFKA_PORT", vec![pem])
    }

    /// A Cassandra that speaks TLS and lets the user `cassandra` in, whose password is the same. `pem` is a
    /// file with its key and certificate.
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

    /// Where it listens.
    #[must_use]
    pub fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    /// Where a Kafka listens for those that come through a proxy.
    #[must_use]
    pub fn behind_proxy(&self) -> String {
        format!("127.0.0.1:{}", self.port + 2)
    }

    /// Where a Kafka listens for those that speak TLS.
    #[must_use]
    pub fn secure(&self) -> String {
        format!("127.0.0.1:{}", self.port + 3)
    }

    /// Its data.
    #[must_use]
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Kills it, as the kernel does when there is no memory left.
    ///
    /// # Panics
    /// If it was not there any more.
    pub fn kill(&mut self) {
        let ended = self.child.try_wait().expect("its state");
        assert!(ended.is_none(), "{} had ended: {ended:?}", self.name);
        self.child.kill().expect("a process");
        self.child.wait().expect("its end");
    }

    /// Starts it again after it was killed, and waits until it answers.
    pub fn start_again(&mut self) {
        self.child = spawn(self.name, &self.variables);
        self.wait();
    }

    /// What a Redis answers.
    ///
    /// # Panics
    /// If there is no client of it.
    #[must_use]
    pub fn ask_redis(&self, command: &[&str]) -> String {
        let ran = Command::new("redis-cli")
            .args(["-p", &self.port.to_string()])
            .args(command)
            .output()
            .expect("redis-cli");
        String::from_utf8_lossy(&ran.stdout).trim().to_owned()
    }

    fn wait(&mut self) {
        let begun = Instant::now();
        loop {
            let mut status = deploy(&["status", self.name], &self.variables);
            let status = status.stderr(Stdio::null()).status();
            if status.expect("deploy/servers").success() {
                return;
            }
            let ended = self.child.try_wait().expect("its state");
            if ended.is_some() || begun.elapsed() > START_MAX {
                let log = self.folder.path().join("log").join(self.name);
                let log = std::fs::read_to_string(log.with_extension("log")).unwrap_or_default();
                // The last lines say why.
                let last = log.lines().rev().take(LOG_LINES).collect::<Vec<_>>();
                let last = last.into_iter().rev().collect::<Vec<_>>().join("\n");
                panic!(
                    "{} does not answer ({ended:?}) after {:?}: {last}",
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

impl Drop for OwnServer {
    fn drop(&mut self) {
        // One that was killed is gone already.
        let _gone = self.child.kill();
        let _gone = self.child.wait();
    }
}

fn deploy(arguments: &[&str], variables: &[(&'static str, String)]) -> Command {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../deploy/servers");
    let mut command = Command::new(script);
    command
        .args(arguments)
        // It may be killed, and must know what it knew.
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

/// Ports that are given out: below those that the system takes for the near end of a connection. There a
/// server that was killed might find its port taken when it starts again, even by a client of its own
/// that asks for it all the time.
const PORTS: Range<u16> = 12_000..22_000;

/// The first of so many ports in a row that nobody listens at, and that nobody else here was given.
///
/// # Panics
/// If there are no ports.
#[must_use]
pub fn free_ports(count: u16) -> u16 {
    static NEXT: OnceLock<AtomicU16> = OnceLock::new();
    // Two processes with tests begin at different places.
    let next = NEXT.get_or_init(|| AtomicU16::new(rand::random_range(PORTS)));
    for _ in 0..PORTS.len() / usize::from(count) {
        let first = next.fetch_add(count, Ordering::Relaxed) % (PORTS.end - PORTS.start - count);
        let mut ports = PORTS.skip(first.into()).take(count.into());
        // The ports of a cluster's own connections lie 10,000 above.
        let is_free = |port| TcpListener::bind(("127.0.0.1", port)).is_ok();
        if ports.all(|port| is_free(port) && is_free(port + 10_000)) {
            return PORTS.start + first;
        }
    }
    panic!("no free ports");
}
