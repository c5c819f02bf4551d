//! The stores of an installation: each behind its port, embedded or on a server.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::Result;
use crate::archive::Archive;
use crate::canon::CanonWrite;
use crate::embedded::DataFolder;
use crate::lease::Leases;
use crate::live::LiveWrite;
use crate::log::Log;
use crate::namespace::Namespace;
use crate::s3::{S3, S3Options};
use crate::views::ViewsWrite;

/// The stores of an installation.
#[derive(Debug, Clone)]
pub struct Stores {
    /// The log.
    pub log: Arc<dyn Log>,
    /// Live state.
    pub live: Arc<dyn LiveWrite>,
    /// Run records and batch rows.
    pub views: Arc<dyn ViewsWrite>,
    /// Entities.
    pub canon: Arc<dyn CanonWrite>,
    /// The archive.
    pub archive: Archive,
    /// Leases.
    pub leases: Arc<dyn Leases>,
}

/// Where the stores of an installation are: on a server where that is configured, else in the data
/// folder.
#[derive(Debug, Clone, Default)]
pub struct StoresOptions {
    /// The data folder.
    pub data_dir: PathBuf,
    /// What the installation is called.
    pub namespace: Namespace,
    /// The archive, if a bucket is named.
    pub s3: S3Options,
}

impl StoresOptions {
    /// The folder of the embedded stores: each installation has its own.
    #[must_use]
    pub fn folder(&self) -> PathBuf {
        self.data_dir.join(self.namespace.as_str())
    }

    /// Whether any store is embedded.
    #[must_use]
    pub const fn has_embedded(&self) -> bool {
        true
    }

    /// The servers that are configured.
    ///
    /// # Errors
    /// Options that can't be used.
    pub fn servers(&self) -> Result<Vec<Server>> {
        let mut servers = Vec::new();
        if !self.s3.bucket.is_empty() {
            servers.push(Server::S3(S3::new(&self.s3, &self.namespace)?));
        }
        Ok(servers)
    }
}

/// A server that holds one of the stores.
#[derive(Debug)]
pub enum Server {
    /// The archive.
    S3(S3),
}

impl Server {
    /// What it is for and what it is, as in `archive: S3`.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        match self {
            Self::S3(_) => "archive on S3",
        }
    }

    /// Makes there what is missing; answers what was made, in sentences.
    ///
    /// # Errors
    /// Those of the server.
    pub async fn migrate(&self) -> Result<Vec<String>> {
        match self {
            Self::S3(s3) => s3.migrate().await,
        }
    }

    /// What is wrong there, in sentences; nothing if all is well.
    ///
    /// # Errors
    /// Those of a server that can't be asked.
    pub async fn flaws(&self) -> Result<Vec<String>> {
        match self {
            Self::S3(s3) => s3.flaws().await,
        }
    }
}

impl Stores {
    /// Opens the stores of an installation.
    ///
    /// # Errors
    /// As [`Stores::embedded`], and those of the servers.
    pub async fn open(options: &StoresOptions) -> Result<Self> {
        let mut stores = Self::embedded(&options.folder()).await?;
        if !options.s3.bucket.is_empty() {
            stores.archive = S3::new(&options.s3, &options.namespace)?.archive();
        }
        Ok(stores)
    }

    /// Opens those in a data folder, which is made if it is not there. Several processes may do so at
    /// the same moment.
    ///
    /// # Errors
    /// [`crate::Error::Broken`] if the folder can't be made or written, or if a file in it is damaged
    /// or of a newer version; [`crate::Error::Unavailable`] if another process keeps it busy for too
    /// long.
    pub async fn embedded(folder: &Path) -> Result<Self> {
        let folder = DataFolder::open(folder)?;
        Ok(Self {
            log: Arc::new(folder.log().await?),
            live: Arc::new(folder.live().await?),
            views: Arc::new(folder.views().await?),
            canon: Arc::new(folder.canon().await?),
            archive: folder.archive()?,
            leases: Arc::new(folder.leases()),
        })
    }
}
