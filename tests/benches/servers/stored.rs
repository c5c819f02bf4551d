//! Storage size of an installation in Redis and Cassandra, and bytes sent by Redis.

use futures::TryStreamExt;
use redis::aio::MultiplexedConnection;
use schemas::source::Source;
use scylla::client::session::Session;
use scylla::client::session_builder::SessionBuilder;
use stores::namespace::Namespace;
use tests::servers;

/// Keys in one request.
const STEP: usize = 1_000;
/// Number of measured fields of a key, from which its total is estimated.
const SAMPLES: usize = 100;

/// A Redis connection for measurements.
pub(crate) struct Redis(MultiplexedConnection);

impl Redis {
    pub(crate) async fn open() -> Self {
        let client = redis::Client::open(format!("redis://{}", servers::redis()));
        let client = client.expect("an address");
        let connection = client.get_multiplexed_async_connection().await;
        Self(connection.expect("a connection"))
    }

    /// Returns the size of a source's live state in bytes.
    pub(crate) async fn bytes(&mut self, namespace: &Namespace, source: Source) -> u64 {
        let pattern = format!("{{{namespace}:{source}:*");
        let (mut cursor, mut sum) = (0_u64, 0);
        loop {
            let mut scan = redis::cmd("SCAN");
            scan.arg(cursor).arg("MATCH").arg(&pattern);
            scan.arg("COUNT").arg(STEP);
            let (next, keys): (u64, Vec<Vec<u8>>) =
                scan.query_async(&mut self.0).await.expect("keys");
            let mut pipe = redis::pipe();
            for key in &keys {
                let usage = pipe.cmd("MEMORY").arg("USAGE").arg(key);
                usage.arg("SAMPLES").arg(SAMPLES);
            }
            if !keys.is_empty() {
                let bytes: Vec<Option<u64>> = pipe.query_async(&mut self.0).await.expect("bytes");
                sum += bytes.into_iter().flatten().sum::<u64>();
            }
            cursor = next;
            if cursor == 0 {
                return sum;
            }
        }
    }

    /// Returns the number of bytes that the server has sent to all clients.
    pub(crate) async fn sent(&mut self) -> u64 {
        let mut info = redis::cmd("INFO");
        let text: String = info
            .arg("stats")
            .query_async(&mut self.0)
            .await
            .expect("figures");
        let sent = text
            .lines()
            .find_map(|line| line.strip_prefix("total_net_output_bytes:")?.parse().ok());
        sent.expect("a figure")
    }
}

/// Returns the number of rows and bytes of the nodes of all boards in Cassandra.
pub(crate) async fn nodes(namespace: &Namespace) -> (u64, u64) {
    let session: Session = SessionBuilder::new()
        .known_node(servers::cassandra())
        .build()
        .await
        .expect("a session");
    let keyspace = namespace.identifier("backstitch");
    let names = "SELECT table_name FROM system_schema.tables WHERE keyspace_name = ?";
    let names = session.query_iter(names, (&keyspace,)).await;
    let names = names.expect("tables").rows_stream::<(String,)>();
    let names: Vec<(String,)> = names
        .expect("names")
        .try_collect()
        .await
        .expect("all tables");
    let (mut rows, mut bytes) = (0, 0);
    for (table,) in names.iter().filter(|(name,)| name.starts_with("nodes_")) {
        let query = format!("SELECT bytes FROM {keyspace}.{table}");
        let query = session.query_iter(query, ()).await.expect("nodes");
        let query = query.rows_stream::<(Vec<u8>,)>().expect("bytes");
        let table_totals = query.try_fold((0, 0), async |(rows, bytes), (node,)| {
            Ok((rows + 1, bytes + node.len() as u64))
        });
        let (table_rows, table_bytes) = table_totals.await.expect("all nodes");
        rows += table_rows;
        bytes += table_bytes;
    }
    (rows, bytes)
}
