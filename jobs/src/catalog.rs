//! All views of an installation, in the order in which they can be computed.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use include_dir::{Dir, include_dir};
use schemas::source::Source;

use crate::aggregate_view::AggregateView;
use crate::board::Board;
use crate::counting::CountingClasses;
use crate::job::{Job, Layers};
use crate::plan::QueryText;
use crate::spec::{AnySpec, File};
use crate::{Error, Result};

static BUILT_IN: Dir<'_> = include_dir!("$CARGO_MANIFEST_DIR/views");

/// All views.
#[derive(Debug, Clone, Default)]
pub struct Catalog {
    /// A job comes after the job whose rows it reads.
    jobs: Vec<Arc<Job>>,
    boards: Vec<Arc<Job<Board>>>,
}

/// The files of one view.
struct ViewFolder {
    name: String,
    path: String,
    definition: String,
    sql: String,
}

impl Catalog {
    /// Loads the built-in views.
    ///
    /// # Errors
    /// [`Error::Definition`] with file and line if a definition is invalid.
    pub fn built_in() -> Result<Self> {
        Self::from_folders(built_in_folders()?)
    }

    /// Loads the built-in views and the views of an installation, which are the folders of `root`.
    ///
    /// # Errors
    /// [`Error::Definition`] with file and line if a definition is invalid, a folder is not a valid
    /// view name, or its name is that of a built-in view.
    pub fn with_custom_views(root: &Path) -> Result<Self> {
        let mut folders = built_in_folders()?;
        let custom = read_folders(root)?;
        for folder in &custom {
            let file = format!("{}/job.toml", folder.path);
            if !is_view_name(&folder.name) {
                let reason = format!(
                    "{:?} is not a valid view name: use at most {NAME_BYTES_MAX} lower-case letters, digits and _, and begin with a letter",
                    folder.name
                );
                return Err(definition_error(&file, &reason));
            }
            if folders.iter().any(|built_in| built_in.name == folder.name) {
                let reason = format!(
                    "{:?} is the name of a built-in view; rename the folder",
                    folder.name
                );
                return Err(definition_error(&file, &reason));
            }
        }
        folders.extend(custom);
        Self::from_folders(folders)
    }

    /// Loads the views in the folders of `root`.
    ///
    /// # Errors
    /// [`Error::Definition`] with file and line if a definition is invalid.
    pub fn read(root: &Path) -> Result<Self> {
        Self::from_folders(read_folders(root)?)
    }

    /// Returns the aggregate views, each after the view that it reads.
    #[must_use]
    pub fn jobs(&self) -> &[Arc<Job>] {
        &self.jobs
    }

    /// The boards.
    #[must_use]
    pub fn boards(&self) -> &[Arc<Job<Board>>] {
        &self.boards
    }

    /// The aggregate views of a source that run in a layer.
    pub fn jobs_in_layer(&self, source: Source, layer: Layers) -> impl Iterator<Item = &Arc<Job>> {
        filter_by_layer(&self.jobs, source, layer)
    }

    /// The boards of a source that run in a layer.
    pub fn boards_in_layer(
        &self,
        source: Source,
        layer: Layers,
    ) -> impl Iterator<Item = &Arc<Job<Board>>> {
        filter_by_layer(&self.boards, source, layer)
    }

    /// The counting classes of applications.
    #[must_use]
    pub fn counting(&self) -> CountingClasses {
        let board = self.boards.iter().find(|job| job.can_be_recounted());
        board.map_or_else(CountingClasses::default, |job| job.counting().clone())
    }

    /// Replaces the counting classes of the definitions. The versions of views do not change.
    #[must_use]
    pub fn with_counting(mut self, counting: &CountingClasses) -> Self {
        for job in self.boards.iter_mut().filter(|job| job.can_be_recounted()) {
            Arc::make_mut(job).set_counting(counting.clone());
        }
        self
    }

    /// The names and sources of all views, in display order.
    pub fn names(&self) -> impl Iterator<Item = (&str, Source)> {
        let aggregates = self.jobs.iter().map(|job| (job.name(), job.source()));
        let boards = self.boards.iter().map(|job| (job.name(), job.source()));
        aggregates.chain(boards)
    }

    /// Returns the aggregate view with this name.
    #[must_use]
    pub fn job(&self, name: &str) -> Option<&Arc<Job>> {
        self.jobs.iter().find(|job| job.name() == name)
    }

    fn from_folders(folders: Vec<ViewFolder>) -> Result<Self> {
        let mut remaining: BTreeMap<String, ViewFolder> = folders
            .into_iter()
            .map(|folder| (folder.name.clone(), folder))
            .collect();
        let mut catalog = Self::default();
        while !remaining.is_empty() {
            let next_name = remaining
                .values()
                .find(|folder| !depends_on_any(folder, &remaining))
                .or_else(|| remaining.values().next())
                .map(|folder| folder.name.clone())
                .unwrap_or_default();
            let Some(folder) = remaining.remove(&next_name) else {
                break;
            };
            let file = File {
                name: format!("{}/job.toml", folder.path),
                text: &folder.definition,
            };
            let query_file = format!("{}/query.sql", folder.path);
            let query = QueryText {
                sql: &folder.sql,
                file: &query_file,
            };
            let spec: AnySpec = file.parse()?;
            match spec.kind.get_ref().as_str() {
                "aggregate" | "tally" => {
                    let jobs = &mut catalog.jobs;
                    let job = Job::<AggregateView>::parse(&folder.name, &file, &query, |name| {
                        jobs.iter().find(|job| job.name() == name).map(Arc::as_ref)
                    })?;
                    crate::plan::check_query(&job, jobs, &query_file)?;
                    jobs.push(Arc::new(job));
                }
                "board" => {
                    let job = Job::<Board>::parse(&folder.name, &file, &query, &catalog.boards)?;
                    catalog.boards.push(Arc::new(job));
                }
                _ => {
                    let reason = "kind: expected \"aggregate\" or \"board\"";
                    return Err(file.error_at(&spec.kind, reason));
                }
            }
        }
        Ok(catalog)
    }
}

/// The maximum bytes of a custom view's name.
const NAME_BYTES_MAX: usize = 48;

/// Returns whether a view can have this name. Queries use it without quotes.
fn is_view_name(name: &str) -> bool {
    let is_allowed = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_';
    name.starts_with(|first: char| first.is_ascii_lowercase())
        && name.len() <= NAME_BYTES_MAX
        && name.bytes().all(is_allowed)
}

fn built_in_folders() -> Result<Vec<ViewFolder>> {
    let folders = BUILT_IN.dirs().map(|dir| {
        let name = dir.path().to_string_lossy().into_owned();
        let read_text = |file: &str| {
            dir.get_file(dir.path().join(file))
                .and_then(|f| f.contents_utf8())
                .map(str::to_owned)
                .ok_or_else(|| definition_error(&format!("views/{name}/{file}"), "not found"))
        };
        Ok(ViewFolder {
            path: format!("views/{name}"),
            definition: read_text("job.toml")?,
            sql: read_text("query.sql")?,
            name: name.clone(),
        })
    });
    folders.collect()
}

/// Reads the folders in `root`, except hidden ones.
fn read_folders(root: &Path) -> Result<Vec<ViewFolder>> {
    let read_error = |error: std::io::Error| read_error(root, &error);
    let mut folders = Vec::new();
    for entry in std::fs::read_dir(root).map_err(read_error)? {
        let entry = entry.map_err(read_error)?;
        let (path, name) = (entry.path(), entry.file_name());
        let name = name.to_string_lossy().into_owned();
        if !path.is_dir() || name.starts_with('.') {
            continue;
        }
        let read_text = |file: &str| {
            let path = path.join(file);
            std::fs::read_to_string(&path).map_err(|error| self::read_error(&path, &error))
        };
        folders.push(ViewFolder {
            path: path.display().to_string(),
            definition: read_text("job.toml")?,
            sql: read_text("query.sql")?,
            name,
        });
    }
    Ok(folders)
}

fn filter_by_layer<K>(
    jobs: &[Arc<Job<K>>],
    source: Source,
    layer: Layers,
) -> impl Iterator<Item = &Arc<Job<K>>> {
    jobs.iter()
        .filter(move |job| job.source() == source && job.layers().include(layer))
}

/// Returns whether a definition reads the rows of a remaining view. Returns false for an invalid
/// definition, whose own check reports the error.
fn depends_on_any(folder: &ViewFolder, remaining: &BTreeMap<String, ViewFolder>) -> bool {
    let file = File {
        name: String::new(),
        text: &folder.definition,
    };
    file.parse::<AnySpec>()
        .ok()
        .and_then(|spec| spec.over)
        .is_some_and(|name| remaining.contains_key(name.get_ref()))
}

fn read_error(path: &Path, error: &std::io::Error) -> Error {
    Error::Views {
        path: path.display().to_string(),
        reason: error.to_string(),
    }
}

fn definition_error(file: &str, reason: &str) -> Error {
    Error::Definition {
        file: file.to_owned(),
        line: 1,
        reason: reason.to_owned(),
    }
}

#[cfg(test)]
#[path = "catalog_tests.rs"]
pub(crate) mod tests;
