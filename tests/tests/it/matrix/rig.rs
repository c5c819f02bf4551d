//! Servers behind proxies.

use std::collections::BTreeMap;
use std::sync::Arc;

use tests::own::OwnServer;
use tests::proxy::{Gate, Proxy};
use tests::servers::Addresses;
use tokio::net::TcpListener;

use super::scene::Setting;

/// Every server with a proxy before it, and what keeps them there.
#[derive(Debug)]
pub(super) struct Rig {
    pub(super) setting: Setting,
    _proxies: Vec<Proxy>,
    _kafka: Option<OwnServer>,
}

/// What a server is called in messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Named {
    Kafka,
    Redis,
    Cassandra,
    PostgreSql,
    S3,
}

impl Rig {
    /// Proxies before these servers, each with its gate. Kafka is one of the test's own then, since a
    /// broker tells its clients where to go on.
    pub(super) async fn before(gates: &BTreeMap<Named, Arc<Gate>>) -> Self {
        let mut setting = Setting::default();
        let (mut proxies, mut kafka) = (Vec::new(), None);
        for (server, gate) in gates {
            let Setting {
                direct, through, ..
            } = &mut setting;
            let proxy = match server {
                Named::Kafka => {
                    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
                    let port = listener.local_addr().expect("an address").port();
                    let own = OwnServer::kafka(Some(port));
                    let proxy = Proxy::on(listener, &own.behind_proxy(), gate);
                    direct.kafka = own.address();
                    kafka = Some(own);
                    proxy
                }
                other => Proxy::to(&address(*other, direct), gate).await,
            };
            let at = proxy.address.clone();
            match server {
                Named::Kafka => through.kafka = at,
                Named::Redis => through.redis = at,
                Named::Cassandra => through.cassandra = at,
                Named::PostgreSql => through.postgres = at,
                Named::S3 => through.s3 = Some(at),
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
    pub(super) async fn behind(gate: &Arc<Gate>) -> Self {
        let all = [
            Named::Kafka,
            Named::Redis,
            Named::Cassandra,
            Named::PostgreSql,
            Named::S3,
        ];
        let gates = all.map(|server| (server, Arc::clone(gate))).into();
        Self::before(&gates).await
    }
}

fn address(server: Named, at: &Addresses) -> String {
    match server {
        Named::Kafka => at.kafka.clone(),
        Named::Redis => at.redis.clone(),
        Named::Cassandra => at.cassandra.clone(),
        Named::PostgreSql => at.postgres.clone(),
        Named::S3 => at.s3.clone().expect("an S3"),
    }
}
