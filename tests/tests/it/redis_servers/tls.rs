//! TLS: the server's certificate is looked at.

use stores::redis::RedisOptions;
use stores::{ErrorKind, Result};
use tests::certificates::Certificates;
use tests::own::free_ports;

use super::server::Server;
use super::{add, fence, heal, open, sums};

#[tokio::test]
async fn only_a_trusted_server_is_spoken_to() -> Result<()> {
    let certificates = Certificates::make();
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
    heal(&live, 0).await?;
    assert_eq!(add(&live, 0, fence(0, 1)).await?, Ok(()));
    assert_eq!(sums(&live, 0, "g").await?, (1, 1));
    for (ca_file, why) in [
        ("other.pem", "certificate"),
        ("missing.pem", "readable PEM file"),
    ] {
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
