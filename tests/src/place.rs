//! Where an installation of processes is: embedded in a data folder, or on servers.

use std::path::{Path, PathBuf};

use schemas::source::Source;
use stores::{Stores, StoresOptions};
use tempfile::TempDir;

use crate::process::{CONFIG, command, run_with_input, succeeded};
use crate::servers::{self, Addresses};
use crate::world::World;

/// How long a server may take for a part of a migration, in milliseconds.
const MIGRATE_MS: &str = "60000";

/// A folder for an installation, with what its processes are told.
#[derive(Debug)]
pub struct Place {
    folder: TempDir,
    data: PathBuf,
    options: Option<StoresOptions>,
    partitions: u32,
}

impl Drop for Place {
    fn drop(&mut self) {
        if let Some(options) = &self.options {
            servers::forget(options);
        }
    }
}

impl Place {
    /// An installation in a data folder.
    ///
    /// # Panics
    /// If there can be no folder.
    #[must_use]
    pub fn embedded() -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let data = folder.path().join("data");
        Self {
            folder,
            data,
            options: None,
            partitions: 2,
        }
    }

    /// An installation on servers, migrated.
    ///
    /// # Panics
    /// If a server is not there.
    #[must_use]
    pub fn on_servers() -> Self {
        let at = Addresses::default();
        Self::on_these(&at, "")
    }

    /// An installation on servers, migrated; `more` are lines of its configuration.
    ///
    /// # Panics
    /// If a server is not there.
    #[must_use]
    pub fn on_these(at: &Addresses, more: &str) -> Self {
        Self::with_partitions(2, at, more)
    }

    /// An installation on servers, migrated, whose topics have so many partitions.
    ///
    /// # Panics
    /// If a server is not there.
    #[must_use]
    pub fn with_partitions(partitions: u32, at: &Addresses, more: &str) -> Self {
        let mut place = Self::embedded();
        place.partitions = partitions;
        place.options = Some(servers::options(&place.data, at));
        std::fs::create_dir_all(&place.data).expect("a folder");
        place.configure(CONFIG, at, more);
        place.migrate();
        place
    }

    /// Makes everything, with more patience than a test may have with what it tries.
    fn migrate(&self) {
        let args = ["migrate"];
        let mut migrate = command(&self.data, &args);
        for server in ["CASSANDRA", "DATABASE", "S3"] {
            for limit in ["CONNECT", "REQUEST", "RETRY"] {
                let name = format!("BACKSTITCH__{server}__{limit}_TIMEOUT_MS");
                migrate.env(name, MIGRATE_MS);
            }
        }
        succeeded(&mut migrate, &args);
    }

    /// Writes one more configuration of an installation on servers, for processes that reach them
    /// elsewhere.
    ///
    /// # Panics
    /// If it can't be written, or the installation is an embedded one.
    pub fn configure(&self, name: &str, at: &Addresses, more: &str) {
        let options = self.options.as_ref().expect("servers");
        let config = servers::configuration(&options.namespace, at, self.partitions) + more;
        std::fs::write(self.data.join(name), config).expect("a configuration");
    }

    /// The data folder.
    #[must_use]
    pub fn data(&self) -> &Path {
        &self.data
    }

    /// Whether it is embedded in its data folder.
    #[must_use]
    pub const fn is_embedded(&self) -> bool {
        self.options.is_none()
    }

    /// What its servers are told.
    ///
    /// # Panics
    /// If the installation is an embedded one.
    #[must_use]
    pub const fn options(&self) -> &StoresOptions {
        self.options.as_ref().expect("servers")
    }

    /// What the topic of a source is called on Kafka.
    ///
    /// # Panics
    /// If the installation is an embedded one.
    #[must_use]
    pub fn topic(&self, source: Source) -> String {
        self.options().namespace.topic(source.topic())
    }

    /// Ingests lines of a source.
    ///
    /// # Panics
    /// If the command fails.
    pub fn ingest(&self, source: &str, lines: &str) {
        let output = run_with_input(self.data(), &["ingest", source, "-"], lines.as_bytes());
        assert!(output.status.success(), "{output:?}");
    }

    /// A folder beside it.
    #[must_use]
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// The same installation in this process.
    ///
    /// # Panics
    /// If a store can't be opened.
    pub async fn world(&self) -> World {
        let Some(options) = &self.options else {
            return World::open(&self.data).await;
        };
        let stores = Stores::open(options).await.expect("the stores");
        World::of_servers(&self.data, stores, options.namespace.clone())
    }
}
