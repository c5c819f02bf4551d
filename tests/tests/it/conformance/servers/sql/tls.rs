//! TLS: the client verifies the server's certificate. Each test has its own server.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use schemas::entities::Entity;
use stores::entities::EntityWrite;
use stores::namespace::Namespace;
use stores::sql::{EntityStore, SqlOptions, SqlTls};
use stores::{ErrorKind, Result};
use tests::certificates::Certificates;
use tests::conformance::entity_rows::effort;
use tests::dedicated_servers::free_ports;
use tests::servers;
use tokio::time::Instant;

use super::Server;

super::on_both! {
    only_a_trusted_server_is_used
}

/// A server with TLS that stops with the test.
struct TlsServer {
    port: u16,
    certificates: Certificates,
    child: Child,
}

impl TlsServer {
    fn start(server: Server) -> Self {
        let certificates = Certificates::generate();
        let (folder, port) = (certificates.folder(), free_ports(1));
        let child = match server {
            Server::Postgres => start_postgres(folder, port),
            Server::MariaDb => start_mariadb(folder, port),
        };
        Self {
            port,
            certificates,
            child,
        }
    }
}

impl Drop for TlsServer {
    fn drop(&mut self) {
        // Immediate shutdown: the data is no longer needed.
        run("kill", &["-QUIT", &self.child.id().to_string()]);
        let _ended = self.child.wait();
    }
}

fn path(folder: &Path, name: &str) -> String {
    folder.join(name).to_string_lossy().into_owned()
}

fn run(program: &str, arguments: &[&str]) {
    let output = command(program).args(arguments).output();
    let output = output.unwrap_or_else(|error| panic!("{program}: {error}"));
    let message = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{program}: {message}");
}

/// Finds a program, which may be in a folder of administrators' programs only.
fn command(program: &str) -> Command {
    let mut folders: Vec<PathBuf> = vec!["/usr/sbin".into()];
    let versions = std::fs::read_dir("/usr/lib/postgresql")
        .into_iter()
        .flatten();
    folders.extend(versions.flatten().map(|version| version.path().join("bin")));
    let executable = folders.iter().map(|folder| folder.join(program));
    let executable = executable.into_iter().find(|file| file.is_file());
    Command::new(executable.unwrap_or_else(|| program.into()))
}

fn is_root() -> bool {
    let output = Command::new("id").arg("-u").output().expect("id");
    output.stdout == b"0\n"
}

/// PostgreSQL does not run as root.
fn start_postgres(folder: &Path, port: u16) -> Child {
    let data = path(folder, "data");
    let mut prefix = Vec::new();
    if is_root() {
        run("chown", &["-R", "postgres", &path(folder, "")]);
        prefix = vec![
            "setpriv",
            "--reuid=postgres",
            "--regid=postgres",
            "--init-groups",
        ];
    }
    let as_user = |program: &str| {
        let program = command(program);
        let Some((prefix_program, prefix_args)) = prefix.split_first() else {
            return program;
        };
        let mut command = Command::new(prefix_program);
        command.args(prefix_args).arg(program.get_program());
        command
    };
    let status = as_user("initdb")
        .args(["-D", &data, "-U", "backstitch", "-A", "trust"])
        .args(["-E", "UTF8", "--locale=C.UTF-8", "--no-sync"])
        .stdout(Stdio::null())
        .status();
    assert!(status.expect("initdb").success());
    as_user("postgres")
        .args(["-D", &data, "-p", &port.to_string()])
        .args(["-c", "listen_addresses=127.0.0.1", "-c", "fsync=off"])
        .args(["-c", "unix_socket_directories=", "-c", "ssl=on"])
        .args([
            "-c",
            &format!("ssl_cert_file={}", path(folder, "server.pem")),
        ])
        .args([
            "-c",
            &format!("ssl_key_file={}", path(folder, "server.key")),
        ])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("postgres")
}

fn start_mariadb(folder: &Path, port: u16) -> Child {
    let data = format!("--datadir={}", path(folder, "data"));
    let user = if is_root() { &["--user=root"][..] } else { &[] };
    let status = Command::new("mariadb-install-db")
        .args(["--no-defaults", &data, "--skip-test-db"])
        .arg("--auth-root-authentication-method=normal")
        .args(user)
        .stdout(Stdio::null())
        .status();
    assert!(status.expect("mariadb-install-db").success());
    // A statement a line.
    let statements = "CREATE USER 'backstitch'@'127.0.0.1';\n\
                 GRANT ALL ON *.* TO 'backstitch'@'127.0.0.1';\n";
    std::fs::write(folder.join("first.sql"), statements).expect("writing");
    command("mariadbd")
        .args(["--no-defaults", &data, &format!("--port={port}")])
        .args(user)
        .args(["--bind-address=127.0.0.1", "--skip-name-resolve"])
        .arg(format!("--socket={}", path(folder, "socket")))
        .arg(format!("--init-file={}", path(folder, "first.sql")))
        .arg(format!("--ssl-cert={}", path(folder, "server.pem")))
        .arg(format!("--ssl-key={}", path(folder, "server.key")))
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("mariadbd")
}

/// Checks that opening the store fails soon, with an error that contains both texts.
async fn assert_refused(options: &SqlOptions, namespace: &Namespace, reason: &str, remedy: &str) {
    let started = Instant::now();
    let refused = EntityStore::open(options, namespace).await;
    let error = refused.expect_err("a certificate error");
    assert_eq!(error.kind(), ErrorKind::Fatal, "{error}");
    let message = error.to_string();
    assert!(
        message.contains(reason) && message.contains(remedy),
        "{message}"
    );
    assert!(
        started.elapsed() < Duration::from_secs(30),
        "too late: {message}"
    );
}

/// The client connects only to a server whose certificate the configured authority signed for the
/// host. Otherwise the error gives the reason at once.
async fn only_a_trusted_server_is_used(server: Server) -> Result<()> {
    let tls_server = tokio::task::spawn_blocking(move || TlsServer::start(server));
    let tls_server = tls_server.await.expect("a server");
    let namespace = servers::namespace();
    let options = SqlOptions {
        host: "127.0.0.1".to_owned(),
        port: tls_server.port,
        tls: SqlTls::VerifyFull,
        ca_file: tls_server.certificates.file("ca.pem"),
        ..server.options()
    };
    // Waits for the server to start.
    assert!(EntityStore::migrate(&options, &namespace).await?);
    let entity_store = EntityStore::open(&options, &namespace).await?;
    entity_store
        .apply(&[Entity::Effort(effort(1, 2, 3))], 1)
        .await?;
    let diagnostics = EntityStore::diagnostics(&options, &namespace).await?;
    assert_eq!(diagnostics, Vec::<String>::new());

    let options_with = |file: &str, host: &str, tls: SqlTls| SqlOptions {
        ca_file: tls_server.certificates.file(file),
        host: host.to_owned(),
        tls,
        ..options.clone()
    };
    // These modes accept any host name of the authority, or any server.
    for (file, tls) in [("ca.pem", SqlTls::VerifyCa), ("other.pem", SqlTls::Require)] {
        EntityStore::open(&options_with(file, "localhost", tls), &namespace).await?;
    }
    let without_tls = SqlOptions {
        port: server.options().port,
        ..options_with("ca.pem", "127.0.0.1", SqlTls::Require)
    };
    for (options, reason, remedy) in [
        (
            options_with("other.pem", "127.0.0.1", SqlTls::VerifyFull),
            "UnknownIssuer",
            "set ca_file to",
        ),
        (
            options_with("other.pem", "127.0.0.1", SqlTls::VerifyCa),
            "UnknownIssuer",
            "set ca_file to",
        ),
        (
            options_with("ca.pem", "localhost", SqlTls::VerifyFull),
            "not valid for name",
            "set host to a name",
        ),
        (
            options_with("missing.pem", "127.0.0.1", SqlTls::VerifyFull),
            "missing.pem",
            "readable PEM file",
        ),
        (
            options_with("names", "127.0.0.1", SqlTls::VerifyFull),
            "no certificate",
            "readable PEM file",
        ),
        (
            without_tls,
            "does not support TLS",
            "enable TLS on the server",
        ),
    ] {
        assert_refused(&options, &namespace, reason, remedy).await;
    }
    drop(entity_store);
    let stopped = tokio::task::spawn_blocking(move || drop(tls_server));
    stopped.await.expect("the end of the process");
    Ok(())
}
