//! The stores of an installation: each behind its port, embedded or on a server.

use std::path::Path;
use std::sync::Arc;

use crate::Result;
use crate::archive::Archive;
use crate::canon::CanonWrite;
use crate::embedded::DataFolder;
use crate::lease::Leases;
use crate::live::LiveWrite;
use crate::log::Log;
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

impl Stores {
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
