//! A single Redis and a cluster.

use std::process::Command;
use std::sync::Arc;

use stores::namespace::Namespace;
use stores::redis::{RedisLive, RedisOptions};
use stores::{Result, Stores};
use tests::servers;

use super::Stage;
use super::embedded::Folder;

/// Keys on a server, with a data folder for the other stores.
struct Keys {
    options: RedisOptions,
    namespace: Namespace,
    folder: Folder,
}

impl Keys {
    async fn create(nodes: String) -> Self {
        Self {
            options: RedisOptions {
                nodes,
                ..RedisOptions::default()
            },
            namespace: servers::namespace(),
            folder: Folder::create().await,
        }
    }

    async fn open_stores(&self) -> Result<Stores> {
        let live = RedisLive::open(&self.options, &self.namespace).await?;
        Ok(Stores {
            live: Arc::new(live),
            ..self.folder.ports().await?
        })
    }
}

/// Deletes the keys of a node that match a pattern.
const DELETE_ALL: &str = "local cursor = '0' repeat
    local page = redis.call('SCAN', cursor, 'MATCH', ARGV[1], 'COUNT', 1000)
    cursor = page[1]
    for _, key in ipairs(page[2]) do redis.call('UNLINK', key) end
until cursor == '0'";

/// Runs a command on a server and returns the reply.
fn run_command(address: &str, command: &[&str]) -> String {
    let (host, port) = address.rsplit_once(':').expect("host:port");
    let ran = Command::new("redis-cli")
        .args(["-h", host, "-p", port])
        .args(command)
        .output()
        .expect("redis-cli");
    String::from_utf8_lossy(&ran.stdout).trim().to_owned()
}

/// Deletes all keys of a namespace on these nodes.
fn delete_keys(nodes: &[String], namespace: &Namespace) {
    for node in nodes {
        run_command(
            node,
            &["EVAL", DELETE_ALL, "0", &format!("{{{namespace}:*")],
        );
    }
}

/// A single Redis.
struct Single(Keys);

/// A Redis Cluster.
struct Cluster(Keys);

impl Stage for Single {
    async fn create() -> Self {
        Self(Keys::create(servers::redis()).await)
    }

    async fn ports(&self) -> Result<Stores> {
        self.0.open_stores().await
    }

    async fn clear(self) -> Result<()> {
        delete_keys(&[self.0.options.nodes], &self.0.namespace);
        Ok(())
    }
}

impl Stage for Cluster {
    async fn create() -> Self {
        Self(Keys::create(servers::redis_cluster()).await)
    }

    async fn ports(&self) -> Result<Stores> {
        self.0.open_stores().await
    }

    async fn clear(self) -> Result<()> {
        let nodes = run_command(&self.0.options.nodes, &["CLUSTER", "NODES"]);
        // id, address@port, …
        let addresses = nodes.lines().filter_map(|line| {
            let address = line.split(' ').nth(1)?.split('@').next()?;
            Some(address.to_owned())
        });
        delete_keys(&addresses.collect::<Vec<_>>(), &self.0.namespace);
        Ok(())
    }
}

mod alone {
    use super::Single;

    crate::conformance::laws_of! { Single; live live_entries live_scans }

    #[test]
    fn live_state_follows_the_model() {
        crate::conformance::live_state_follows_the_model::<Single>(40);
    }
}

mod cluster {
    use super::Cluster;

    crate::conformance::laws_of! { Cluster; live live_entries live_scans }

    #[test]
    fn live_state_follows_the_model() {
        crate::conformance::live_state_follows_the_model::<Cluster>(40);
    }
}
