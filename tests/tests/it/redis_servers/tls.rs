//! TLS: the server's certificate is verified.

use stores::redis::RedisOptions;
use stores::{ErrorKind, Result};
use tests::certificates::Certificates;
use tests::dedicated_servers::free_ports;

use super::server::Server;
use super::{add, checkpoint, open, read_totals, rebuild};

#[tokio::test]
async fn untrusted_servers_are_rejected() -> Result<()> {
    let certificates = Certificates::generate();
    let path = |name: &str| certificates.file(name);
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
    rebuild(&live, 0).await?;
    assert_eq!(add(&live, 0, checkpoint(0, 1)).await?, Ok(()));
    assert_eq!(read_totals(&live, 0, "g").await?, (1, 1));
    for (ca_file, expected) in [
        ("other.pem", "certificate"),
        ("missing.pem", "readable PEM file"),
    ] {
        let options = RedisOptions {
            ca_file: path(ca_file),
            ..options.clone()
        };
        let refused = open(&options).await.expect_err("not trusted");
        assert_eq!(refused.kind(), ErrorKind::Fatal);
        assert!(refused.to_string().contains(expected), "{refused}");
    }
    Ok(())
}
