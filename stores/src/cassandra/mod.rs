//! Cassandra, or ScyllaDB: batch rows, run records, achievements and leases.
//!
//! | table | holds | changed by |
//! |---|---|---|
//! | `runs` | run records, a partition for each source | lightweight transactions |
//! | `views` | which tables a view has | lightweight transactions |
//! | `leases` | leases, with a time to live | lightweight transactions |
//! | `rows_*` | the rows of a tally | writes with the stamp of their run |
//! | `heads_*` | the heads of boards | lightweight transactions |
//! | `nodes_*`, `stale_*` | the nodes of boards, and where some may be deleted | writes with the stamp of their run |
//! | `achievements_of_*`, `achievement_years`, `told` | what athletes have achieved | plain writes that may be repeated |
//! | `records` | erasures, reconciliations, alerts, approvals, corrections, schedules | lightweight transactions |
//! | `schema_migrations` | which migrations are applied | lightweight transactions |
//!
//! A table is changed in one of the two ways and never in both: a lightweight transaction takes its
//! time from the servers, and would hide every write with a stamp.
//!
//! `migrate` makes the keyspace; nothing else does. Rights that are needed: for `migrate` CREATE on all
//! keyspaces, later CREATE, DROP, MODIFY and SELECT on the keyspace, and SELECT on `system_schema`.

mod achievements;
mod centers;
mod consistency;
mod counts;
mod editions;
mod flight;
mod lease;
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

use scylla::statement::Consistency;

use self::session::Cql;
use crate::Result;
use crate::namespace::Namespace;
use crate::stores::ViewStores;

pub use achievements::CassandraAchievements;
pub use counts::CassandraCounts;
pub use lease::CassandraLeases;
pub use records::CassandraRecords;
pub use views::CassandraViews;

pub use crate::options::CassandraOptions;

/// A keyspace, with what is stored in it.
#[derive(Debug, Clone)]
pub struct Cassandra {
    cql: Arc<Cql>,
    pub(crate) options: CassandraOptions,
    pub(crate) namespace: Namespace,
}

impl Cassandra {
    /// The keyspace of an installation. It connects with the first request, which fails as [`Self::open`] does.
    #[must_use]
    pub fn new(options: &CassandraOptions, namespace: &Namespace) -> Self {
        Self {
            cql: Arc::new(Cql::new(options, Some(keyspace(namespace)))),
            options: options.clone(),
            namespace: namespace.clone(),
        }
    }

    /// Connects. Nothing is made.
    ///
    /// # Errors
    /// [`crate::Error::Unavailable`] if no node answers, [`crate::Error::Broken`] for options that can't be used, and
    /// where the keyspace is missing, behind, or not what it should be: the message says what to do.
    pub async fn open(options: &CassandraOptions, namespace: &Namespace) -> Result<Self> {
        let this = Self::new(options, namespace);
        this.cql.opened().await?;
        Ok(this)
    }

    /// The same without a check of the keyspace, which may not be there.
    fn unchecked(&self) -> Self {
        Self {
            cql: Arc::new(Cql::new(&self.options, None)),
            ..self.clone()
        }
    }

    /// Its stores, which share a session.
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

    /// Batch rows and run records.
    #[must_use]
    pub fn views(&self) -> CassandraViews {
        CassandraViews::new(Arc::clone(&self.cql), self.leases())
    }

    /// What athletes have achieved.
    #[must_use]
    pub fn achievements(&self) -> CassandraAchievements {
        CassandraAchievements::new(Arc::clone(&self.cql))
    }

    /// Counts by day.
    #[must_use]
    pub fn counts(&self) -> CassandraCounts {
        CassandraCounts::new(Arc::clone(&self.cql))
    }

    /// Records.
    #[must_use]
    pub fn records(&self) -> CassandraRecords {
        CassandraRecords::new(Arc::clone(&self.cql))
    }

    /// Leases.
    #[must_use]
    pub fn leases(&self) -> CassandraLeases {
        CassandraLeases::new(Arc::clone(&self.cql), &self.options)
    }

    /// Makes the keyspace and its tables, or brings them up to date; answers whether there was anything
    /// to do. Several may do so at once.
    ///
    /// # Errors
    /// [`crate::Error::Unavailable`] if no node answers or somebody else is at it for too long,
    /// [`crate::Error::Broken`] if the user may not, or a migration was changed after it was applied.
    pub async fn migrate(options: &CassandraOptions, namespace: &Namespace) -> Result<bool> {
        let this = Self::new(options, namespace).unchecked();
        let leases = this.leases();
        migrations::migrate(&this.cql, &leases, options, &keyspace(namespace)).await
    }

    /// What is wrong with the cluster and the keyspace, in sentences; nothing if all is well.
    ///
    /// # Errors
    /// [`crate::Error::Unavailable`] if no node answers, [`crate::Error::Broken`] for options that can't be used.
    pub async fn flaws(options: &CassandraOptions, namespace: &Namespace) -> Result<Vec<String>> {
        let this = Self::new(options, namespace).unchecked();
        let mut flaws = keyspace_flaws(&this.cql, &keyspace(namespace)).await?;
        let server = this.cql.patience().server();
        if matches!(
            this.cql.consistency()?,
            Consistency::One | Consistency::LocalOne
        ) {
            flaws.push(format!(
                "{server}: with the consistency {:?} reads may miss what was written; set \
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
            flaws.push(format!(
                "{server}: no node is in the data center {local:?} of `local_datacenter`"
            ));
        }
        for node in nodes.iter().filter(|node| !node.is_connected()) {
            flaws.push(format!(
                "{server}: the node {} does not answer",
                node.address
            ));
        }
        Ok(flaws)
    }

    /// Deletes the keyspace and everything that is stored in it.
    ///
    /// # Errors
    /// [`crate::Error::Unavailable`] if no node answers, [`crate::Error::Broken`] if the user may not.
    pub async fn remove(options: &CassandraOptions, namespace: &Namespace) -> Result<()> {
        let this = Self::new(options, namespace).unchecked();
        let keyspace = keyspace(namespace);
        let doing = format!("deleting the keyspace {keyspace}");
        let text = format!("DROP KEYSPACE IF EXISTS {keyspace}");
        this.cql.define(&doing, &text).await
    }
}

fn keyspace(namespace: &Namespace) -> String {
    namespace.identifier("backstitch")
}

/// What is wrong with a keyspace, which the session uses from here on.
async fn keyspace_flaws(cql: &Cql, keyspace: &str) -> Result<Vec<String>> {
    if !cql.use_keyspace(keyspace).await? {
        return Ok(vec![format!(
            "there is no keyspace {keyspace}: run `backstitch migrate`"
        )]);
    }
    let mut flaws = migrations::flaws(cql, keyspace).await?;
    flaws.extend(centers::flaw(cql, keyspace).await?);
    Ok(flaws)
}
