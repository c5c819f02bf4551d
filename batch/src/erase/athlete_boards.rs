//! Finds boards that name an athlete. Reads every stored node, whether a head leads to it or not,
//! and both roots of every head.

use std::collections::BTreeSet;
use std::pin::pin;
use std::sync::Arc;

use futures::TryStreamExt;
use jobs::board::VersionTrees;
use jobs::tree::Node;
use jobs::{Board, Job, Layers};
use schemas::key::{KeyShape, KeyValue};
use schemas::source::Source;
use stores::erasures::SearchedPeople;
use stores::views::Head;

use super::eraser::Eraser;
use crate::pages::stream_pages;
use crate::{Error, Result};

/// Keys that are listed at once.
const LIST_KEYS: usize = 10_000;
const HEADS_AT_ONCE: usize = 64;
const NODES_AT_ONCE: usize = 256;

/// The key shapes of both trees of a version.
#[derive(Debug)]
struct TreeKeyShapes {
    /// The tree in rank order (board, score, member), and the index of the member.
    by_rank: (KeyShape, usize),
    /// The tree in member order (member, board).
    by_member: KeyShape,
}

impl TreeKeyShapes {
    fn new(job: &Job<Board>) -> Self {
        let join = |parts: &[&KeyShape]| {
            let columns = parts.iter().flat_map(|part| part.0.iter().cloned());
            KeyShape(columns.collect())
        };
        let member = job.board_columns().0.len() + job.score().0.len();
        Self {
            by_rank: (
                join(&[job.board_columns(), job.score(), job.member()]),
                member,
            ),
            by_member: join(&[job.member(), job.board_columns()]),
        }
    }

    /// Returns the athlete in a key of either tree. The trees' keys differ in length.
    fn decode_athlete(&self, key: &[u8]) -> Option<i64> {
        let (by_rank, member) = &self.by_rank;
        let (values, index) = match by_rank.decode_values(key) {
            Ok(values) => (values, *member),
            Err(_) => (self.by_member.decode_values(key).ok()?, 0),
        };
        match values.get(index) {
            Some(KeyValue::Int(id)) => Some(*id),
            _ => None,
        }
    }
}

impl Eraser {
    /// Returns the boards of a source.
    pub(super) fn list_boards(&self, source: Source) -> Vec<Arc<Job<Board>>> {
        let catalog = &self.batch.catalog;
        catalog
            .boards_in_layer(source, Layers::Batch)
            .map(Arc::clone)
            .collect()
    }

    /// Returns the keys of all boards of a source that have stored data of one of the athletes.
    pub(super) async fn find_keys_naming(
        &self,
        source: Source,
        athletes: &BTreeSet<i64>,
    ) -> Result<BTreeSet<i64>> {
        let mut naming_keys = BTreeSet::new();
        for job in self.list_boards(source) {
            self.for_each_entry(&job, |key, athlete| {
                if athletes.contains(&athlete) {
                    naming_keys.insert(decode_key_id(&job, key)?);
                }
                Ok(())
            })
            .await?;
        }
        Ok(naming_keys)
    }

    /// Counts the entries in nodes and roots of a board that name each searched athlete.
    pub(super) async fn count_in_board(
        &self,
        job: &Job<Board>,
        counts: &mut SearchedPeople,
    ) -> Result<()> {
        self.for_each_entry(job, |_, athlete| {
            counts.increment(athlete);
            Ok(())
        })
        .await
    }

    /// Calls `visit` with the key and the athlete of each stored entry.
    async fn for_each_entry(
        &self,
        job: &Job<Board>,
        mut visit: impl FnMut(&[u8], i64) -> Result<()>,
    ) -> Result<()> {
        let (views, shapes) = (&self.batch.ports.views, TreeKeyShapes::new(job));
        let read = |after| views.keys(job.view(), after, LIST_KEYS);
        let mut pages = pin!(stream_pages(read, Vec::clone));
        while let Some(keys) = pages.try_next().await? {
            for keys in keys.chunks(HEADS_AT_ONCE) {
                let heads = views.heads(job.view(), keys).await?;
                let heads = heads.unwrap_or_default().into_iter();
                for (key, head) in keys.iter().zip(heads) {
                    let mut visit = |athlete| visit(key, athlete);
                    self.visit_nodes(job, &shapes, key, &mut visit).await?;
                    visit_head(job, &shapes, head.as_ref(), &mut visit)?;
                }
            }
        }
        Ok(())
    }

    async fn visit_nodes(
        &self,
        job: &Job<Board>,
        shapes: &TreeKeyShapes,
        key: &[u8],
        visit: &mut impl FnMut(i64) -> Result<()>,
    ) -> Result<()> {
        let views = &self.batch.ports.views;
        let names = views.node_names(job.view(), key).await?;
        for names in names.chunks(NODES_AT_ONCE) {
            let nodes = views.nodes(job.view(), key, names).await?;
            for bytes in nodes.into_iter().flatten() {
                // An unreadable node is skipped. It is replaced when its key is rewritten.
                if let Ok(node) = Node::decode(&bytes) {
                    let mut athletes = node.keys().filter_map(|key| shapes.decode_athlete(key));
                    athletes.try_for_each(&mut *visit)?;
                }
            }
        }
        Ok(())
    }
}

/// Calls `visit` with the athlete of each entry of a head's roots.
fn visit_head(
    job: &Job<Board>,
    shapes: &TreeKeyShapes,
    head: Option<&Head>,
    visit: &mut impl FnMut(i64) -> Result<()>,
) -> Result<()> {
    let has_scores = !job.score().0.is_empty();
    let earlier = head.and_then(|head| head.earlier.as_ref());
    let roots = head
        .map(|head| &head.root)
        .into_iter()
        .chain(earlier.map(|earlier| &earlier.root));
    let versions = roots.filter_map(|root| VersionTrees::open(root, has_scores).ok());
    for version in versions {
        for tree in version.trees() {
            let mut athletes = tree
                .root_keys()
                .filter_map(|key| shapes.decode_athlete(key));
            athletes.try_for_each(&mut *visit)?;
        }
    }
    Ok(())
}

fn decode_key_id(job: &Job<Board>, key: &[u8]) -> Result<i64> {
    let values = job.key().decode_values(key);
    let values = values.map_err(|error| Error::fault("decoding a key", error))?;
    match values.first() {
        Some(KeyValue::Int(id)) => Ok(*id),
        _ => Err(Error::Fault(format!(
            "a key of {} is not an id",
            job.view()
        ))),
    }
}
