//! Kafka.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rdkafka::admin::{AdminClient, AdminOptions, NewPartitions};
use rdkafka::client::DefaultClientContext;
use rdkafka::config::{ClientConfig, FromClientConfig};
use stores::kafka::{KafkaLog, KafkaOptions};
use stores::log::{Assigned, Share};
use stores::namespace::Namespace;
use stores::{Result, Stores};
use tests::servers;

use super::Stage;
use super::embedded::Folder;

const TOPIC: &str = "backstitch.plays.v1";
const PATIENCE: Duration = Duration::from_secs(20);

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

    async fn clear(self) -> Result<()> {
        delete_topics(&self.namespace).await;
        Ok(())
    }
}

super::laws_of! { Topics; log }

/// A client of the brokers themselves, for what the adapter never does.
fn client<T: FromClientConfig>(settings: &[(&str, &str)]) -> T {
    let mut config = ClientConfig::new();
    config.set("bootstrap.servers", servers::kafka());
    for (key, value) in settings {
        config.set(*key, *value);
    }
    config.create().expect("a client")
}

fn admin() -> AdminClient<DefaultClientContext> {
    client(&[])
}

/// Deletes every topic of a namespace.
async fn delete_topics(namespace: &Namespace) {
    let admin = admin();
    let prefix = namespace.topic("");
    let metadata = admin.inner().fetch_metadata(None, PATIENCE);
    let metadata = metadata.expect("the topics");
    let names = metadata.topics().iter().map(|topic| topic.name());
    let names: Vec<&str> = names.filter(|name| name.starts_with(&prefix)).collect();
    if !names.is_empty() {
        let deleted = admin.delete_topics(&names, &AdminOptions::new()).await;
        deleted.expect("deleting");
    }
}

/// Waits until a share has these partitions.
async fn assigned(share: &mut Share, expected: &[u32]) {
    let expected = Assigned::Some(expected.iter().copied().collect());
    let reached = async {
        while share.assigned() != expected {
            share.changed().await;
        }
    };
    let reached = tokio::time::timeout(PATIENCE, reached).await;
    reached.unwrap_or_else(|_| panic!("{:?} instead of {expected:?}", share.assigned()));
}

fn mine(share: &Share) -> BTreeSet<u32> {
    match share.assigned() {
        Assigned::Some(mine) => mine,
        Assigned::Everything => panic!("everything"),
    }
}

/// Two members share the partitions; nobody's are taken twice, and who stays takes over.
#[tokio::test]
async fn members_share_and_take_over() -> Result<()> {
    let topics = Topics::set().await;
    let one = topics.ports().await?.log;
    let other = topics.ports().await?.log;
    one.ensure_topic(TOPIC, 4).await?;
    let mut first = one.share(TOPIC).await?;
    assigned(&mut first, &[0, 1, 2, 3]).await;
    let mut second = other.share(TOPIC).await?;
    let split = async {
        while (mine(&first).len(), mine(&second).len()) != (2, 2) {
            tokio::select! {
                () = first.changed() => {}
                () = second.changed() => {}
            }
        }
    };
    tokio::time::timeout(PATIENCE, split).await.expect("halves");
    assert!(mine(&first).is_disjoint(&mine(&second)));
    let begun = Instant::now();
    first.leave().await;
    assigned(&mut second, &[0, 1, 2, 3]).await;
    let waited = begun.elapsed();
    assert!(waited < Duration::from_secs(5), "told at once: {waited:?}");
    // Partitions that are added are shared too.
    let name = topics.namespace.topic(TOPIC);
    let more = [NewPartitions::new(&name, 5)];
    let added = admin().create_partitions(&more, &AdminOptions::new()).await;
    added.expect("adding")[0].as_ref().expect("added");
    assigned(&mut second, &[0, 1, 2, 3, 4]).await;
    second.leave().await;
    topics.clear().await
}
