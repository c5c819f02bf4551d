//! A metric: the views of the catalog that count the same thing.

use std::collections::BTreeMap;
use std::sync::Arc;

use jobs::{Catalog, Job, Layers};
use schemas::key::{KeyColumn, KeyKind};
use schemas::source::Source;

/// What `/stats/NAME/…` asks for: views that count the same events at different grain.
#[derive(Debug, Clone)]
pub(crate) struct Metric {
    pub(crate) name: String,
    pub(crate) source: Source,
    pub(crate) views: Vec<Arc<Job>>,
    columns: BTreeMap<String, KeyKind>,
}

impl Metric {
    /// The metrics of a catalog, by name. Only views that both layers keep can be answered from.
    pub(crate) fn all(catalog: &Catalog) -> BTreeMap<String, Self> {
        let mut metrics: BTreeMap<String, Self> = BTreeMap::new();
        for job in catalog.jobs() {
            if job.layers() != Layers::Both {
                continue;
            }
            let metric = metrics
                .entry(job.metric().to_owned())
                .or_insert_with(|| Self {
                    name: job.metric().to_owned(),
                    source: job.source(),
                    views: Vec::new(),
                    columns: BTreeMap::new(),
                });
            if metric.source != job.source() {
                continue;
            }
            for column in job.group().0.iter().chain(dimensions(job)) {
                metric.columns.insert(column.name.clone(), column.kind);
            }
            metric.views.push(Arc::clone(job));
        }
        metrics
    }

    /// The columns that can be filtered and grouped by, with what they hold.
    pub(crate) const fn columns(&self) -> &BTreeMap<String, KeyKind> {
        &self.columns
    }

    /// The columns of which one at least must be given, as a message shows them.
    pub(crate) fn group_columns(&self) -> String {
        let mut groups: Vec<String> = self
            .views
            .iter()
            .map(|job| names(&job.group().0).join(" and "))
            .collect();
        groups.sort_unstable();
        groups.dedup();
        groups.join(" or ")
    }

    /// The column that a name in `by=` stands for: its own, or without its `_id`.
    pub(crate) fn by_column(&self, name: &str) -> Option<&str> {
        self.columns
            .keys()
            .map(String::as_str)
            .find(|column| by_name(column) == name)
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

fn by_name(column: &str) -> &str {
    column.strip_suffix("_id").unwrap_or(column)
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
        assert_eq!(plays.group_columns(), "owner_id or track_id");
        assert_eq!(
            plays.by_names(),
            [
                "app", "country", "kind", "listener", "owner", "referrer", "track"
            ]
        );
        assert_eq!(plays.by_column("track"), Some("track_id"));
        assert_eq!(plays.by_column("track_id"), None);
        assert_eq!(plays.columns()["referrer"], KeyKind::Text);
    }
}
