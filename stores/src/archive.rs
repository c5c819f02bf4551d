//! The archive port: Parquet files and their manifests in an object store.
//!
//! A file counts only after a manifest names it. A manifest is created durably and never replaced.
//! So two writers can't both write the same one, and leftovers of a crash are never read.

use std::path::{Path as FsPath, PathBuf};
use std::sync::Arc;

use arrow::array::RecordBatch;
use bytes::Bytes;
use futures::stream::BoxStream;
use futures::{StreamExt, TryStreamExt};
use object_store::local::LocalFileSystem;
use object_store::path::Path;
#[cfg(feature = "s3")]
use object_store::prefix::PrefixStore;
use object_store::{ObjectStore, ObjectStoreExt, PutMode, PutOptions};
use parquet::arrow::{ParquetRecordBatchStreamBuilder, ProjectionMask};
use parquet::errors::ParquetError;
use tokio::time::{Instant, sleep};

pub use crate::durable::Created;
use crate::parquet_file::{FileCache, ParquetObject};
use crate::retry::{RetryPolicy, format_error_chain};
use crate::{Error, Result, durable};

/// The size of an upload part. Larger objects are uploaded in several parts.
const PART_BYTES: usize = 16 << 20;

/// The maximum number of parts in flight.
const CONCURRENT_PARTS_MAX: usize = 4;

/// The remedy for a damaged file of the archive, which can be rebuilt from the log.
pub const REMEDY: &str = "Restore it from a backup. Or, if the log still contains all events, stop every process of this data folder and move the archive folder away: the next batch run rebuilds it from the log";

/// An object with its size.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredObject {
    /// Its path within the archive.
    pub path: String,
    /// Its size in bytes.
    pub size_bytes: u64,
    /// When it was written, in milliseconds since the Unix epoch, by the clock of the store.
    pub written_at_ms: i64,
}

/// An object store with durable puts.
#[derive(Debug, Clone)]
pub struct Archive {
    store: Arc<dyn ObjectStore>,
    location: ArchiveLocation,
    /// The cache of files, if enabled.
    cache: Option<FileCache>,
}

/// The location of the objects.
#[derive(Debug, Clone)]
enum ArchiveLocation {
    /// A local folder, whose client does not sync its writes.
    Folder(PathBuf),
    /// A path in a bucket of a server. The client adds the path.
    Bucket(Path, RetryPolicy),
}

impl Archive {
    /// Opens an archive in a local folder, which is created if it is missing.
    ///
    /// # Errors
    /// [`Error::Broken`] if the folder can't be created or is not a folder.
    pub fn local(folder: &FsPath) -> Result<Self> {
        let subject = || format!("archive folder {}", folder.display());
        std::fs::create_dir_all(folder).map_err(|e| Error::broken(subject(), e))?;
        let folder = folder
            .canonicalize()
            .map_err(|e| Error::broken(subject(), e))?;
        let store = LocalFileSystem::new_with_prefix(&folder)
            .map_err(|e| Error::broken(subject(), e))?
            .with_automatic_cleanup(false);
        Ok(Self {
            store: Arc::new(store),
            location: ArchiveLocation::Folder(folder),
            cache: None,
        })
    }

    /// An archive below a path in a bucket.
    #[cfg(feature = "s3")]
    pub(crate) fn in_bucket(
        store: impl ObjectStore,
        prefix: Path,
        retry_policy: RetryPolicy,
    ) -> Self {
        Self {
            store: Arc::new(PrefixStore::new(store, prefix.clone())),
            location: ArchiveLocation::Bucket(prefix, retry_policy),
            cache: None,
        }
    }

    /// The same archive with a cache of about `bytes_max` bytes for the Parquet files that it
    /// reads: small files completely, the metadata of others. It helps work that reads many parts
    /// of the same files one after another.
    #[must_use]
    pub fn with_cache(&self, bytes_max: u64) -> Self {
        let cache = Some(FileCache::new(bytes_max));
        Self {
            cache,
            ..self.clone()
        }
    }

    /// Returns whether it is a local folder.
    #[must_use]
    pub const fn is_local(&self) -> bool {
        matches!(self.location, ArchiveLocation::Folder(_))
    }

    /// Describes the location, for messages.
    #[must_use]
    pub fn describe_location(&self) -> String {
        match &self.location {
            ArchiveLocation::Folder(folder) => format!("the folder {}", folder.display()),
            ArchiveLocation::Bucket(prefix, server) => format!("/{prefix} of {}", server.server()),
        }
    }

    /// Writes or replaces an object durably.
    ///
    /// # Errors
    /// [`Error::Broken`] if it can't be written.
    pub async fn put(&self, path: &str, bytes: Bytes) -> Result<()> {
        self.put_with(path, bytes, true).await?;
        Ok(())
    }

    /// Creates an object durably, unless it exists.
    ///
    /// # Errors
    /// [`Error::Broken`] if it can't be written.
    pub async fn create(&self, path: &str, bytes: Bytes) -> Result<Created> {
        self.put_with(path, bytes, false).await
    }

    /// Reads an object; `None` if it does not exist.
    ///
    /// # Errors
    /// [`Error::Broken`] if it exists and can't be read.
    pub async fn get(&self, path: &str) -> Result<Option<Bytes>> {
        let bytes = match self.store.get(&Path::from(path)).await {
            Ok(object) => object.bytes().await,
            Err(error) => Err(error),
        };
        match bytes {
            Ok(bytes) => Ok(Some(bytes)),
            Err(object_store::Error::NotFound { .. }) => Ok(None),
            Err(error) => Err(self.to_error(&format!("reading {path}"), error)),
        }
    }

    /// Reads row groups of a Parquet file in the given order, at most `batch_rows` rows per batch.
    ///
    /// # Errors
    /// [`Error::Broken`] if the file is missing, damaged, or can't be read.
    pub async fn read_rows(
        &self,
        path: &str,
        row_groups: Vec<usize>,
        batch_rows: usize,
    ) -> Result<BoxStream<'static, Result<RecordBatch>>> {
        self.read_columns(path, Some(row_groups), batch_rows, None)
            .await
    }

    /// Reads one column if it is named, otherwise all columns, of the given row groups or of all.
    /// Other data is not read.
    ///
    /// # Errors
    /// As [`Archive::read_rows`].
    pub async fn read_columns(
        &self,
        path: &str,
        row_groups: Option<Vec<usize>>,
        batch_rows: usize,
        column: Option<&str>,
    ) -> Result<BoxStream<'static, Result<RecordBatch>>> {
        let context = (self.clone(), path.to_owned());
        let read_error = move |error| context.0.read_error(&context.1, error);
        let (store, cache) = (Arc::clone(&self.store), self.cache.clone());
        let reader = ParquetObject::new(store, Path::from(path), cache);
        let stream = ParquetRecordBatchStreamBuilder::new(reader)
            .await
            .and_then(|builder| {
                let mask = column.map(|name| {
                    ProjectionMask::columns(builder.parquet_schema(), std::iter::once(name))
                });
                let builder = match row_groups {
                    Some(row_groups) => builder.with_row_groups(row_groups),
                    None => builder,
                };
                builder
                    .with_projection(mask.unwrap_or_else(ProjectionMask::all))
                    .with_batch_size(batch_rows)
                    .build()
            })
            .map_err(&read_error)?;
        Ok(stream.map_err(read_error).boxed())
    }

    /// The paths of all objects in the folder `prefix`, sorted.
    ///
    /// # Errors
    /// [`Error::Broken`] if they can't be listed.
    pub async fn list(&self, prefix: &str) -> Result<Vec<String>> {
        let objects = self.list_objects(prefix).await?.into_iter();
        Ok(objects.map(|object| object.path).collect())
    }

    /// All objects in the folder `prefix` with their sizes, sorted by path.
    ///
    /// # Errors
    /// [`Error::Broken`] if they can't be listed.
    pub async fn list_objects(&self, prefix: &str) -> Result<Vec<StoredObject>> {
        let mut objects: Vec<StoredObject> = self
            .store
            .list(Some(&Path::from(prefix)))
            .map_ok(|object| StoredObject {
                path: object.location.to_string(),
                size_bytes: object.size,
                written_at_ms: object.last_modified.timestamp_millis(),
            })
            .try_collect()
            .await
            .map_err(|error| self.to_error(&format!("listing {prefix}"), error))?;
        objects.sort_unstable_by(|a, b| a.path.cmp(&b.path));
        Ok(objects)
    }

    /// Deletes an object, if it exists.
    ///
    /// # Errors
    /// [`Error::Broken`] if it exists and can't be deleted.
    pub async fn delete(&self, path: &str) -> Result<()> {
        match self.store.delete(&Path::from(path)).await {
            Ok(()) | Err(object_store::Error::NotFound { .. }) => Ok(()),
            Err(error) => Err(self.to_error(&format!("deleting {path}"), error)),
        }
    }

    /// Deletes staged files of writers that died long ago. A bucket does this by its lifecycle
    /// rules.
    ///
    /// # Errors
    /// [`Error::Broken`] if they can't be listed or deleted.
    pub async fn remove_abandoned_files(&self) -> Result<()> {
        let ArchiveLocation::Folder(folder) = &self.location else {
            return Ok(());
        };
        let (operation, folder) = ("removing abandoned files of the archive", folder.clone());
        tokio::task::spawn_blocking(move || durable::remove_abandoned(&folder))
            .await
            .map_err(|error| Error::broken(operation, error))?
            .map_err(|error| Error::broken(operation, error))
    }

    async fn put_with(&self, path: &str, bytes: Bytes, replace: bool) -> Result<Created> {
        let operation = format!("writing {path}");
        let root = match &self.location {
            ArchiveLocation::Bucket(_, server) => {
                let object_path = Path::from(path);
                return self
                    .upload(server, &object_path, &operation, bytes, replace)
                    .await;
            }
            ArchiveLocation::Folder(root) => root.clone(),
        };
        let file = root.join(Path::from(path).as_ref());
        tokio::task::spawn_blocking(move || durable::put(&root, &file, &bytes, replace))
            .await
            .map_err(|error| Error::broken(&operation, error))?
            .map_err(|error| Error::broken(&operation, error))
    }

    async fn upload(
        &self,
        server: &RetryPolicy,
        path: &Path,
        operation: &str,
        bytes: Bytes,
        replace: bool,
    ) -> Result<Created> {
        let to_error = |error| self.to_error(operation, error);
        if replace {
            self.upload_in_parts(path, bytes).await.map_err(to_error)?;
            return Ok(Created::New);
        }
        let deadline = Instant::now() + server.call_timeout();
        let mut pauses = server.pauses();
        loop {
            let create = PutOptions::from(PutMode::Create);
            match self
                .store
                .put_opts(path, bytes.clone().into(), create)
                .await
            {
                Ok(_) => return Ok(Created::New),
                Err(
                    object_store::Error::AlreadyExists { .. }
                    | object_store::Error::Precondition { .. },
                ) => {}
                Err(error) => return Err(to_error(error)),
            }
            // A retried request may find the object that it wrote itself. If another writer wrote
            // the same bytes, nothing changes either.
            let existing = match self.store.get(path).await {
                Ok(object) => object.bytes().await,
                Err(error) => Err(error),
            };
            match existing {
                Ok(existing) if existing == bytes => return Ok(Created::New),
                Ok(_) => return Ok(Created::Exists),
                // The server rejected the put because of a concurrent one, which then failed.
                Err(object_store::Error::NotFound { .. }) => {}
                Err(error) => return Err(to_error(error)),
            }
            let pause = pauses.next().unwrap_or_default();
            if Instant::now() + pause >= deadline {
                let reason = "other processes keep putting the same object";
                return Err(server.unavailable(operation, reason));
            }
            sleep(pause).await;
        }
    }

    /// Uploads an object, in several parts if it is large, because each request has a deadline.
    async fn upload_in_parts(&self, path: &Path, bytes: Bytes) -> object_store::Result<()> {
        if bytes.len() <= PART_BYTES {
            self.store.put(path, bytes.into()).await?;
            return Ok(());
        }
        let mut upload = self.store.put_multipart(path).await?;
        let parts: Vec<_> = (0..bytes.len())
            .step_by(PART_BYTES)
            .map(|from| bytes.slice(from..bytes.len().min(from + PART_BYTES)))
            .map(|part| upload.put_part(part.into()))
            .collect();
        let uploaded: object_store::Result<()> = futures::stream::iter(parts)
            .buffered(CONCURRENT_PARTS_MAX)
            .try_collect()
            .await;
        let outcome = match uploaded {
            Ok(()) => upload.complete().await.map(|_| ()),
            Err(error) => Err(error),
        };
        if outcome.is_err()
            && let Err(error) = upload.abort().await
        {
            tracing::debug!(%path, %error, "cannot abort the upload; its parts stay in the bucket");
        }
        outcome
    }

    /// Converts an error of the client. Errors of a server are transient, except for refusals.
    fn to_error(&self, operation: &str, error: object_store::Error) -> Error {
        match &self.location {
            ArchiveLocation::Folder(_) => Error::broken(operation, error),
            ArchiveLocation::Bucket(_, server) => match error {
                object_store::Error::Generic { .. } | object_store::Error::JoinError { .. } => {
                    server.unavailable(operation, format_error_chain(&error))
                }
                object_store::Error::PermissionDenied { .. }
                | object_store::Error::Unauthenticated { .. } => {
                    let reason = "this access key has no permission; check AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and the policy of the bucket";
                    Error::broken(server.describe(operation), reason)
                }
                object_store::Error::NotFound { .. } => Error::broken(
                    server.describe(operation),
                    "the bucket does not exist; run `backstitch migrate`",
                ),
                error => Error::broken(server.describe(operation), format_error_chain(&error)),
            },
        }
    }

    fn read_error(&self, path: &str, error: ParquetError) -> Error {
        let reason = match error {
            ParquetError::External(error) => match error.downcast::<object_store::Error>() {
                Ok(error) if !matches!(*error, object_store::Error::NotFound { .. }) => {
                    return self.to_error(&format!("reading {path}"), *error);
                }
                Ok(error) => error.to_string(),
                Err(error) => error.to_string(),
            },
            error => error.to_string(),
        };
        Error::DamagedFile {
            path: path.to_owned(),
            reason: format!("{reason}. {REMEDY}"),
        }
    }
}
