//! A Redis of a test's own, which may be stopped, killed and filled.

use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use stores::redis::RedisOptions;
use tempfile::TempDir;
use tests::own::free_ports;

/// A server that ends with the test.
pub(crate) struct Server {
    pub(crate) port: u16,
    folder: TempDir,
    arguments: Vec<String>,
    child: Child,
}

impl Server {
    /// Starts one with these options besides a port, a folder, and an append-only file.
    pub(crate) fn start(arguments: &[&str]) -> Self {
        let port = free_ports(1);
        let folder = tempfile::tempdir().expect("a temporary folder");
        let arguments: Vec<String> = arguments.iter().map(|text| (*text).to_owned()).collect();
        let child = spawn(port, &folder, &arguments);
        let server = Self {
            port,
            folder,
            arguments,
            child,
        };
        server.wait();
        server
    }

    /// What it answers.
    pub(crate) fn ask(&self, command: &[&str]) -> String {
        let ran = Command::new("redis-cli")
            .args(["-p", &self.port.to_string()])
            .args(command)
            .output()
            .expect("redis-cli");
        String::from_utf8_lossy(&ran.stdout).trim().to_owned()
    }

    /// Kills it, as the kernel does when there is no memory left.
    pub(crate) fn kill(&mut self) {
        self.child.kill().expect("a process");
        self.child.wait().expect("its end");
    }

    /// Starts it again after it was killed.
    pub(crate) fn start_again(&mut self) {
        self.child = spawn(self.port, &self.folder, &self.arguments);
        self.wait();
    }

    /// Sends its process a signal.
    pub(crate) fn signal(&self, name: &str) {
        let process = self.child.id().to_string();
        let sent = Command::new("kill").args([name, &process]).status();
        assert!(sent.expect("kill").success());
    }

    /// How to reach it.
    pub(crate) fn options(&self) -> RedisOptions {
        RedisOptions {
            nodes: format!("127.0.0.1:{}", self.port),
            ..RedisOptions::default()
        }
    }

    /// How to reach it with little patience, for who waits in vain.
    pub(crate) fn hasty(&self) -> RedisOptions {
        RedisOptions {
            connect_timeout_ms: 500,
            response_timeout_ms: 500,
            call_timeout_ms: 2_500,
            ..self.options()
        }
    }

    fn wait(&self) {
        let begun = Instant::now();
        while self.ask(&["PING"]) != "PONG" {
            assert!(begun.elapsed() < Duration::from_secs(60), "it answers");
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // A stopped process can be killed too; one that is gone already is no matter.
        let _gone = self.child.kill();
        let _gone = self.child.wait();
    }
}

fn spawn(port: u16, folder: &TempDir, arguments: &[String]) -> Child {
    Command::new("redis-server")
        .args(["--port", &port.to_string(), "--bind", "127.0.0.1"])
        .args([
            "--save",
            "",
            "--appendonly",
            "yes",
            "--appendfsync",
            "always",
        ])
        .arg("--dir")
        .arg(folder.path())
        .args(arguments)
        .stdout(Stdio::null())
        .spawn()
        .expect("redis-server")
}
