//! Installations run by processes: embedded in a data folder, or on servers.

use std::path::{Path, PathBuf};

use schemas::source::Source;
use stores::{Stores, StoresOptions};
use tempfile::TempDir;

use crate::process::{CONFIG, check_success, command, run_with_input};
use crate::servers::{self, Addresses};
use crate::world::World;

/// Server timeout during a migration, in milliseconds.
const MIGRATE_MS: &str = "60000";

/// A folder of an installation, with the configuration of its processes.
#[derive(Debug)]
pub struct Installation {
    folder: TempDir,
    data: PathBuf,
    options: Option<StoresOptions>,
    partitions: u32,
}

impl Drop for Installation {
    fn drop(&mut self) {
        if let Some(options) = &self.options {
            servers::delete_installation(options);
        }
    }
}

impl Installation {
    /// Creates an installation in a data folder.
    ///
    /// # Panics
    /// If the folder cannot be created.
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

    /// Creates and migrates an installation on servers.
    ///
    /// # Panics
    /// If a server is unavailable.
    #[must_use]
    pub fn on_servers() -> Self {
        let addresses = Addresses::default();
        Self::with_addresses(&addresses, "")
    }

    /// Creates and migrates an installation on servers; `more` is appended to its configuration.
    ///
    /// # Panics
    /// If a server is unavailable.
    #[must_use]
    pub fn with_addresses(addresses: &Addresses, extra_config: &str) -> Self {
        Self::with_partitions(2, addresses, extra_config)
    }

    /// Creates and migrates an installation on servers with this many partitions in each topic.
    ///
    /// # Panics
    /// If a server is unavailable.
    #[must_use]
    pub fn with_partitions(partitions: u32, addresses: &Addresses, extra_config: &str) -> Self {
        let mut installation = Self::embedded();
        installation.partitions = partitions;
        installation.options = Some(servers::options(&installation.data, addresses));
        std::fs::create_dir_all(&installation.data).expect("a folder");
        installation.configure(CONFIG, addresses, extra_config);
        installation.migrate();
        installation
    }

    /// Creates all tables and topics, with a longer timeout than the configuration under test has.
    fn migrate(&self) {
        let args = ["migrate"];
        let mut migrate = command(&self.data, &args);
        for server in ["CASSANDRA", "DATABASE", "S3"] {
            for limit in ["CONNECT", "REQUEST", "RETRY"] {
                let name = format!("BACKSTITCH__{server}__{limit}_TIMEOUT_MS");
                migrate.env(name, MIGRATE_MS);
            }
        }
        check_success(&mut migrate, &args);
    }

    /// Writes another configuration of an installation on servers, for processes that reach them at
    /// other addresses.
    ///
    /// # Panics
    /// If it cannot be written, or the installation is embedded.
    pub fn configure(&self, name: &str, addresses: &Addresses, extra_config: &str) {
        let options = self.options.as_ref().expect("servers");
        let config =
            servers::configuration(&options.namespace, addresses, self.partitions) + extra_config;
        std::fs::write(self.data.join(name), config).expect("a configuration");
    }

    /// Returns the data folder.
    #[must_use]
    pub fn data(&self) -> &Path {
        &self.data
    }

    /// Returns whether it is embedded in its data folder.
    #[must_use]
    pub const fn is_embedded(&self) -> bool {
        self.options.is_none()
    }

    /// Returns the options of its stores.
    ///
    /// # Panics
    /// If the installation is embedded.
    #[must_use]
    pub const fn options(&self) -> &StoresOptions {
        self.options.as_ref().expect("servers")
    }

    /// Returns the name of a source's Kafka topic.
    ///
    /// # Panics
    /// If the installation is embedded.
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

    /// Returns a folder for other files.
    #[must_use]
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Opens the same installation in this process.
    ///
    /// # Panics
    /// If a store cannot be opened.
    pub async fn world(&self) -> World {
        let Some(options) = &self.options else {
            return World::open(&self.data).await;
        };
        let stores = Stores::open(options).await.expect("the stores");
        World::open_on_servers(&self.data, stores, options.namespace.clone())
    }
}
