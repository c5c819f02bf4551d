//! Boards that name an athlete: every node that is stored is read, whether a head leads to it or not, and both roots of
//! every head.

use std::collections::BTreeSet;
use std::sync::Arc;

use jobs::board::Sheet;
use jobs::tree::Node;
use jobs::{Board, Job, Layers};
use schemas::key::{KeyShape, KeyValue};
use schemas::source::Source;
use stores::views::Head;

use super::Eraser;
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

    /// Whether a key of either tree names an athlete. Their keys differ in how long they are.
    fn names(&self, key: &[u8], athlete: i64) -> bool {
        let is_athlete = |values: Vec<KeyValue>, at: usize| matches!(values.get(at), Some(KeyValue::Int(id)) if *id == athlete);
        let (by_rank, member) = &self.by_rank;
        match by_rank.decode_values(key) {
            Ok(values) => is_athlete(values, *member),
            Err(_) => match self.by_member.decode_values(key) {
                Ok(values) => is_athlete(values, 0),
                Err(_) => false,
            },
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

    /// The keys of all boards of a source of which anything is stored that names an athlete.
    pub(super) async fn keys_with(&self, source: Source, athlete: i64) -> Result<BTreeSet<i64>> {
        let mut found = BTreeSet::new();
        for job in self.boards_of(source) {
            self.each_key(&job, athlete, |key, _| {
                found.insert(key);
            })
            .await?;
        }
        Ok(found)
    }

    /// How many entries of nodes and roots of a board name an athlete.
    pub(super) async fn in_board(&self, job: &Job<Board>, athlete: i64) -> Result<u64> {
        let mut found = 0;
        self.each_key(job, athlete, |_, entries| found += entries)
            .await?;
        Ok(found)
    }

    /// Hands on each key of which something names an athlete, and how many entries do.
    async fn each_key(
        &self,
        job: &Job<Board>,
        athlete: i64,
        mut take: impl FnMut(i64, u64),
    ) -> Result<()> {
        let (views, shapes) = (&self.batch.ports.views, Shapes::of(job));
        let mut after: Option<Vec<u8>> = None;
        loop {
            let keys = views.keys(job.view(), after, LIST_KEYS).await?;
            let Some(last) = keys.last() else {
                return Ok(());
            };
            after = Some(last.clone());
            for keys in keys.chunks(HEADS) {
                let heads = views.heads(job.view(), keys).await?;
                let heads = heads.unwrap_or_default().into_iter();
                for (key, head) in keys.iter().zip(heads) {
                    let mut entries = self.in_nodes(job, &shapes, key, athlete).await?;
                    entries += in_head(job, &shapes, head.as_ref(), athlete);
                    if entries > 0 {
                        take(id_of(job, key)?, entries);
                    }
                }
            }
        }
    }

    async fn in_nodes(
        &self,
        job: &Job<Board>,
        shapes: &Shapes,
        key: &[u8],
        athlete: i64,
    ) -> Result<u64> {
        let views = &self.batch.ports.views;
        let names = views.node_names(job.view(), key).await?;
        let mut found = 0;
        for names in names.chunks(NODES) {
            let nodes = views.nodes(job.view(), key, names).await?;
            for bytes in nodes.into_iter().flatten() {
                // One that can't be read says nothing, and is written anew when its key is.
                if let Ok(node) = Node::decode(&bytes) {
                    let named = node.keys().filter(|key| shapes.names(key, athlete));
                    found += named.count() as u64;
                }
            }
        }
        Ok(found)
    }
}

/// How many entries of the roots of a head name an athlete.
fn in_head(job: &Job<Board>, shapes: &Shapes, head: Option<&Head>, athlete: i64) -> u64 {
    let has_scores = !job.score().0.is_empty();
    let earlier = head.and_then(|head| head.earlier.as_ref());
    let roots = head
        .map(|head| &head.root)
        .into_iter()
        .chain(earlier.map(|earlier| &earlier.root));
    let sheets = roots.filter_map(|root| Sheet::open(root, has_scores).ok());
    let mut found = 0;
    for sheet in sheets {
        for tree in sheet.trees() {
            let named = tree.root_keys().filter(|key| shapes.names(key, athlete));
            found += named.count() as u64;
        }
    }
    found
}

fn id_of(job: &Job<Board>, key: &[u8]) -> Result<i64> {
    let values = job.key().decode_values(key);
    let values = values.map_err(|error| Error::fault("decoding a key", error))?;
    match values.first() {
        Some(KeyValue::Int(id)) => Ok(*id),
        _ => Err(Error::Fault(format!("a key of {} is no id", job.view()))),
    }
}
