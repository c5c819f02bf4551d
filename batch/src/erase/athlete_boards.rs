//! Boards that name an athlete: every node that is stored is read, whether a head leads to it or not, and both roots of
//! every head.

use std::collections::BTreeSet;
use std::pin::pin;
use std::sync::Arc;

use futures::TryStreamExt;
use jobs::board::Sheet;
use jobs::tree::Node;
use jobs::{Board, Job, Layers};
use schemas::key::{KeyShape, KeyValue};
use schemas::source::Source;
use stores::erasures::Sought;
use stores::views::Head;

use super::Eraser;
use crate::pages::pages;
use crate::{Error, Result};

/// Keys that are listed at once, those whose heads are read at once, and nodes.
const LIST_KEYS: usize = 10_000;
const HEADS: usize = 64;
const NODES: usize = 256;

/// How the keys of both trees of a sheet are made up.
#[derive(Debug)]
struct Shapes {
    /// In the order of ranks: board, score, member.
    by_rank: (KeyShape, usize),
    /// In the order of members: member, board.
    by_member: KeyShape,
}

impl Shapes {
    fn of(job: &Job<Board>) -> Self {
        let joined = |parts: &[&KeyShape]| {
            let columns = parts.iter().flat_map(|part| part.0.iter().cloned());
            KeyShape(columns.collect())
        };
        let member = job.boards().0.len() + job.score().0.len();
        Self {
            by_rank: (joined(&[job.boards(), job.score(), job.member()]), member),
            by_member: joined(&[job.member(), job.boards()]),
        }
    }

    /// Whom a key of either tree names. Their keys differ in how long they are.
    fn athlete(&self, key: &[u8]) -> Option<i64> {
        let (by_rank, member) = &self.by_rank;
        let (values, at) = match by_rank.decode_values(key) {
            Ok(values) => (values, *member),
            Err(_) => (self.by_member.decode_values(key).ok()?, 0),
        };
        match values.get(at) {
            Some(KeyValue::Int(id)) => Some(*id),
            _ => None,
        }
    }
}

impl Eraser {
    /// The boards of a source.
    pub(super) fn boards_of(&self, source: Source) -> Vec<Arc<Job<Board>>> {
        let catalog = &self.batch.catalog;
        catalog
            .boards_of_layer(source, Layers::Batch)
            .map(Arc::clone)
            .collect()
    }

    /// The keys of all boards of a source of which anything is stored that names one of some athletes.
    pub(super) async fn keys_with(
        &self,
        source: Source,
        athletes: &BTreeSet<i64>,
    ) -> Result<BTreeSet<i64>> {
        let mut found = BTreeSet::new();
        for job in self.boards_of(source) {
            self.each_entry(&job, |key, athlete| {
                if athletes.contains(&athlete) {
                    found.insert(id_of(&job, key)?);
                }
                Ok(())
            })
            .await?;
        }
        Ok(found)
    }

    /// Counts the entries of nodes and roots of a board that name each athlete who is sought.
    pub(super) async fn in_board(&self, job: &Job<Board>, found: &mut Sought) -> Result<()> {
        self.each_entry(job, |_, athlete| {
            found.note(athlete);
            Ok(())
        })
        .await
    }

    /// Hands on the athlete of each entry that is stored, with the key that it is of.
    async fn each_entry(
        &self,
        job: &Job<Board>,
        mut take: impl FnMut(&[u8], i64) -> Result<()>,
    ) -> Result<()> {
        let (views, shapes) = (&self.batch.ports.views, Shapes::of(job));
        let read = |after| views.keys(job.view(), after, LIST_KEYS);
        let mut pages = pin!(pages(read, Vec::clone));
        while let Some(keys) = pages.try_next().await? {
            for keys in keys.chunks(HEADS) {
                let heads = views.heads(job.view(), keys).await?;
                let heads = heads.unwrap_or_default().into_iter();
                for (key, head) in keys.iter().zip(heads) {
                    let mut take = |athlete| take(key, athlete);
                    self.in_nodes(job, &shapes, key, &mut take).await?;
                    in_head(job, &shapes, head.as_ref(), &mut take)?;
                }
            }
        }
        Ok(())
    }

    async fn in_nodes(
        &self,
        job: &Job<Board>,
        shapes: &Shapes,
        key: &[u8],
        take: &mut impl FnMut(i64) -> Result<()>,
    ) -> Result<()> {
        let views = &self.batch.ports.views;
        let names = views.node_names(job.view(), key).await?;
        for names in names.chunks(NODES) {
            let nodes = views.nodes(job.view(), key, names).await?;
            for bytes in nodes.into_iter().flatten() {
                // One that can't be read says nothing, and is written anew when its key is.
                if let Ok(node) = Node::decode(&bytes) {
                    let mut named = node.keys().filter_map(|key| shapes.athlete(key));
                    named.try_for_each(&mut *take)?;
                }
            }
        }
        Ok(())
    }
}

/// Hands on the athlete of each entry of the roots of a head.
fn in_head(
    job: &Job<Board>,
    shapes: &Shapes,
    head: Option<&Head>,
    take: &mut impl FnMut(i64) -> Result<()>,
) -> Result<()> {
    let has_scores = !job.score().0.is_empty();
    let earlier = head.and_then(|head| head.earlier.as_ref());
    let roots = head
        .map(|head| &head.root)
        .into_iter()
        .chain(earlier.map(|earlier| &earlier.root));
    let sheets = roots.filter_map(|root| Sheet::open(root, has_scores).ok());
    for sheet in sheets {
        for tree in sheet.trees() {
            let mut named = tree.root_keys().filter_map(|key| shapes.athlete(key));
            named.try_for_each(&mut *take)?;
        }
    }
    Ok(())
}

fn id_of(job: &Job<Board>, key: &[u8]) -> Result<i64> {
    let values = job.key().decode_values(key);
    let values = values.map_err(|error| Error::fault("decoding a key", error))?;
    match values.first() {
        Some(KeyValue::Int(id)) => Ok(*id),
        _ => Err(Error::Fault(format!("a key of {} is no id", job.view()))),
    }
}
