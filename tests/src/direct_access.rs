//! Direct access to the servers that bypasses the system, as by an operator.

use futures::TryStreamExt;
use redis::aio::MultiplexedConnection;
use scylla::client::session::Session;
use scylla::client::session_builder::SessionBuilder;
use scylla::deserialize::row::DeserializeRow;
use scylla::serialize::row::SerializeRow;
use scylla::value::{CqlValue, Row};
use stores::namespace::Namespace;

use crate::servers;

/// CQL on the keyspace of an installation.
#[derive(Debug)]
pub struct Cql {
    session: Session,
}

impl Cql {
    /// Opens a session on an installation's keyspace.
    ///
    /// # Panics
    /// If Cassandra does not answer.
    pub async fn connect(namespace: &Namespace) -> Self {
        let session = SessionBuilder::new()
            .known_node(servers::cassandra())
            .use_keyspace(namespace.identifier("backstitch"), false)
            .build()
            .await;
        Self {
            session: session.expect("a session"),
        }
    }

    /// Returns the suffix of the tables of a view.
    ///
    /// # Panics
    /// If the view does not exist.
    pub async fn id(&self, view: &str) -> String {
        let ids = self
            .read::<(String,)>("SELECT id FROM views WHERE name = ?", (view,))
            .await;
        ids.into_iter().next().expect("a view").0
    }

    /// Returns all rows of a query.
    ///
    /// # Panics
    /// If the query fails or its rows have another type.
    pub async fn read<R>(&self, text: &str, values: impl SerializeRow) -> Vec<R>
    where
        R: 'static + Send + for<'f, 'm> DeserializeRow<'f, 'm>,
    {
        let rows = self.session.query_iter(text, values).await.expect("rows");
        let rows = rows.rows_stream::<R>().expect("rows of this type");
        rows.try_collect().await.expect("all rows")
    }

    /// Runs a statement.
    ///
    /// # Panics
    /// If the server refuses it.
    pub async fn run(&self, text: &str, values: impl SerializeRow) {
        let outcome = self.session.query_unpaged(text, values).await;
        outcome.unwrap_or_else(|e| panic!("{text}: {e}"));
    }

    /// Runs a lightweight transaction. Returns whether it was applied, or why it failed.
    ///
    /// # Panics
    /// If the statement is not a lightweight transaction.
    pub async fn try_apply(&self, text: &str, values: impl SerializeRow) -> Result<bool, String> {
        let outcome = self.session.query_unpaged(text, values).await;
        let rows = outcome
            .map_err(|error| error.to_string())?
            .into_rows_result();
        let row = rows.expect("an answer").first_row::<Row>().expect("a row");
        let applied = row.columns[0].as_ref().and_then(CqlValue::as_boolean);
        Ok(applied.expect("whether it was applied"))
    }
}

/// A Redis connection.
#[derive(Debug)]
pub struct Redis(MultiplexedConnection);

impl Redis {
    /// Opens a connection.
    ///
    /// # Panics
    /// If Redis does not answer.
    pub async fn open() -> Self {
        let client = redis::Client::open(format!("redis://{}", servers::redis()));
        let client = client.expect("an address");
        let connection = client.get_multiplexed_async_connection().await;
        Self(connection.expect("a connection"))
    }

    /// Returns the sorted keys that begin and end with these bytes.
    ///
    /// # Panics
    /// If Redis does not answer.
    pub async fn keys(&mut self, begin: &str, end: &[u8]) -> Vec<Vec<u8>> {
        let (mut cursor, mut matching) = (0_u64, Vec::new());
        loop {
            let mut scan = redis::cmd("SCAN");
            scan.arg(cursor).arg("MATCH").arg(format!("{begin}*"));
            scan.arg("COUNT").arg(1_000);
            let page = scan.query_async(&mut self.0).await;
            let (next, keys): (u64, Vec<Vec<u8>>) = page.expect("keys");
            matching.extend(keys.into_iter().filter(|key| key.ends_with(end)));
            cursor = next;
            if cursor == 0 {
                matching.sort();
                matching.dedup();
                return matching;
            }
        }
    }

    /// Runs a command and returns its reply.
    ///
    /// # Panics
    /// If Redis refuses the command, or the reply has another type.
    pub async fn run_command<T: redis::FromRedisValue>(&mut self, name: &str, args: &[&[u8]]) -> T {
        let mut command = redis::cmd(name);
        for arg in args {
            command.arg(*arg);
        }
        let reply = command.query_async(&mut self.0).await;
        reply.unwrap_or_else(|e| panic!("{name}: {e}"))
    }
}
