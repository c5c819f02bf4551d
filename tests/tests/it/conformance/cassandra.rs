//! Cassandra.

use stores::cassandra::{Cassandra, CassandraOptions};
use stores::namespace::Namespace;
use stores::{Result, Stores};
use tests::servers;

use super::Stage;
use super::embedded::Folder;

/// A keyspace, and a folder for everything else.
struct Keyspace {
    namespace: Namespace,
    folder: Folder,
}

fn options() -> CassandraOptions {
    CassandraOptions {
        nodes: servers::cassandra(),
        ..CassandraOptions::default()
    }
}

impl Keyspace {
    async fn open(&self) -> Result<Cassandra> {
        Cassandra::open(&options(), &self.namespace).await
    }
}

impl Stage for Keyspace {
    async fn set() -> Self {
        let namespace = servers::namespace();
        let made = Cassandra::migrate(&options(), &namespace).await;
        assert!(made.expect("a keyspace"), "the keyspace is new");
        Self {
            namespace,
            folder: Folder::set().await,
        }
    }

    async fn ports(&self) -> Result<Stores> {
        let cassandra = self.open().await?;
        Ok(Stores {
            views: std::sync::Arc::new(cassandra.views()),
            leases: std::sync::Arc::new(cassandra.leases()),
            ..self.folder.ports().await?
        })
    }

    async fn clear(self) -> Result<()> {
        Cassandra::remove(&options(), &self.namespace).await
    }
}

super::laws_of! { Keyspace; runs views editions lease }
