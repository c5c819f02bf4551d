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
#[cfg(feature = "s3")]
use object_store::prefix::PrefixStore;
use object_store::{ObjectStore, ObjectStoreExt, PutMode, PutOptions};
use parquet::arrow::{ParquetRecordBatchStreamBuilder, ProjectionMask};
use parquet::errors::ParquetError;
use tokio::time::{Instant, sleep};

use crate::parquet_file::{KnownFiles, ParquetObject};
use crate::patience::{Patience, causes};
use crate::{Error, Result, durable};

/// An object of more bytes than this goes to a server in parts of so many.
const PART_BYTES: usize = 16 << 20;

/// How many of them are on their way at once.
const PARTS_AT_ONCE: usize = 4;

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

/// An object, and what it takes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredObject {
    /// Its path within the archive.
    pub path: String,
    /// Its size.
    pub bytes: u64,
    /// When it was written, in milliseconds since the Unix epoch, by the clock of the store.
    pub written_at_ms: i64,
}

/// An object store with durable puts.
#[derive(Debug, Clone)]
pub struct Archive {
    store: Arc<dyn ObjectStore>,
    place: Place,
    /// Files that were read, where they are remembered.
    known: Option<KnownFiles>,
}

/// Where the objects are.
#[derive(Debug, Clone)]
enum Place {
    /// In a folder, whose client does not sync what it writes.
    Folder(PathBuf),
    /// In a bucket of a server, below this path, which the client adds.
    Bucket(Path, Patience),
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
            place: Place::Folder(folder),
            known: None,
        })
    }

    /// An archive in a bucket of a server, below a path.
    #[cfg(feature = "s3")]
    pub(crate) fn in_bucket(store: impl ObjectStore, prefix: Path, patience: Patience) -> Self {
        Self {
            store: Arc::new(PrefixStore::new(store, prefix.clone())),
            place: Place::Bucket(prefix, patience),
            known: None,
        }
    }

    /// The same archive, which remembers what it reads of Parquet files: small ones wholly, of others
    /// the metadata, at most so many bytes in all, about. For work that reads many pieces of the same
    /// files, one after the other.
    #[must_use]
    pub fn remembering(&self, bytes_max: u64) -> Self {
        let known = Some(KnownFiles::new(bytes_max));
        Self {
            known,
            ..self.clone()
        }
    }

    /// Whether it is a folder of this machine.
    #[must_use]
    pub const fn is_local(&self) -> bool {
        matches!(self.place, Place::Folder(_))
    }

    /// Where it is, for people.
    #[must_use]
    pub fn told(&self) -> String {
        match &self.place {
            Place::Folder(folder) => format!("the folder {}", folder.display()),
            Place::Bucket(prefix, server) => format!("/{prefix} of {}", server.server()),
        }
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
            Err(error) => Err(self.fault(&format!("reading {path}"), error)),
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
        self.columns(path, Some(row_groups), batch_rows, None).await
    }

    /// The same of one column alone, if one is named, and of all row groups, if none are: others are not
    /// read.
    ///
    /// # Errors
    /// As [`Archive::rows`].
    pub async fn columns(
        &self,
        path: &str,
        row_groups: Option<Vec<usize>>,
        batch_rows: usize,
        column: Option<&str>,
    ) -> Result<BoxStream<'static, Result<RecordBatch>>> {
        let what = (self.clone(), path.to_owned());
        let unreadable = move |error| what.0.unreadable(&what.1, error);
        let (store, known) = (Arc::clone(&self.store), self.known.clone());
        let reader = ParquetObject::new(store, Path::from(path), known);
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
            .map_err(&unreadable)?;
        Ok(stream.map_err(unreadable).boxed())
    }

    /// The paths of all objects whose path begins with the folder `prefix`, in their order.
    ///
    /// # Errors
    /// [`Error::Broken`] if they can't be listed.
    pub async fn list(&self, prefix: &str) -> Result<Vec<String>> {
        let objects = self.objects(prefix).await?.into_iter();
        Ok(objects.map(|object| object.path).collect())
    }

    /// All objects whose path begins with the folder `prefix`, in the order of their paths, with what they take.
    ///
    /// # Errors
    /// [`Error::Broken`] if they can't be listed.
    pub async fn objects(&self, prefix: &str) -> Result<Vec<StoredObject>> {
        let mut objects: Vec<StoredObject> = self
            .store
            .list(Some(&Path::from(prefix)))
            .map_ok(|object| StoredObject {
                path: object.location.to_string(),
                bytes: object.size,
                written_at_ms: object.last_modified.timestamp_millis(),
            })
            .try_collect()
            .await
            .map_err(|error| self.fault(&format!("listing {prefix}"), error))?;
        objects.sort_unstable_by(|one, other| one.path.cmp(&other.path));
        Ok(objects)
    }

    /// Deletes an object; one that is not there is no error.
    ///
    /// # Errors
    /// [`Error::Broken`] if it is there and can't be deleted.
    pub async fn delete(&self, path: &str) -> Result<()> {
        match self.store.delete(&Path::from(path)).await {
            Ok(()) | Err(object_store::Error::NotFound { .. }) => Ok(()),
            Err(error) => Err(self.fault(&format!("deleting {path}"), error)),
        }
    }

    /// Deletes what writers left behind that died long ago in the middle of a put. In a bucket that is
    /// left to its life cycle.
    ///
    /// # Errors
    /// [`Error::Broken`] if it can't be listed or deleted.
    pub async fn tidy(&self) -> Result<()> {
        let Place::Folder(folder) = &self.place else {
            return Ok(());
        };
        let (doing, folder) = ("tidying the archive", folder.clone());
        tokio::task::spawn_blocking(move || durable::remove_abandoned(&folder))
            .await
            .map_err(|error| Error::broken(doing, error))?
            .map_err(|error| Error::broken(doing, error))
    }

    async fn put_with(&self, path: &str, bytes: Bytes, replace: bool) -> Result<Created> {
        let doing = format!("writing {path}");
        let root = match &self.place {
            Place::Bucket(_, server) => {
                let at = Path::from(path);
                return self.upload(server, &at, &doing, bytes, replace).await;
            }
            Place::Folder(root) => root.clone(),
        };
        let file = root.join(Path::from(path).as_ref());
        tokio::task::spawn_blocking(move || durable::put(&root, &file, &bytes, replace))
            .await
            .map_err(|error| Error::broken(&doing, error))?
            .map_err(|error| Error::broken(&doing, error))
    }

    async fn upload(
        &self,
        server: &Patience,
        at: &Path,
        doing: &str,
        bytes: Bytes,
        replace: bool,
    ) -> Result<Created> {
        let fault = |error| self.fault(doing, error);
        if replace {
            self.upload_in_parts(at, bytes).await.map_err(fault)?;
            return Ok(Created::New);
        }
        let deadline = Instant::now() + server.call_for();
        let mut pauses = server.pauses();
        loop {
            let create = PutOptions::from(PutMode::Create);
            match self.store.put_opts(at, bytes.clone().into(), create).await {
                Ok(_) => return Ok(Created::New),
                Err(
                    object_store::Error::AlreadyExists { .. }
                    | object_store::Error::Precondition { .. },
                ) => {}
                Err(error) => return Err(fault(error)),
            }
            // A request that was tried again may have met what it had written itself. Another writer of the same bytes changes
            // nothing.
            let found = match self.store.get(at).await {
                Ok(found) => found.bytes().await,
                Err(error) => Err(error),
            };
            match found {
                Ok(found) if found == bytes => return Ok(Created::New),
                Ok(_) => return Ok(Created::Exists),
                // The server refused because of another put that was under way, which then failed.
                Err(object_store::Error::NotFound { .. }) => {}
                Err(error) => return Err(fault(error)),
            }
            let pause = pauses.next().unwrap_or_default();
            if Instant::now() + pause >= deadline {
                let why = "another put of the same object is under way, again and again";
                return Err(server.unavailable(doing, why));
            }
            sleep(pause).await;
        }
    }

    /// A request has a deadline, so a large object goes in several.
    async fn upload_in_parts(&self, at: &Path, bytes: Bytes) -> object_store::Result<()> {
        if bytes.len() <= PART_BYTES {
            self.store.put(at, bytes.into()).await?;
            return Ok(());
        }
        let mut upload = self.store.put_multipart(at).await?;
        let parts: Vec<_> = (0..bytes.len())
            .step_by(PART_BYTES)
            .map(|from| bytes.slice(from..bytes.len().min(from + PART_BYTES)))
            .map(|part| upload.put_part(part.into()))
            .collect();
        let sent: object_store::Result<()> = futures::stream::iter(parts)
            .buffered(PARTS_AT_ONCE)
            .try_collect()
            .await;
        let done = match sent {
            Ok(()) => upload.complete().await.map(|_| ()),
            Err(error) => Err(error),
        };
        if done.is_err()
            && let Err(error) = upload.abort().await
        {
            tracing::debug!(%at, %error, "parts of an upload stay");
        }
        done
    }

    /// The error of a client. That of a server may pass, unless it refuses.
    fn fault(&self, doing: &str, error: object_store::Error) -> Error {
        match &self.place {
            Place::Folder(_) => Error::broken(doing, error),
            Place::Bucket(_, server) => match error {
                object_store::Error::Generic { .. } | object_store::Error::JoinError { .. } => {
                    server.unavailable(doing, causes(&error))
                }
                object_store::Error::PermissionDenied { .. }
                | object_store::Error::Unauthenticated { .. } => {
                    let why = "this key may not; check AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, and the bucket's policy";
                    Error::broken(server.what(doing), why)
                }
                object_store::Error::NotFound { .. } => Error::broken(
                    server.what(doing),
                    "the bucket is not there; run `backstitch migrate`",
                ),
                error => Error::broken(server.what(doing), causes(&error)),
            },
        }
    }

    fn unreadable(&self, path: &str, error: ParquetError) -> Error {
        let why = match error {
            ParquetError::External(error) => match error.downcast::<object_store::Error>() {
                Ok(error) if !matches!(*error, object_store::Error::NotFound { .. }) => {
                    return self.fault(&format!("reading {path}"), *error);
                }
                Ok(error) => error.to_string(),
                Err(error) => error.to_string(),
            },
            error => error.to_string(),
        };
        Error::DamagedFile {
            path: path.to_owned(),
            why: format!("{why}. {REMEDY}"),
        }
    }
}
