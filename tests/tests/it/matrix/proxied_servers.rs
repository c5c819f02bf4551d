//! Servers behind proxies.

use std::collections::BTreeMap;
use std::sync::Arc;

use tests::dedicated_servers::DedicatedServer;
use tests::proxy::{Gate, Proxy};
use tests::servers::Addresses;
use tokio::net::TcpListener;

use super::scene::Setting;

/// All servers with a proxy in front of each, and their owners.
#[derive(Debug)]
pub(super) struct ProxiedServers {
    pub(super) setting: Setting,
    _proxies: Vec<Proxy>,
    _kafka: Option<DedicatedServer>,
}

/// The tested servers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum ServerName {
    Kafka,
    Redis,
    Cassandra,
    PostgreSql,
    S3,
}

impl ProxiedServers {
    /// Puts a proxy with its gate in front of each of these servers. Kafka is started for the test,
    /// since a broker advertises its own address.
    pub(super) async fn in_front_of(gates: &BTreeMap<ServerName, Arc<Gate>>) -> Self {
        let mut setting = Setting::default();
        let (mut proxies, mut kafka) = (Vec::new(), None);
        for (server, gate) in gates {
            let Setting {
                direct, proxied, ..
            } = &mut setting;
            let proxy = match server {
                ServerName::Kafka => {
                    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
                    let port = listener.local_addr().expect("an address").port();
                    let broker = DedicatedServer::kafka(Some(port));
                    let proxy = Proxy::start_on(listener, &broker.behind_proxy(), gate);
                    direct.kafka = broker.address();
                    kafka = Some(broker);
                    proxy
                }
                other => Proxy::start(&address(*other, direct), gate).await,
            };
            let proxy_address = proxy.address.clone();
            match server {
                ServerName::Kafka => proxied.kafka = proxy_address,
                ServerName::Redis => proxied.redis = proxy_address,
                ServerName::Cassandra => proxied.cassandra = proxy_address,
                ServerName::PostgreSql => proxied.postgres = proxy_address,
                ServerName::S3 => proxied.s3 = Some(proxy_address),
            }
            proxies.push(proxy);
        }
        Self {
            setting,
            _proxies: proxies,
            _kafka: kafka,
        }
    }

    /// All servers behind one gate.
    pub(super) async fn all_behind(gate: &Arc<Gate>) -> Self {
        let servers = [
            ServerName::Kafka,
            ServerName::Redis,
            ServerName::Cassandra,
            ServerName::PostgreSql,
            ServerName::S3,
        ];
        let gates = servers.map(|server| (server, Arc::clone(gate))).into();
        Self::in_front_of(&gates).await
    }
}

fn address(server: ServerName, addresses: &Addresses) -> String {
    match server {
        ServerName::Kafka => addresses.kafka.clone(),
        ServerName::Redis => addresses.redis.clone(),
        ServerName::Cassandra => addresses.cassandra.clone(),
        ServerName::PostgreSql => addresses.postgres.clone(),
        ServerName::S3 => addresses.s3.clone().expect("an S3"),
    }
}
