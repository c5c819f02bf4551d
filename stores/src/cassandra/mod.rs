//! Cassandra or ScyllaDB: batch rows, run records, achievements, records and leases.
//!
//! | table | contents | changed by |
//! |---|---|---|
//! | `runs` | run records, one partition per source | lightweight transactions |
//! | `views` | the tables of each view | lightweight transactions |
//! | `leases` | leases, with a time to live | lightweight transactions |
//! | `rows_*` | rows of an aggregate view | writes with the stamp of their run |
//! | `heads_*` | heads of boards | lightweight transactions |
//! | `nodes_*`, `stale_*` | nodes of boards, and a list of those that may be deleted | writes with the stamp of their run |
//! | `achievements_of_*`, `achievement_years`, `told` | achievements of athletes | idempotent plain writes |
//! | `records` | erasures, reconciliations, alerts, approvals, corrections, schedules | lightweight transactions |
//! | `schema_migrations` | applied migrations | lightweight transactions |
//!
//! A table is changed in only one of these ways: a lightweight transaction takes its write time
//! from the servers, and would hide every write with a stamp.
//!
//! Only `migrate` creates the keyspace. Required rights: for `migrate`, CREATE on all keyspaces;
//! later CREATE, DROP, MODIFY and SELECT on the keyspace, and SELECT on `system_schema`.

mod achievements;
mod centers;
mod consistency;
mod counts;
mod editions;
mod lease;
mod limiter;
mod migrations;
mod records;
mod records_move;
mod rows;
mod runs;
mod session;
mod tables;
mod view_rows;
mod view_scan;
mod views;

use std::sync::Arc;

use futures::future::BoxFuture;
use scylla::statement::Consistency;

use self::session::{CheckedKeyspace, Cql};
use crate::Result;
use crate::namespace::Namespace;
use crate::stores::ViewStores;

pub use achievements::CassandraAchievements;
pub use counts::CassandraCounts;
pub use lease::CassandraLeases;
pub use records::CassandraRecords;
pub use views::CassandraViews;

pub use crate::options::CassandraOptions;

/// A keyspace and its stores.
#[derive(Debug, Clone)]
pub struct Cassandra {
    cql: Arc<Cql>,
    pub(crate) options: CassandraOptions,
    pub(crate) namespace: Namespace,
}

impl Cassandra {
    /// Creates the stores without connecting. The first request connects, and may fail as
    /// [`Self::open`] does.
    #[must_use]
    pub fn new(options: &CassandraOptions, namespace: &Namespace) -> Self {
        let keyspace = CheckedKeyspace {
            name: keyspace(namespace),
            check: keyspace_diagnostics,
        };
        Self {
            cql: Arc::new(Cql::new(options, Some(keyspace))),
            options: options.clone(),
            namespace: namespace.clone(),
        }
    }

    /// Connects, without creating anything.
    ///
    /// # Errors
    /// [`crate::Error::Unavailable`] if no node answers. [`crate::Error::Broken`] if the options
    /// are invalid, or the keyspace is missing, outdated, or changed; the message says what to do.
    pub async fn open(options: &CassandraOptions, namespace: &Namespace) -> Result<Self> {
        let this = Self::new(options, namespace);
        this.cql.opened().await?;
        Ok(this)
    }

    /// Returns a copy that does not check the keyspace, which may not exist.
    fn unchecked(&self) -> Self {
        Self {
            cql: Arc::new(Cql::new(&self.options, None)),
            ..self.clone()
        }
    }

    /// Creates all stores with one session.
    pub(crate) fn stores(&self) -> ViewStores {
        let records = Arc::new(self.records());
        ViewStores {
            views: Arc::new(self.views()),
            achievements: Arc::new(self.achievements()),
            counts: Arc::new(self.counts()),
            leases: Arc::new(self.leases()),
            erasures: Arc::clone(&records) as _,
            records,
        }
    }

    /// Creates the store of batch rows and run records.
    #[must_use]
    pub fn views(&self) -> CassandraViews {
        CassandraViews::new(Arc::clone(&self.cql), self.leases())
    }

    /// Creates the store of achievements.
    #[must_use]
    pub fn achievements(&self) -> CassandraAchievements {
        CassandraAchievements::new(Arc::clone(&self.cql))
    }

    /// Creates the store of counts by day.
    #[must_use]
    pub fn counts(&self) -> CassandraCounts {
        CassandraCounts::new(Arc::clone(&self.cql))
    }

    /// Creates the record store.
    #[must_use]
    pub fn records(&self) -> CassandraRecords {
        CassandraRecords::new(Arc::clone(&self.cql))
    }

    /// Creates the leases.
    #[must_use]
    pub fn leases(&self) -> CassandraLeases {
        CassandraLeases::new(Arc::clone(&self.cql), &self.options)
    }

    /// Creates or upgrades the keyspace and its tables, and returns whether anything changed.
    /// Several processes may call it at once.
    ///
    /// # Errors
    /// [`crate::Error::Unavailable`] if no node answers, or another process migrates for too long.
    /// [`crate::Error::Broken`] if the user lacks rights, or an applied migration was changed.
    pub async fn migrate(options: &CassandraOptions, namespace: &Namespace) -> Result<bool> {
        let this = Self::new(options, namespace).unchecked();
        let leases = this.leases();
        migrations::migrate(&this.cql, &leases, options, &keyspace(namespace)).await
    }

    /// Returns problems of the cluster and the keyspace, one sentence each.
    ///
    /// # Errors
    /// [`crate::Error::Unavailable`] if no node answers, [`crate::Error::Broken`] if the options
    /// are invalid.
    pub async fn diagnostics(
        options: &CassandraOptions,
        namespace: &Namespace,
    ) -> Result<Vec<String>> {
        let this = Self::new(options, namespace).unchecked();
        let mut diagnostics = keyspace_diagnostics(&this.cql, &keyspace(namespace)).await?;
        let server = this.cql.retry_policy().server();
        if matches!(
            this.cql.consistency()?,
            Consistency::One | Consistency::LocalOne
        ) {
            diagnostics.push(format!(
                "{server}: with the consistency {:?}, reads may miss earlier writes; set \
                 `consistency` to local_quorum",
                options.consistency
            ));
        }
        let state = this.cql.session().await?.get_cluster_state();
        let nodes = state.get_nodes_info();
        let local = options.local_datacenter.as_str();
        let in_center = |center: &str| {
            nodes
                .iter()
                .any(|node| node.datacenter.as_deref() == Some(center))
        };
        if !local.is_empty() && !in_center(local) {
            diagnostics.push(format!(
                "{server}: no node is in the data center {local:?} of `local_datacenter`"
            ));
        }
        for node in nodes.iter().filter(|node| !node.is_connected()) {
            diagnostics.push(format!(
                "{server}: the node {} does not answer",
                node.address
            ));
        }
        Ok(diagnostics)
    }

    /// Deletes the keyspace and all its contents.
    ///
    /// # Errors
    /// [`crate::Error::Unavailable`] if no node answers, [`crate::Error::Broken`] if the user lacks
    /// rights.
    pub async fn remove(options: &CassandraOptions, namespace: &Namespace) -> Result<()> {
        let this = Self::new(options, namespace).unchecked();
        let keyspace = keyspace(namespace);
        let operation = format!("deleting the keyspace {keyspace}");
        let text = format!("DROP KEYSPACE IF EXISTS {keyspace}");
        this.cql.run_ddl(&operation, &text).await
    }
}

fn keyspace(namespace: &Namespace) -> String {
    namespace.identifier("backstitch")
}

/// Selects a keyspace for the session, and returns its problems.
fn keyspace_diagnostics<'a>(cql: &'a Cql, keyspace: &'a str) -> BoxFuture<'a, Result<Vec<String>>> {
    Box::pin(async move {
        if !cql.use_keyspace(keyspace).await? {
            return Ok(vec![format!(
                "the keyspace {keyspace} does not exist; run `backstitch migrate`"
            )]);
        }
        let mut diagnostics = migrations::diagnostics(cql, keyspace).await?;
        diagnostics.extend(centers::find_consistency_problem(cql, keyspace).await?);
        Ok(diagnostics)
    })
}
