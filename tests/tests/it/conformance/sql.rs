//! PostgreSQL, and MySQL or MariaDB.

use std::sync::Arc;

use stores::canon_sql::{SqlCanon, SqlOptions};
use stores::namespace::Namespace;
use stores::{Result, Stores};
use tests::servers;

use super::Stage;
use super::embedded::Folder;

/// A schema of its own, and a folder for everything else.
struct Schema {
    options: SqlOptions,
    namespace: Namespace,
    folder: Folder,
}

fn postgres() -> SqlOptions {
    let url = format!("postgres://backstitch@{}/postgres", servers::postgres());
    SqlOptions::from_url(&url).expect("an address")
}

fn mariadb() -> SqlOptions {
    SqlOptions::from_url(&format!("mysql://backstitch@{}", servers::mariadb())).expect("an address")
}

impl Schema {
    async fn of(options: SqlOptions) -> Self {
        let namespace = servers::namespace();
        let made = SqlCanon::migrate(&options, &namespace).await;
        assert!(made.expect("a schema"), "the schema is new");
        Self {
            options,
            namespace,
            folder: Folder::set().await,
        }
    }

    async fn canon(&self) -> Result<SqlCanon> {
        SqlCanon::open(&self.options, &self.namespace).await
    }

    async fn ports(&self) -> Result<Stores> {
        Ok(Stores {
            canon: Arc::new(self.canon().await?),
            ..self.folder.ports().await?
        })
    }
}

struct Postgres(Schema);

impl Stage for Postgres {
    async fn set() -> Self {
        Self(Schema::of(postgres()).await)
    }

    async fn ports(&self) -> Result<Stores> {
        self.0.ports().await
    }

    async fn clear(self) -> Result<()> {
        SqlCanon::drop_schema(&self.0.options, &self.0.namespace).await
    }
}

struct MariaDb(Schema);

impl Stage for MariaDb {
    async fn set() -> Self {
        Self(Schema::of(mariadb()).await)
    }

    async fn ports(&self) -> Result<Stores> {
        self.0.ports().await
    }

    async fn clear(self) -> Result<()> {
        SqlCanon::drop_schema(&self.0.options, &self.0.namespace).await
    }
}

mod on_postgres {
    use super::*;

    crate::conformance::laws_of! { Postgres; canon canon_reads canon_connect }

    #[test]
    fn entities_follow_the_model() {
        crate::conformance::entities_follow_the_model::<Postgres>(12);
    }
}

mod on_mariadb {
    use super::*;

    crate::conformance::laws_of! { MariaDb; canon canon_reads canon_connect }

    #[test]
    fn entities_follow_the_model() {
        crate::conformance::entities_follow_the_model::<MariaDb>(12);
    }
}
