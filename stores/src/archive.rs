//! The archive port: Parquet files and their manifests in an object store.
//!
//! A file counts only once a manifest names it, and a manifest is put create-only and durably: so
//! two writers cannot both write the same one, and what a crash left behind is never read.

use std::path::{Path as FsPath, PathBuf};
use std::sync::Arc;

use arrow::array::RecordBatch;
use bytes::Bytes;
use futures::stream::BoxStream;
use futures::{StreamExt, TryStreamExt};
use object_store::local::LocalFileSystem;
use object_store::path::Path;
use object_store::{ObjectStore, ObjectStoreExt};
use parquet::arrow::ParquetRecordBatchStreamBuilder;
use parquet::errors::ParquetError;

use crate::parquet_file::ParquetObject;
use crate::{Error, Result, durable};

/// What helps when a file of the archive is damaged: everything in it is made from the log.
pub const REMEDY: &str = "Restore it from a copy; or, if the log still holds everything, stop every process of this data folder and move the archive folder away: the next batch run makes it again from the log";

/// Whether a create-only put made the object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Created {
    /// It did.
    New,
    /// The object was there already and stayed as it is.
    Exists,
}

/// An object store with durable puts.
#[derive(Debug, Clone)]
pub struct Archive {
    store: Arc<dyn ObjectStore>,
    /// The folder of a local store, whose client does not sync what it writes.
    folder: PathBuf,
}

impl Archive {
    /// An archive in a local folder, which is made if it is not there.
    ///
    /// # Errors
    /// [`Error::Broken`] if the folder can't be made or is no folder.
    pub fn local(folder: &FsPath) -> Result<Self> {
        let what = || format!("archive folder {}", folder.display());
        std::fs::create_dir_all(folder).map_err(|e| Error::broken(what(), e))?;
        let folder = folder
            .canonicalize()
            .map_err(|e| Error::broken(what(), e))?;
        let store = LocalFileSystem::new_with_prefix(&folder)
            .map_err(|e| Error::broken(what(), e))?
            .with_automatic_cleanup(false);
        Ok(Self {
            store: Arc::new(store),
            folder,
        })
    }

    /// Writes an object, durably when it answers; one that is there is replaced.
    ///
    /// # Errors
    /// [`Error::Broken`] if it can't be written.
    pub async fn put(&self, path: &str, bytes: Bytes) -> Result<()> {
        self.put_with(path, bytes, true).await?;
        Ok(())
    }

    /// Writes an object that is not there yet, durably when it answers.
    ///
    /// # Errors
    /// [`Error::Broken`] if it can't be written.
    pub async fn create(&self, path: &str, bytes: Bytes) -> Result<Created> {
        self.put_with(path, bytes, false).await
    }

    /// The bytes of an object, or nothing if there is none.
    ///
    /// # Errors
    /// [`Error::Broken`] if it is there and can't be read.
    pub async fn get(&self, path: &str) -> Result<Option<Bytes>> {
        let found = match self.store.get(&Path::from(path)).await {
            Ok(found) => found.bytes().await,
            Err(error) => Err(error),
        };
        match found {
            Ok(bytes) => Ok(Some(bytes)),
            Err(object_store::Error::NotFound { .. }) => Ok(None),
            Err(error) => Err(Error::broken(format!("reading {path}"), error)),
        }
    }

    /// The rows of some row groups of a Parquet file, in the order in which they are named, at most
    /// `batch_rows` at a time.
    ///
    /// # Errors
    /// [`Error::Broken`] if the file is missing, damaged or can't be read.
    pub async fn rows(
        &self,
        path: &str,
        row_groups: Vec<usize>,
        batch_rows: usize,
    ) -> Result<BoxStream<'static, Result<RecordBatch>>> {
        let what = path.to_owned();
        let reader = ParquetObject::new(Arc::clone(&self.store), Path::from(path));
        let stream = ParquetRecordBatchStreamBuilder::new(reader)
            .await
            .and_then(|builder| {
                builder
                    .with_row_groups(row_groups)
                    .with_batch_size(batch_rows)
                    .build()
            })
            .map_err(|error| unreadable(&what, error))?;
        Ok(stream
            .map_err(move |error| unreadable(&what, error))
            .boxed())
    }

    /// The paths of all objects whose path begins with the folder `prefix`, in their order.
    ///
    /// # Errors
    /// [`Error::Broken`] if they can't be listed.
    pub async fn list(&self, prefix: &str) -> Result<Vec<String>> {
        let mut paths: Vec<String> = self
            .store
            .list(Some(&Path::from(prefix)))
            .map_ok(|object| object.location.to_string())
            .try_collect()
            .await
            .map_err(|error| Error::broken(format!("listing {prefix}"), error))?;
        paths.sort_unstable();
        Ok(paths)
    }

    /// Deletes an object; one that is not there is no error.
    ///
    /// # Errors
    /// [`Error::Broken`] if it is there and can't be deleted.
    pub async fn delete(&self, path: &str) -> Result<()> {
        match self.store.delete(&Path::from(path)).await {
            Ok(()) | Err(object_store::Error::NotFound { .. }) => Ok(()),
            Err(error) => Err(Error::broken(format!("deleting {path}"), error)),
        }
    }

    /// Deletes what writers left behind that died long ago in the middle of a put.
    ///
    /// # Errors
    /// [`Error::Broken`] if it can't be listed or deleted.
    pub async fn tidy(&self) -> Result<()> {
        let (doing, folder) = ("tidying the archive", self.folder.clone());
        tokio::task::spawn_blocking(move || durable::remove_abandoned(&folder))
            .await
            .map_err(|error| Error::broken(doing, error))?
            .map_err(|error| Error::broken(doing, error))
    }

    async fn put_with(&self, path: &str, bytes: Bytes, replace: bool) -> Result<Created> {
        let doing = || format!("writing {path}");
        let root = self.folder.clone();
        let file = root.join(Path::from(path).as_ref());
        tokio::task::spawn_blocking(move || durable::put(&root, &file, &bytes, replace))
            .await
            .map_err(|error| Error::broken(doing(), error))?
            .map_err(|error| Error::broken(doing(), error))
    }
}

fn unreadable(path: &str, error: ParquetError) -> Error {
    match error {
        ParquetError::External(error)
            if error
                .downcast_ref::<object_store::Error>()
                .is_some_and(|error| !matches!(error, object_store::Error::NotFound { .. })) =>
        {
            Error::broken(format!("reading {path}"), error)
        }
        error => Error::DamagedFile {
            path: path.to_owned(),
            why: format!("{error}. {REMEDY}"),
        },
    }
}
