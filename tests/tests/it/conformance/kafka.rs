//! Kafka.

use std::sync::Arc;
use stores::kafka::{KafkaLog, KafkaOptions};
use stores::namespace::Namespace;
use stores::{Result, Stores};
use tests::servers;

use super::Stage;
use super::embedded::Folder;

/// Topics of a namespace of its own, and a folder for everything else.
struct Topics {
    namespace: Namespace,
    folder: Folder,
}

fn options() -> KafkaOptions {
    KafkaOptions {
        bootstrap_servers: servers::kafka(),
        ..KafkaOptions::default()
    }
}

impl Stage for Topics {
    async fn set() -> Self {
        Self {
            namespace: servers::namespace(),
            folder: Folder::set().await,
        }
    }

    async fn ports(&self) -> Result<Stores> {
        Ok(Stores {
            log: Arc::new(KafkaLog::open(&options(), &self.namespace)?),
            ..self.folder.ports().await?
        })
    }
}

super::laws_of! { Topics; log }
