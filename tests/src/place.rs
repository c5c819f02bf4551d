//! Where an installation of processes is: embedded in a data folder, or on servers.

use std::path::{Path, PathBuf};

use stores::{Stores, StoresOptions};
use tempfile::TempDir;

use crate::process::{CONFIG, done};
use crate::servers;
use crate::world::World;

/// A folder for an installation, with what its processes are told.
#[derive(Debug)]
pub struct Place {
    folder: TempDir,
    data: PathBuf,
    options: Option<StoresOptions>,
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
        }
    }

    /// An installation on servers, migrated.
    ///
    /// # Panics
    /// If a server is not there.
    #[must_use]
    pub fn on_servers() -> Self {
        let mut place = Self::embedded();
        let options = servers::options(&place.data);
        std::fs::create_dir_all(&place.data).expect("a folder");
        let config = servers::configuration(&options.namespace);
        std::fs::write(place.data.join(CONFIG), config).expect("a configuration");
        place.options = Some(options);
        done(&place.data, &["migrate"]);
        place
    }

    /// The data folder.
    #[must_use]
    pub fn data(&self) -> &Path {
        &self.data
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
