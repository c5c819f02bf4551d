//! A metric: the views of the catalog that count the same events.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use jobs::sketch::{cell_column, is_cell_column};
use jobs::{Catalog, Job, Layers, Rollup};
use schemas::key::{KeyColumn, KeyKind};
use schemas::source::Source;

/// The subject of `/stats/NAME/…`: views that count the same events at different granularity.
#[derive(Debug, Clone)]
pub(crate) struct Metric {
    pub(crate) name: String,
    pub(crate) source: Source,
    pub(crate) views: Vec<Arc<Job>>,
    /// Roll-ups that derive the live deltas of views that have none, by `name@version`.
    pub(crate) rollups: Arc<BTreeMap<String, Arc<Rollup>>>,
    columns: BTreeMap<String, KeyKind>,
    /// Columns whose distinct values are counted.
    distinct: BTreeSet<String>,
}

impl Metric {
    /// The metrics of a catalog, by name. They include the views that both layers store, and plain
    /// roll-ups of these.
    pub(crate) fn from_catalog(catalog: &Catalog) -> BTreeMap<String, Self> {
        let mut metrics: BTreeMap<String, Self> = BTreeMap::new();
        let rollups = catalog.jobs().iter().filter_map(|job| {
            let rollup = Rollup::find(job, catalog.jobs())?;
            Some((job.view().to_owned(), Arc::new(rollup)))
        });
        let rollups: Arc<BTreeMap<_, _>> = Arc::new(rollups.collect());
        for job in catalog.jobs() {
            if job.layers() != Layers::Both && !rollups.contains_key(job.view()) {
                tracing::warn!(
                    job = job.name(),
                    "the view is not served: only the batch layer stores it, and it is not a plain roll-up of a view that both layers store"
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

    /// The view that provides the live deltas of a view: itself, or the view that it rolls up.
    pub(crate) fn live_view<'a>(&'a self, job: &'a Job) -> &'a str {
        let rollup = self.rollups.get(job.view());
        rollup.map_or(job.view(), |rollup| rollup.base().view())
    }

    /// Columns to filter and group by, with their types.
    pub(crate) const fn columns(&self) -> &BTreeMap<String, KeyKind> {
        &self.columns
    }

    /// The column of a name in `by=`: the column name without its suffix `_id`.
    pub(crate) fn grouping_column(&self, name: &str) -> Option<&str> {
        self.columns
            .keys()
            .map(String::as_str)
            .find(|column| parameter_name(column) == name)
    }

    /// The column of a name in `of=`; without a name, the only column if there is exactly one.
    pub(crate) fn distinct_column(&self, name: Option<&str>) -> Option<&str> {
        let mut columns = self.distinct.iter().map(String::as_str);
        match name {
            Some(name) => columns.find(|column| parameter_name(column) == name),
            None => columns.next().filter(|_| self.distinct.len() == 1),
        }
    }

    /// Valid names of `of=`.
    pub(crate) fn distinct_names(&self) -> Vec<&str> {
        self.distinct
            .iter()
            .map(|column| parameter_name(column))
            .collect()
    }

    /// Valid names of `by=`.
    pub(crate) fn grouping_names(&self) -> Vec<&str> {
        self.columns
            .keys()
            .map(|column| parameter_name(column))
            .collect()
    }
}

/// The column that partitions the records of a source: all events with the same value are in one
/// partition.
pub(crate) const fn log_key(source: Source) -> &'static str {
    schemas::entities::key_column(source)
}

/// The dimensions of a view, without its bucket.
pub(crate) fn dimensions(job: &Job) -> &[KeyColumn] {
    let bucket_columns = usize::from(job.bucket() != schemas::time::BucketWidth::All);
    job.row().0.get(bucket_columns..).unwrap_or_default()
}

/// The name of a column in `by=` and `of=`.
pub(crate) fn parameter_name(column: &str) -> &str {
    column.strip_suffix("_id").unwrap_or(column)
}

/// Formats the group columns of views for messages. A request must filter by those of one view.
pub(crate) fn format_group_columns<'a>(views: impl Iterator<Item = &'a Arc<Job>>) -> String {
    let column_lists: BTreeSet<String> = views
        .map(|job| column_names(&job.group().0).join(" and "))
        .collect();
    Vec::from_iter(column_lists).join(" or ")
}

fn column_names(columns: &[KeyColumn]) -> Vec<&str> {
    columns.iter().map(|column| column.name.as_str()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn built_in_views_form_the_metric_plays() {
        let metrics = Metric::from_catalog(&Catalog::built_in().unwrap());
        let plays = &metrics["plays"];
        let group_columns = format_group_columns(plays.views.iter());
        assert_eq!(group_columns, "kind or owner_id or track_id");
        assert_eq!(
            plays.grouping_names(),
            [
                "app", "country", "kind", "listener", "owner", "referrer", "track"
            ]
        );
        assert_eq!(plays.grouping_column("track"), Some("track_id"));
        assert_eq!(plays.grouping_column("track_id"), None);
        assert_eq!(plays.columns()["referrer"], KeyKind::Text);
        assert_eq!(plays.distinct_names(), ["listener"]);
        assert_eq!(plays.distinct_column(None), Some("listener_id"));
        assert_eq!(plays.distinct_column(Some("track")), None);
    }
}
