//! PostgreSQL, and MySQL or MariaDB.

mod apps;
mod concurrency;
mod deleted;
mod dumps;
mod faults;
mod missed_changes;
mod tls;

use std::sync::Arc;

use stores::namespace::Namespace;
use stores::options::SqlServer;
use stores::sql::{ApiKeyStore, EntityStore, SqlOptions};
use stores::{Result, Stores};
use tests::servers;

use super::Stage;
use super::embedded::Folder;

/// The tested servers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Server {
    Postgres,
    MariaDb,
}

use Server::{MariaDb, Postgres};

impl Server {
    fn options(self) -> SqlOptions {
        let (server, address, database) = match self {
            Postgres => (SqlServer::Postgres, servers::postgres(), "postgres"),
            MariaDb => (SqlServer::MySql, servers::mariadb(), ""),
        };
        let (host, port) = address.rsplit_once(':').expect("a host and a port");
        SqlOptions {
            server,
            host: host.to_owned(),
            port: port.parse().expect("a port"),
            database: database.to_owned(),
            user: "backstitch".to_owned(),
            ..SqlOptions::default()
        }
    }

    /// Runs statements of an app or an administrator.
    fn run(self, statements: &str) -> std::result::Result<String, String> {
        match self {
            Postgres => servers::run_on_postgres(statements),
            MariaDb => servers::run_on_mariadb(statements),
        }
    }

    /// A session of an app.
    fn session(self) -> servers::Session {
        match self {
            Postgres => servers::session_on_postgres(),
            MariaDb => servers::session_on_mariadb(),
        }
    }

    /// Drops a schema. It stays if a failed test still holds a lock on it.
    fn drop_schema(self, namespace: &Namespace) {
        let schema = namespace.identifier("backstitch");
        let _dropped = match self {
            Postgres => self.run(&format!(
                "SET lock_timeout TO '5s'; DROP SCHEMA IF EXISTS {schema} CASCADE"
            )),
            MariaDb => self.run(&format!(
                "SET lock_wait_timeout = 5; DROP DATABASE IF EXISTS {schema}"
            )),
        };
    }
}

/// A schema of its own.
struct Schema {
    server: Server,
    options: SqlOptions,
    namespace: Namespace,
}

impl Schema {
    async fn new(server: Server) -> Self {
        let (options, namespace) = (server.options(), servers::namespace());
        let created = EntityStore::migrate(&options, &namespace).await;
        assert!(created.expect("a schema"), "the schema is new");
        Self {
            server,
            options,
            namespace,
        }
    }

    fn name(&self) -> String {
        self.namespace.identifier("backstitch")
    }

    async fn open_store(&self) -> Result<EntityStore> {
        EntityStore::open(&self.options, &self.namespace).await
    }

    /// The statement that selects the schema in a session.
    fn select_statement(&self) -> String {
        let schema = self.name();
        match self.server {
            Postgres => format!("SET search_path TO {schema}, public;\n"),
            MariaDb => format!("USE {schema};\n"),
        }
    }

    /// Runs statements of an app in the schema.
    fn run(&self, statements: &str) -> String {
        let output = self.server.run(&(self.select_statement() + statements));
        output.unwrap_or_else(|error| panic!("{error}"))
    }
}

impl Drop for Schema {
    fn drop(&mut self) {
        self.server.drop_schema(&self.namespace);
    }
}

/// A schema, with a data folder for the other stores.
struct StoreStage(Schema, Folder);

impl StoreStage {
    async fn create(server: Server) -> Self {
        Self(Schema::new(server).await, Folder::create().await)
    }

    async fn ports(&self) -> Result<Stores> {
        let entity_store = Arc::new(self.0.open_store().await?);
        Ok(Stores {
            entities: Arc::clone(&entity_store) as _,
            keys: Arc::new(ApiKeyStore::on_server(&self.0.options, &self.0.namespace)),
            entity_eraser: entity_store,
            ..self.1.ports().await?
        })
    }

    /// On a blocking thread, so that tasks of dropped dumps can end meanwhile.
    async fn clear(self) {
        let dropping = tokio::task::spawn_blocking(move || drop(self));
        dropping.await.expect("the task ends");
    }
}

struct OnPostgres(StoreStage);

impl Stage for OnPostgres {
    async fn create() -> Self {
        Self(StoreStage::create(Postgres).await)
    }

    async fn ports(&self) -> Result<Stores> {
        self.0.ports().await
    }

    async fn clear(self) -> Result<()> {
        self.0.clear().await;
        Ok(())
    }
}

struct OnMariaDb(StoreStage);

impl Stage for OnMariaDb {
    async fn create() -> Self {
        Self(StoreStage::create(MariaDb).await)
    }

    async fn ports(&self) -> Result<Stores> {
        self.0.ports().await
    }

    async fn clear(self) -> Result<()> {
        self.0.clear().await;
        Ok(())
    }
}

mod postgres {
    use super::OnPostgres;

    crate::conformance::laws_of! { OnPostgres; entities entity_reads entity_connections entity_admin entity_recounts entity_erasure entity_expiry entity_names keys }

    #[test]
    fn entities_follow_the_model() {
        crate::conformance::entities_follow_the_model::<OnPostgres>(12);
    }
}

mod mariadb {
    use super::OnMariaDb;

    crate::conformance::laws_of! { OnMariaDb; entities entity_reads entity_connections entity_admin entity_recounts entity_erasure entity_expiry entity_names keys }

    #[test]
    fn entities_follow_the_model() {
        crate::conformance::entities_follow_the_model::<OnMariaDb>(12);
    }
}

/// One test on each server.
macro_rules! on_both {
    ($($test:ident)*) => {
        mod on_postgres {
            $(
                #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                async fn $test() -> stores::Result<()> {
                    super::$test(super::super::Server::Postgres).await
                }
            )*
        }
        mod on_mariadb {
            $(
                #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                async fn $test() -> stores::Result<()> {
                    super::$test(super::super::Server::MariaDb).await
                }
            )*
        }
    };
}

use on_both;
