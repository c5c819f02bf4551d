//! A Redis server of one test, which the test may stop, kill and fill.

use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use stores::redis::RedisOptions;
use tempfile::TempDir;
use tests::dedicated_servers::free_ports;

/// A server that ends with the test.
pub(crate) struct Server {
    pub(crate) port: u16,
    folder: TempDir,
    arguments: Vec<String>,
    child: Child,
}

impl Server {
    /// Starts a server with these options, a free port, a folder, and an append-only file.
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

    /// Runs a command and returns its reply.
    pub(crate) fn run(&self, command: &[&str]) -> String {
        let output = Command::new("redis-cli")
            .args(["-p", &self.port.to_string()])
            .args(command)
            .output()
            .expect("redis-cli");
        String::from_utf8_lossy(&output.stdout).trim().to_owned()
    }

    /// Kills the server, as the kernel does when memory is exhausted.
    pub(crate) fn kill(&mut self) {
        self.child.kill().expect("a process");
        self.child.wait().expect("its end");
    }

    /// Starts the server after [`Server::kill`].
    pub(crate) fn restart(&mut self) {
        self.child = spawn(self.port, &self.folder, &self.arguments);
        self.wait();
    }

    /// Sends a signal to the process.
    pub(crate) fn signal(&self, name: &str) {
        let process = self.child.id().to_string();
        let sent = Command::new("kill").args([name, &process]).status();
        assert!(sent.expect("kill").success());
    }

    /// Returns the connection options.
    pub(crate) fn options(&self) -> RedisOptions {
        RedisOptions {
            nodes: format!("127.0.0.1:{}", self.port),
            ..RedisOptions::default()
        }
    }

    /// Returns connection options with short timeouts, for tests that run into them.
    pub(crate) fn short_timeouts(&self) -> RedisOptions {
        RedisOptions {
            connect_timeout_ms: 500,
            response_timeout_ms: 500,
            call_timeout_ms: 2_500,
            ..self.options()
        }
    }

    fn wait(&self) {
        let begun = Instant::now();
        while self.run(&["PING"]) != "PONG" {
            assert!(
                begun.elapsed() < Duration::from_secs(60),
                "no reply to PING"
            );
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Works for a stopped process, too. The process may have ended already.
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
