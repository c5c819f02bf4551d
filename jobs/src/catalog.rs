//! All views of an installation, in the order in which they can be computed.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use include_dir::{Dir, include_dir};
use schemas::source::Source;

use crate::job::{Job, Layers};
use crate::spec::File;
use crate::{Error, Result};

static BUILT_IN: Dir<'_> = include_dir!("$CARGO_MANIFEST_DIR/views");

/// All views. A job stands after the one whose rows it reads.
#[derive(Debug, Clone)]
pub struct Catalog {
    jobs: Vec<Arc<Job>>,
}

/// The texts of one folder.
struct Folder {
    name: String,
    place: String,
    definition: String,
    sql: String,
}

impl Catalog {
    /// The views that are built in.
    ///
    /// # Errors
    /// [`Error::Definition`] names file and line of what does not hold.
    pub fn built_in() -> Result<Self> {
        let folders = BUILT_IN.dirs().map(|dir| {
            let name = dir.path().to_string_lossy().into_owned();
            let text = |file: &str| {
                dir.get_file(dir.path().join(file))
                    .and_then(|f| f.contents_utf8())
                    .map(str::to_owned)
                    .ok_or_else(|| missing(&format!("views/{name}/{file}"), "not found"))
            };
            Ok(Folder {
                place: format!("views/{name}"),
                definition: text("job.toml")?,
                sql: text("query.sql")?,
                name: name.clone(),
            })
        });
        Self::of(folders.collect::<Result<Vec<_>>>()?)
    }

    /// The views in the folders of `root`.
    ///
    /// # Errors
    /// [`Error::Definition`] names file and line of what does not hold.
    pub fn read(root: &Path) -> Result<Self> {
        let entries = std::fs::read_dir(root)
            .map_err(|error| missing(&root.display().to_string(), &error.to_string()))?;
        let mut folders = Vec::new();
        for entry in entries.flatten() {
            let path = entry.path();
            if !path.is_dir() {
                continue;
            }
            let text = |file: &str| {
                let file = path.join(file);
                std::fs::read_to_string(&file)
                    .map_err(|error| missing(&file.display().to_string(), &error.to_string()))
            };
            folders.push(Folder {
                name: entry.file_name().to_string_lossy().into_owned(),
                place: path.display().to_string(),
                definition: text("job.toml")?,
                sql: text("query.sql")?,
            });
        }
        Self::of(folders)
    }

    /// The jobs, each after the one that it reads from.
    #[must_use]
    pub fn jobs(&self) -> &[Arc<Job>] {
        &self.jobs
    }

    /// The jobs of a source that a layer runs.
    pub fn of_layer(&self, source: Source, layer: Layers) -> impl Iterator<Item = &Arc<Job>> {
        self.jobs.iter().filter(move |job| {
            job.source() == source && (job.layers() == Layers::Both || job.layers() == layer)
        })
    }

    /// The job of that name.
    #[must_use]
    pub fn job(&self, name: &str) -> Option<&Arc<Job>> {
        self.jobs.iter().find(|job| job.name() == name)
    }

    fn of(folders: Vec<Folder>) -> Result<Self> {
        let mut waiting: BTreeMap<String, Folder> = folders
            .into_iter()
            .map(|folder| (folder.name.clone(), folder))
            .collect();
        let mut jobs: Vec<Arc<Job>> = Vec::new();
        while !waiting.is_empty() {
            let ready = waiting
                .values()
                .find(|folder| !reads_one_of(folder, &waiting))
                .or_else(|| waiting.values().next())
                .map(|folder| folder.name.clone())
                .unwrap_or_default();
            let Some(folder) = waiting.remove(&ready) else {
                break;
            };
            let file = File {
                name: format!("{}/job.toml", folder.place),
                text: &folder.definition,
            };
            let job = Job::check(&folder.name, &file, &folder.sql, |name| {
                jobs.iter().find(|job| job.name() == name).map(Arc::as_ref)
            })?;
            crate::plan::check_query(&job, &jobs, &format!("{}/query.sql", folder.place))?;
            jobs.push(Arc::new(job));
        }
        Ok(Self { jobs })
    }
}

/// Whether a definition reads from a job that has not been checked yet. A definition that can't be
/// read says so when it is checked.
fn reads_one_of(folder: &Folder, waiting: &BTreeMap<String, Folder>) -> bool {
    let file = File {
        name: String::new(),
        text: &folder.definition,
    };
    file.spec()
        .ok()
        .and_then(|spec| spec.over)
        .is_some_and(|over| waiting.contains_key(over.get_ref()))
}

fn missing(file: &str, why: &str) -> Error {
    Error::Definition {
        file: file.to_owned(),
        line: 1,
        what: why.to_owned(),
    }
}

#[cfg(test)]
#[path = "catalog_tests.rs"]
mod tests;
