//! TLS: the server's certificate is looked at.

use std::path::Path;
use std::process::Command;

use stores::redis::RedisOptions;
use stores::{ErrorKind, Result};

use tests::own::free_ports;

use super::server::Server;
use super::{add, fence, heal, open, sums};

fn openssl(folder: &Path, arguments: &str) {
    let ran = Command::new("openssl")
        .args(arguments.split(' '))
        .current_dir(folder)
        .output()
        .expect("openssl");
    let said = String::from_utf8_lossy(&ran.stderr);
    assert!(ran.status.success(), "{said}");
}

#[tokio::test]
async fn only_a_trusted_server_is_spoken_to() -> Result<()> {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = |name: &str| folder.path().join(name).to_string_lossy().into_owned();
    std::fs::write(path("names"), "subjectAltName=IP:127.0.0.1\n").expect("writing");
    for authority in ["ca", "other"] {
        let make = "req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=authority";
        openssl(
            folder.path(),
            &format!("{make} -keyout {authority}.key -out {authority}.pem"),
        );
    }
    openssl(
        folder.path(),
        "req -newkey rsa:2048 -nodes -subj /CN=server -keyout server.key -out server.csr",
    );
    openssl(
        folder.path(),
        "x509 -req -in server.csr -CA ca.pem -CAkey ca.key -CAcreateserial -days 2 -extfile names -out server.pem",
    );

    let port = free_ports(1);
    let server = Server::start(&[
        "--tls-port",
        &port.to_string(),
        "--tls-cert-file",
        &path("server.pem"),
        "--tls-key-file",
        &path("server.key"),
        "--tls-ca-cert-file",
        &path("ca.pem"),
        "--tls-auth-clients",
        "no",
    ]);
    let options = RedisOptions {
        nodes: format!("127.0.0.1:{port}"),
        tls: true,
        ca_file: path("ca.pem"),
        ..server.options()
    };
    let live = open(&options).await?;
    heal(&live, 0).await?;
    assert_eq!(add(&live, 0, fence(0, 1)).await?, Ok(()));
    assert_eq!(sums(&live, 0, "g").await?, (1, 1));
    for (ca_file, why) in [("other.pem", "certificate"), ("missing.pem", "can be read")] {
        let options = RedisOptions {
            ca_file: path(ca_file),
            ..options.clone()
        };
        let refused = open(&options).await.expect_err("not trusted");
        assert_eq!(refused.kind(), ErrorKind::Fatal);
        assert!(refused.to_string().contains(why), "{refused}");
    }
    Ok(())
}
