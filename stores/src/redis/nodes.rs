//! The nodes of a server: one, or those of a cluster, and which of them has a key.
//!
//! The way to a node is found here and not by the client library's own cluster connection: that one
//! repeats what may have had its effect, makes connections behind one's back that nobody has looked at
//! (`maxmemory-policy`), and does not give up those that hang. What is needed is little, since all keys
//! of a call are in one hash slot.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use futures::future::join_all;
use redis::{Cmd, Pipeline, Value};
use tokio::sync::OnceCell;
use tokio::time::Instant;

use super::RedisOptions;
use super::fault::{self, Reply};
use super::link::{Dial, Link, Node};
use super::record::{HASH_SLOTS, SlotKeys};
use super::script::Script;
use crate::patience::Patience;
use crate::{Error, Result};

/// So often one call is sent on to another node, or again with a script's whole text.
const ROUNDS: usize = 6;

/// The map of a cluster is not read more often than this.
const MAP_INTERVAL: Duration = Duration::from_millis(50);

/// A call to the node that has a hash slot.
#[derive(Debug)]
pub(super) struct Request {
    hash_slot: u16,
    call: Call,
}

impl Request {
    /// A command on a key of a slot.
    pub(super) const fn command(keys: &SlotKeys, command: Cmd) -> Self {
        Self {
            hash_slot: keys.hash_slot,
            call: Call::Command(command),
        }
    }

    /// A script on the record of a slot.
    pub(super) fn script(keys: &SlotKeys, script: &'static Script, arguments: Vec<Bytes>) -> Self {
        let key = keys.record.clone();
        let call = Call::Script {
            script,
            key,
            arguments,
        };
        let hash_slot = keys.hash_slot;
        Self { hash_slot, call }
    }

    /// The same of a script whose first argument is where the keys of the slot begin.
    pub(super) fn script_on_keys(
        keys: &SlotKeys,
        script: &'static Script,
        arguments: impl IntoIterator<Item = Bytes>,
    ) -> Self {
        let first = std::iter::once(Bytes::from(keys.prefix.clone()));
        Self::script(keys, script, first.chain(arguments).collect())
    }
}

/// What is called.
#[derive(Debug)]
enum Call {
    Command(Cmd),
    Script {
        script: &'static Script,
        key: String,
        arguments: Vec<Bytes>,
    },
}

impl Call {
    fn command(&self, whole: bool) -> Cmd {
        match self {
            Self::Command(command) => command.clone(),
            Self::Script {
                script,
                key,
                arguments,
            } => script.command(key, arguments, whole),
        }
    }
}

/// How a request goes on after a reply that was no answer.
#[derive(Debug, Clone, Default)]
struct Way {
    /// The script is sent as a whole.
    whole: bool,
    /// Another node than the map's.
    elsewhere: Option<Node>,
}

/// Which node has which hash slots: first, last, node.
type Map = Vec<(u16, u16, Node)>;

/// The nodes.
#[derive(Debug)]
pub(super) struct Nodes {
    dial: Dial,
    seeds: Vec<Node>,
    /// Known once a node has answered.
    is_cluster: OnceCell<bool>,
    pub(super) patience: Patience,
    links: Mutex<HashMap<Node, Arc<Link>>>,
    map: Mutex<Arc<Map>>,
    /// When the map was read; nothing if it may be wrong.
    mapped: tokio::sync::Mutex<Option<Instant>>,
}

impl Nodes {
    /// The nodes that are named. None is asked yet.
    pub(super) fn new(options: &RedisOptions) -> Result<Self> {
        // Which may hold a password, so it is not shown.
        if options.nodes.contains(['@', '/']) {
            let why = "a node is written as an address with a scheme or a user; write host:port, and set user, password and tls beside it";
            return Err(Error::broken("using Redis", why));
        }
        let names = options.nodes.split(',').map(str::trim);
        let parsed = names.map(Node::parse).collect::<Option<Vec<_>>>();
        let seeds = parsed.ok_or_else(|| {
            let why = format!(
                "{:?} is no list of nodes; write host:port, with commas between nodes of a cluster",
                options.nodes
            );
            Error::broken("using Redis", why)
        })?;
        let dial = Dial::new(options)?;
        // A try has its own deadlines within this one, and throws away what ran out of time.
        let try_for = 2 * (dial.connect_for + dial.respond_for);
        let call_for = try_for.max(Duration::from_millis(options.call_timeout_ms));
        let patience = Patience::new(format!("Redis at {}", options.nodes), try_for, call_for);
        Ok(Self {
            dial,
            seeds,
            is_cluster: OnceCell::new(),
            patience,
            links: Mutex::default(),
            map: Mutex::default(),
            mapped: tokio::sync::Mutex::default(),
        })
    }

    /// Connects, so that what can't be used is told at once.
    pub(super) async fn connect(&self) -> Result<()> {
        let doing = "connecting";
        self.patience.repeated(doing, || self.look(doing)).await
    }

    async fn is_cluster(&self, doing: &str) -> Result<bool> {
        let found = *self.is_cluster.get_or_try_init(|| self.find(doing)).await?;
        let database = self.dial.database();
        if found && database != 0 {
            let why = format!("a cluster has no database {database}; leave it out");
            return Err(Error::broken(self.patience.what(doing), why));
        }
        Ok(found)
    }

    /// Asks the first seed that answers whether it is of a cluster.
    async fn find(&self, doing: &str) -> Result<bool> {
        let mut last = fault::strange(&self.patience, doing);
        for seed in &self.seeds {
            let link = self.link(seed);
            match link.info(&self.dial, &self.patience, doing).await {
                Ok(info) if !info.is_cluster() && self.seeds.len() > 1 => {
                    let why = format!(
                        "{seed} is of no cluster, so it must be the only node; name one server"
                    );
                    return Err(Error::broken(self.patience.what(doing), why));
                }
                Ok(info) => return Ok(info.is_cluster()),
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    /// Connects to every node that has hash slots: what can't be used is told at once.
    async fn look(&self, doing: &str) -> Result<()> {
        for node in self.all(doing).await? {
            let link = self.link(&node);
            let info = link.info(&self.dial, &self.patience, doing).await?;
            if let Some(refusal) = info.refusal().or(info.is_behind()) {
                let why = format!("{node}: {refusal}");
                return Err(Error::broken(self.patience.what(doing), why));
            }
        }
        Ok(())
    }

    /// All nodes that have hash slots.
    async fn all(&self, doing: &str) -> Result<Vec<Node>> {
        if !self.is_cluster(doing).await? {
            return Ok(self.seeds.clone());
        }
        self.refresh(doing).await?;
        let mut nodes: Vec<Node> = self.map().iter().map(|(_, _, node)| node.clone()).collect();
        nodes.sort();
        nodes.dedup();
        Ok(nodes)
    }

    /// The answers to some requests, in their order. They are tried again, so they must be ones that may run several times.
    pub(super) async fn ask_again(&self, doing: &str, requests: &[Request]) -> Result<Vec<Value>> {
        let tries = || self.ask(doing, requests);
        self.patience.repeated(doing, tries).await
    }

    /// One try of some requests, each at the node that has its hash slot; those of one node go together.
    /// The answers come in the order of the requests.
    ///
    /// # Errors
    /// The first one; the other requests may have had their effect.
    pub(super) async fn ask(&self, doing: &str, requests: &[Request]) -> Result<Vec<Value>> {
        let mut ways = vec![Way::default(); requests.len()];
        let mut answers: Vec<Option<Value>> = requests.iter().map(|_| None).collect();
        for _ in 0..ROUNDS {
            let open: Vec<usize> = (0..requests.len())
                .filter(|index| answers.get(*index).is_some_and(Option::is_none))
                .collect();
            if open.is_empty() {
                return Ok(answers.into_iter().flatten().collect());
            }
            if self.is_cluster(doing).await? && self.mapped.lock().await.is_none() {
                self.refresh(doing).await?;
            }
            for (index, reply) in self.round(doing, requests, &ways, &open).await? {
                let (Some(way), Some(answer)) = (ways.get_mut(index), answers.get_mut(index))
                else {
                    continue;
                };
                match reply {
                    Reply::Value(value) => *answer = Some(value),
                    Reply::NoScript => way.whole = true,
                    Reply::Moved(to) => {
                        way.elsewhere = Node::parse(&to);
                        *self.mapped.lock().await = None;
                    }
                }
            }
        }
        Err(self
            .patience
            .unavailable(doing, "the cluster keeps moving its keys"))
    }

    /// Sends what is open, to all nodes side by side.
    async fn round(
        &self,
        doing: &str,
        requests: &[Request],
        ways: &[Way],
        open: &[usize],
    ) -> Result<Vec<(usize, Reply)>> {
        let mut by_node: BTreeMap<Node, Vec<usize>> = BTreeMap::new();
        for index in open {
            let (Some(request), Some(way)) = (requests.get(*index), ways.get(*index)) else {
                continue;
            };
            let node = match &way.elsewhere {
                Some(node) => node.clone(),
                None => self.node_of(doing, request.hash_slot)?,
            };
            by_node.entry(node).or_default().push(*index);
        }
        let sending = by_node
            .into_iter()
            .map(|(node, indices)| self.ask_node(doing, node, indices, (requests, ways)));
        let mut replies = Vec::with_capacity(open.len());
        for of_node in join_all(sending).await {
            replies.extend(of_node?);
        }
        Ok(replies)
    }

    async fn ask_node(
        &self,
        doing: &str,
        node: Node,
        indices: Vec<usize>,
        (requests, ways): (&[Request], &[Way]),
    ) -> Result<Vec<(usize, Reply)>> {
        let mut commands = Pipeline::with_capacity(indices.len());
        // Whose reply is whose.
        let mut owners = Vec::with_capacity(indices.len());
        for index in indices {
            let (Some(request), Some(way)) = (requests.get(index), ways.get(index)) else {
                continue;
            };
            commands.add_command(request.call.command(way.whole));
            owners.push(index);
        }
        let link = self.link(&node);
        let sent = link.send(&self.dial, &self.patience, doing, &commands);
        let values = match sent.await {
            Ok(values) => values,
            Err(error) => {
                // The node may have lost its keys to another one.
                *self.mapped.lock().await = None;
                return Err(error);
            }
        };
        if values.len() != owners.len() {
            return Err(fault::strange(&self.patience, doing));
        }
        let mut replies = Vec::with_capacity(values.len());
        for (owner, value) in owners.into_iter().zip(values) {
            if fault::is_demoted(&value) {
                link.give_up().await;
            }
            let reply = fault::reply(&self.patience, doing, value);
            if reply
                .as_ref()
                .is_err_and(|error| matches!(error, Error::Unavailable { .. }))
            {
                *self.mapped.lock().await = None;
            }
            replies.push((owner, reply?));
        }
        Ok(replies)
    }

    fn node_of(&self, doing: &str, hash_slot: u16) -> Result<Node> {
        if self.is_cluster.get() != Some(&true) {
            let seed = self.seeds.first().cloned();
            return seed.ok_or_else(|| fault::strange(&self.patience, doing));
        }
        let map = self.map();
        let mut ranges = map.iter();
        let found = ranges.find(|(first, last, _)| (*first..=*last).contains(&hash_slot));
        found.map(|(_, _, node)| node.clone()).ok_or_else(|| {
            let why = format!("no node of the cluster has hash slot {hash_slot}");
            self.patience.unavailable(doing, why)
        })
    }

    fn map(&self) -> Arc<Map> {
        Arc::clone(&self.map.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn link(&self, node: &Node) -> Arc<Link> {
        let mut links = self.links.lock().unwrap_or_else(PoisonError::into_inner);
        let link = links
            .entry(node.clone())
            .or_insert_with(|| Arc::new(Link::new(node.clone())));
        Arc::clone(link)
    }

    /// Reads the map of the cluster from the first node that answers.
    async fn refresh(&self, doing: &str) -> Result<()> {
        // One reads it, and those who wait meanwhile find it read.
        let mut mapped = self.mapped.lock().await;
        if mapped.is_some_and(|at| at.elapsed() < MAP_INTERVAL) {
            return Ok(());
        }
        let mut nodes: Vec<Node> = self.map().iter().map(|(_, _, node)| node.clone()).collect();
        nodes.extend(self.seeds.iter().cloned());
        let mut asked: Vec<Node> = Vec::new();
        let mut last = fault::strange(&self.patience, doing);
        for node in nodes {
            if asked.contains(&node) {
                continue;
            }
            match self.ask_map(doing, &node).await {
                Ok(map) => {
                    let mut links = self.links.lock().unwrap_or_else(PoisonError::into_inner);
                    links.retain(|node, _| {
                        self.seeds.contains(node) || map.iter().any(|(_, _, of)| of == node)
                    });
                    *self.map.lock().unwrap_or_else(PoisonError::into_inner) = Arc::new(map);
                    *mapped = Some(Instant::now());
                    return Ok(());
                }
                Err(error) => last = error,
            }
            asked.push(node);
        }
        Err(last)
    }

    async fn ask_map(&self, doing: &str, node: &Node) -> Result<Map> {
        let mut commands = Pipeline::new();
        commands.add_command(redis::cmd("CLUSTER").arg("SLOTS").take());
        let link = self.link(node);
        let sent = link.send(&self.dial, &self.patience, doing, &commands);
        let value = sent.await?.into_iter().next().unwrap_or_default();
        let Reply::Value(value) = fault::reply(&self.patience, doing, value)? else {
            return Err(fault::strange(&self.patience, doing));
        };
        parse_map(&value, node).ok_or_else(|| fault::strange(&self.patience, doing))
    }

    /// What is wrong with the server, in sentences.
    pub(super) async fn flaws(&self) -> Result<Vec<String>> {
        let doing = "looking at the server";
        let mut flaws = Vec::new();
        for node in self.all(doing).await? {
            let link = self.link(&node);
            let info = link.info(&self.dial, &self.patience, doing).await?;
            let refusal = info.refusal().or(info.is_behind());
            let warnings = info.warnings().into_iter().map(str::to_owned);
            flaws.extend(
                refusal
                    .into_iter()
                    .chain(warnings)
                    .map(|flaw| format!("Redis at {node}: {flaw}")),
            );
        }
        let held: usize = self
            .map()
            .iter()
            .map(|(first, last, _)| usize::from(*last) + 1 - usize::from(*first))
            .sum();
        if self.is_cluster(doing).await? && held < usize::from(HASH_SLOTS) {
            flaws.push(format!(
                "{}: {held} of {HASH_SLOTS} hash slots are on a node; look at CLUSTER INFO",
                self.patience.server()
            ));
        }
        Ok(flaws)
    }
}

/// The answer to `CLUSTER SLOTS`: first, last, master, replicas. A node that does not know its own name
/// leaves it out.
fn parse_map(value: &Value, asked: &Node) -> Option<Map> {
    let Value::Array(ranges) = value else {
        return None;
    };
    let range = |value: &Value| {
        let Value::Array(parts) = value else {
            return None;
        };
        let (Value::Int(first), Value::Int(last), Value::Array(master)) =
            (parts.first()?, parts.get(1)?, parts.get(2)?)
        else {
            return None;
        };
        let host = match master.first()? {
            Value::BulkString(host) => String::from_utf8(host.clone()).ok()?,
            Value::SimpleString(host) => host.clone(),
            _ => String::new(),
        };
        let Value::Int(port) = master.get(1)? else {
            return None;
        };
        let host = if host.is_empty() || host == "?" {
            asked.host.clone()
        } else {
            host
        };
        let node = Node {
            host,
            port: u16::try_from(*port).ok()?,
        };
        Some((
            u16::try_from(*first).ok()?,
            u16::try_from(*last).ok()?,
            node,
        ))
    };
    let map: Map = ranges.iter().map(range).collect::<Option<_>>()?;
    map.iter()
        .all(|(first, last, _)| first <= last)
        .then_some(map)
}
