//! All views of an installation, in the order in which they can be computed.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use include_dir::{Dir, include_dir};
use schemas::source::Source;

use crate::board::Board;
use crate::counting::Counting;
use crate::job::{Job, Layers};
use crate::spec::{AnySpec, File};
use crate::tally::Tally;
use crate::{Error, Result};

static BUILT_IN: Dir<'_> = include_dir!("$CARGO_MANIFEST_DIR/views");

/// All views.
#[derive(Debug, Clone, Default)]
pub struct Catalog {
    /// A job stands after the one whose rows it reads.
    jobs: Vec<Arc<Job>>,
    boards: Vec<Arc<Job<Board>>>,
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
        Self::of(built_in()?)
    }

    /// The views that are built in, and those in the folders of `root`: those of an installation's own.
    ///
    /// # Errors
    /// [`Error::Definition`] names file and line of what does not hold, and a folder whose name is no name of a view or that of a
    /// view that is built in.
    pub fn with_own(root: &Path) -> Result<Self> {
        let mut folders = built_in()?;
        let own = folders_of(root)?;
        for folder in &own {
            let place = format!("{}/job.toml", folder.place);
            if !is_name(&folder.name) {
                let why = format!(
                    "the folder {:?} is called otherwise than a view can be: lower-case letters, digits and _, a letter first, {NAME_BYTES_MAX} at most",
                    folder.name
                );
                return Err(missing(&place, &why));
            }
            if folders.iter().any(|built_in| built_in.name == folder.name) {
                let why = format!(
                    "a view that is built in is called {:?}: call the folder otherwise",
                    folder.name
                );
                return Err(missing(&place, &why));
            }
        }
        folders.extend(own);
        Self::of(folders)
    }

    /// The views in the folders of `root`.
    ///
    /// # Errors
    /// [`Error::Definition`] names file and line of what does not hold.
    pub fn read(root: &Path) -> Result<Self> {
        Self::of(folders_of(root)?)
    }

    /// The tallies, each after the one that it reads from.
    #[must_use]
    pub fn jobs(&self) -> &[Arc<Job>] {
        &self.jobs
    }

    /// The boards.
    #[must_use]
    pub fn boards(&self) -> &[Arc<Job<Board>>] {
        &self.boards
    }

    /// The tallies of a source that a layer runs.
    pub fn of_layer(&self, source: Source, layer: Layers) -> impl Iterator<Item = &Arc<Job>> {
        of_layer(&self.jobs, source, layer)
    }

    /// The boards of a source that a layer runs.
    pub fn boards_of_layer(
        &self,
        source: Source,
        layer: Layers,
    ) -> impl Iterator<Item = &Arc<Job<Board>>> {
        of_layer(&self.boards, source, layer)
    }

    /// How the athletes of applications are counted.
    #[must_use]
    pub fn counting(&self) -> Counting {
        let of_applications = self.boards.iter().find(|job| job.can_be_recounted());
        of_applications.map_or_else(Counting::default, |job| job.counting().clone())
    }

    /// The same views, with other classes in the place of those that the definition says how the athletes of applications
    /// are counted. No view is another one for it.
    #[must_use]
    pub fn with_counting(mut self, counting: &Counting) -> Self {
        for job in self.boards.iter_mut().filter(|job| job.can_be_recounted()) {
            Arc::make_mut(job).count_by(counting.clone());
        }
        self
    }

    /// Names and sources of all views, in the order in which they are shown.
    pub fn names(&self) -> impl Iterator<Item = (&str, Source)> {
        let tallies = self.jobs.iter().map(|job| (job.name(), job.source()));
        let boards = self.boards.iter().map(|job| (job.name(), job.source()));
        tallies.chain(boards)
    }

    /// The tally of that name.
    #[must_use]
    pub fn job(&self, name: &str) -> Option<&Arc<Job>> {
        self.jobs.iter().find(|job| job.name() == name)
    }

    fn of(folders: Vec<Folder>) -> Result<Self> {
        let mut waiting: BTreeMap<String, Folder> = folders
            .into_iter()
            .map(|folder| (folder.name.clone(), folder))
            .collect();
        let mut catalog = Self::default();
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
            let query_file = format!("{}/query.sql", folder.place);
            let spec: AnySpec = file.spec()?;
            match spec.kind.get_ref().as_str() {
                "tally" => {
                    let jobs = &mut catalog.jobs;
                    let sql = (folder.sql.as_str(), query_file.as_str());
                    let job = Job::<Tally>::check(&folder.name, &file, sql, |name| {
                        jobs.iter().find(|job| job.name() == name).map(Arc::as_ref)
                    })?;
                    crate::plan::check_query(&job, jobs, &query_file)?;
                    jobs.push(Arc::new(job));
                }
                "board" => {
                    let job = Job::<Board>::check(
                        &folder.name,
                        &file,
                        (&folder.sql, &query_file),
                        &catalog.boards,
                    )?;
                    catalog.boards.push(Arc::new(job));
                }
                _ => {
                    let what = "kind: expected \"tally\" or \"board\"";
                    return Err(file.error_at(&spec.kind, what));
                }
            }
        }
        Ok(catalog)
    }
}

/// The longest name of a view of an installation's own.
const NAME_BYTES_MAX: usize = 48;

/// Whether a view can be called so: queries name it without quotes.
fn is_name(name: &str) -> bool {
    let is_plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_';
    name.starts_with(|first: char| first.is_ascii_lowercase())
        && name.len() <= NAME_BYTES_MAX
        && name.bytes().all(is_plain)
}

fn built_in() -> Result<Vec<Folder>> {
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
    folders.collect()
}

/// The folders in a folder, but those that are hidden.
fn folders_of(root: &Path) -> Result<Vec<Folder>> {
    let unread = |error: std::io::Error| unread(root, &error);
    let mut folders = Vec::new();
    for entry in std::fs::read_dir(root).map_err(unread)? {
        let entry = entry.map_err(unread)?;
        let (path, name) = (entry.path(), entry.file_name());
        let name = name.to_string_lossy().into_owned();
        if !path.is_dir() || name.starts_with('.') {
            continue;
        }
        let text = |file: &str| {
            let file = path.join(file);
            std::fs::read_to_string(&file).map_err(|error| self::unread(&file, &error))
        };
        folders.push(Folder {
            place: path.display().to_string(),
            definition: text("job.toml")?,
            sql: text("query.sql")?,
            name,
        });
    }
    Ok(folders)
}

fn of_layer<K>(
    jobs: &[Arc<Job<K>>],
    source: Source,
    layer: Layers,
) -> impl Iterator<Item = &Arc<Job<K>>> {
    jobs.iter()
        .filter(move |job| job.source() == source && job.layers().include(layer))
}

/// Whether a definition reads from a job that has not been checked yet. A definition that can't be
/// read says so when it is checked.
fn reads_one_of(folder: &Folder, waiting: &BTreeMap<String, Folder>) -> bool {
    let file = File {
        name: String::new(),
        text: &folder.definition,
    };
    file.spec::<AnySpec>()
        .ok()
        .and_then(|spec| spec.over)
        .is_some_and(|over| waiting.contains_key(over.get_ref()))
}

fn unread(path: &Path, error: &std::io::Error) -> Error {
    Error::Views {
        path: path.display().to_string(),
        why: error.to_string(),
    }
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
pub(crate) mod tests;
