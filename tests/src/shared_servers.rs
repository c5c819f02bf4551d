//! The servers that all tests share.
//!
//! The first test that needs a server starts it by `deploy/servers`. Every test process holds a
//! shared lock on one file while it runs; once no process holds it, `deploy/servers` stops what
//! tests started.

use std::collections::BTreeSet;
use std::fs::File;
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Mutex, PoisonError};

/// A server of `deploy/servers`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum SharedServer {
    /// Kafka.
    Kafka,
    /// Cassandra.
    Cassandra,
    /// A single Redis.
    Redis,
    /// A Redis Cluster of three nodes.
    RedisCluster,
    /// PostgreSQL.
    Postgres,
    /// `MariaDB`.
    MariaDb,
    /// S3.
    S3,
}

/// The lock, and the servers that this process has found running.
#[derive(Debug)]
struct InUse {
    lock: Option<File>,
    running: BTreeSet<SharedServer>,
}

static IN_USE: Mutex<InUse> = Mutex::new(InUse {
    lock: None,
    running: BTreeSet::new(),
});

impl SharedServer {
    /// The name that `deploy/servers` knows, the variable of its port, and the default port.
    const fn spec(self) -> (&'static str, &'static str, u16) {
        match self {
            Self::Kafka => ("kafka", "KAFKA_PORT", 11092),
            Self::Cassandra => ("cassandra", "CASSANDRA_PORT", 11042),
            Self::Redis => ("redis", "REDIS_PORT", 11379),
            Self::RedisCluster => ("redis-cluster", "REDIS_CLUSTER_PORT", 11390),
            Self::Postgres => ("postgres", "POSTGRES_PORT", 11432),
            Self::MariaDb => ("mariadb", "MARIADB_PORT", 11306),
            Self::S3 => ("s3", "S3_PORT", 11000),
        }
    }

    /// Returns the address without starting the server.
    ///
    /// # Panics
    /// If the variable of the port is not a port.
    #[must_use]
    pub fn address(self) -> String {
        let (_, variable, default) = self.spec();
        let port = std::env::var(variable).map_or(default, |set| {
            set.parse()
                .unwrap_or_else(|_| panic!("{variable}: {set:?} is not a port"))
        });
        format!("127.0.0.1:{port}")
    }

    /// Starts the server unless it runs, and keeps it running until this process ends. Returns its
    /// address.
    ///
    /// # Panics
    /// If the server cannot be started; the message contains the output of `deploy/servers`, such
    /// as a missing package or a port in use.
    #[must_use]
    pub fn start(self) -> String {
        let address = self.address();
        let mut in_use = IN_USE.lock().unwrap_or_else(PoisonError::into_inner);
        if in_use.running.contains(&self) {
            return address;
        }
        let folder = servers_folder();
        if in_use.lock.is_none() {
            in_use.lock = Some(lock_shared(&folder.join("used.lock")));
        }
        let (name, ..) = self.spec();
        let is_ready = folder.join("run").join(format!("{name}.ready")).exists()
            && TcpStream::connect(&address).is_ok();
        if !is_ready {
            run_script(name);
        }
        in_use.running.insert(self);
        address
    }
}

/// Returns the folder of `deploy/servers`, by the rules of that script.
fn servers_folder() -> PathBuf {
    if let Some(folder) = std::env::var_os("BACKSTITCH_SERVERS_DIR").filter(|set| !set.is_empty()) {
        let folder = PathBuf::from(folder);
        assert!(
            folder.is_absolute(),
            "BACKSTITCH_SERVERS_DIR must be an absolute path, because tests run in several folders"
        );
        return folder;
    }
    let output = script().arg("folder").output();
    let output = output.unwrap_or_else(|error| panic!("cannot run deploy/servers: {error}"));
    assert!(output.status.success(), "deploy/servers folder: {output:?}");
    String::from_utf8_lossy(&output.stdout).trim().into()
}

fn lock_shared(path: &Path) -> File {
    let opened =
        std::fs::create_dir_all(path.parent().expect("a folder")).and_then(|()| File::create(path));
    let file = opened.unwrap_or_else(|error| panic!("cannot open {}: {error}", path.display()));
    file.lock_shared()
        .unwrap_or_else(|error| panic!("cannot lock {}: {error}", path.display()));
    file
}

fn script() -> Command {
    let mut command = Command::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../deploy/servers"));
    command
        // Kafka and Cassandra start fast and need not survive a crash.
        .env("BACKSTITCH_SERVERS_FOR_TESTS", "1")
        .stdin(Stdio::null());
    command
}

fn run_script(name: &str) {
    let output = script().args(["up-while-used", name]).output();
    let output = output.unwrap_or_else(|error| panic!("cannot run deploy/servers: {error}"));
    assert!(
        output.status.success(),
        "deploy/servers cannot start {name}; `deploy/servers up {name}` shows why: {}",
        String::from_utf8_lossy(&output.stderr)
    );
}
