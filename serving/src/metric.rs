//! A metric: the views of the catalog that count the same thing.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use jobs::sketch::{cell_column, is_cell_column};
use jobs::{Catalog, Job, Layers, Rollup};
use schemas::key::{KeyColumn, KeyKind};
use schemas::source::Source;

/// What `/stats/NAME/…` asks for: views that count the same events at different grain.
#[derive(Debug, Clone)]
pub(crate) struct Metric {
    pub(crate) name: String,
    pub(crate) source: Source,
    pub(crate) views: Vec<Arc<Job>>,
    /// How live parts of views are made that have none of their own, by `name@version`.
    pub(crate) rollups: Arc<BTreeMap<String, Arc<Rollup>>>,
    columns: BTreeMap<String, KeyKind>,
    /// The columns of which different values are counted.
    distinct: BTreeSet<String>,
}

impl Metric {
    /// The metrics of a catalog, by name. Views can be answered from that both layers keep, and
    /// roll-ups of these.
    pub(crate) fn all(catalog: &Catalog) -> BTreeMap<String, Self> {
        let mut metrics: BTreeMap<String, Self> = BTreeMap::new();
        let rollups = catalog.jobs().iter().filter_map(|job| {
            let rollup = Rollup::of(job, catalog.jobs())?;
            Some((job.view().to_owned(), Arc::new(rollup)))
        });
        let rollups: Arc<BTreeMap<_, _>> = Arc::new(rollups.collect());
        for job in catalog.jobs() {
            if job.layers() != Layers::Both && !rollups.contains_key(job.view()) {
                tracing::warn!(
                    job = job.name(),
                    "it is not served: only the batch layer keeps it, and it is no plain roll-up of a view that both keep"
                );
                continue;
            }
            let metric = metrics
                .entry(job.metric().to_owned())
                .or_insert_with(|| Self {
                    name: job.metric().to_owned(),
                    source: job.source(),
                    views: Vec::new(),
                    rollups: Arc::clone(&rollups),
                    columns: BTreeMap::new(),
                    distinct: BTreeSet::new(),
                });
            if metric.source != job.source() {
                continue;
            }
            let columns = job.group().0.iter().chain(dimensions(job));
            for column in columns.filter(|column| !is_cell_column(&column.name)) {
                metric.columns.insert(column.name.clone(), column.kind);
            }
            metric.views.push(Arc::clone(job));
        }
        for metric in metrics.values_mut() {
            let has_cells = |column: &&String| {
                let cells = cell_column(column);
                let mut views = metric.views.iter();
                views.any(|view| view.dimensions().any(|dimension| dimension == cells))
            };
            metric.distinct = metric.columns.keys().filter(has_cells).cloned().collect();
        }
        metrics
    }

    /// The view whose live parts belong to a view: itself, or the one that it rolls up.
    pub(crate) fn live<'a>(&'a self, job: &'a Job) -> &'a str {
        let rollup = self.rollups.get(job.view());
        rollup.map_or(job.view(), |rollup| rollup.from().view())
    }

    /// The columns that can be filtered and grouped by, with what they hold.
    pub(crate) const fn columns(&self) -> &BTreeMap<String, KeyKind> {
        &self.columns
    }

    /// The column that a name in `by=` stands for: its own, or without its `_id`.
    pub(crate) fn by_column(&self, name: &str) -> Option<&str> {
        self.columns
            .keys()
            .map(String::as_str)
            .find(|column| by_name(column) == name)
    }

    /// The column that a name in `of=` stands for; without a name the only one there is.
    pub(crate) fn distinct_column(&self, name: Option<&str>) -> Option<&str> {
        let mut columns = self.distinct.iter().map(String::as_str);
        match name {
            Some(name) => columns.find(|column| by_name(column) == name),
            None => columns.next().filter(|_| self.distinct.len() == 1),
        }
    }

    /// The names that `of=` takes.
    pub(crate) fn distinct_names(&self) -> Vec<&str> {
        self.distinct.iter().map(|column| by_name(column)).collect()
    }

    /// The names that `by=` takes.
    pub(crate) fn by_names(&self) -> Vec<&str> {
        self.columns.keys().map(|column| by_name(column)).collect()
    }
}

/// The column by which records of a source are put into partitions: all events of one value of it
/// are in one partition.
pub(crate) const fn log_key(source: Source) -> &'static str {
    schemas::entities::key_column(source)
}

/// The dimensions of a view, without its bucket.
pub(crate) fn dimensions(job: &Job) -> &[KeyColumn] {
    let skip = usize::from(job.bucket() != schemas::time::Width::All);
    job.row().0.get(skip..).unwrap_or_default()
}

/// The name of a column in `by=` and `of=`.
pub(crate) fn by_name(column: &str) -> &str {
    column.strip_suffix("_id").unwrap_or(column)
}

/// The columns of which these views need one at least, as a message shows them.
pub(crate) fn group_columns<'a>(views: impl Iterator<Item = &'a Arc<Job>>) -> String {
    let groups: BTreeSet<String> = views
        .map(|job| names(&job.group().0).join(" and "))
        .collect();
    Vec::from_iter(groups).join(" or ")
}

fn names(columns: &[KeyColumn]) -> Vec<&str> {
    columns.iter().map(|column| column.name.as_str()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plays_are_a_metric_of_the_built_in_views() {
        let metrics = Metric::all(&Catalog::built_in().unwrap());
        let plays = &metrics["plays"];
        let needed = group_columns(plays.views.iter());
        assert_eq!(needed, "kind or owner_id or track_id");
        assert_eq!(
            plays.by_names(),
            [
                "app", "country", "kind", "listener", "owner", "referrer", "track"
            ]
        );
        assert_eq!(plays.by_column("track"), Some("track_id"));
        assert_eq!(plays.by_column("track_id"), None);
        assert_eq!(plays.columns()["referrer"], KeyKind::Text);
        assert_eq!(plays.distinct_names(), ["listener"]);
        assert_eq!(plays.distinct_column(None), Some("listener_id"));
        assert_eq!(plays.distinct_column(Some("track")), None);
    }
}
