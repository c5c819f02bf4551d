//! Routing of requests to the nodes of a server or a cluster.
//!
//! The client library's cluster connection is not used: it repeats commands whose effect is
//! unknown, opens connections whose `maxmemory-policy` nothing has checked, and does not give up
//! hanging ones. Routing is simple, because all keys of a call are in one hash slot.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use futures::future::join_all;
use redis::{Cmd, Pipeline, Value};
use tokio::sync::OnceCell;
use tokio::time::Instant;

use super::RedisOptions;
use super::connection::{ConnectionConfig, Node, NodeConnection};
use super::errors::{self, Reply};
use super::record::{HASH_SLOTS, PartitionKeys};
use super::script::Script;
use crate::retry::RetryPolicy;
use crate::{Error, Result};

/// The maximum number of times that one call is redirected or resent with the full script.
const ROUNDS_MAX: usize = 6;

/// The minimum interval between two reads of the cluster's slot map.
const SLOT_MAP_INTERVAL: Duration = Duration::from_millis(50);

/// A call to the node that owns a hash slot.
#[derive(Debug)]
pub(super) struct Request {
    hash_slot: u16,
    call: Call,
}

impl Request {
    /// A command on a key of a partition state.
    pub(super) const fn command(keys: &PartitionKeys, command: Cmd) -> Self {
        Self {
            hash_slot: keys.hash_slot,
            call: Call::Command(command),
        }
    }

    /// A script on the record of a partition state.
    pub(super) fn script(
        keys: &PartitionKeys,
        script: &'static Script,
        arguments: Vec<Bytes>,
    ) -> Self {
        let key = keys.record.clone();
        let call = Call::Script {
            script,
            key,
            arguments,
        };
        let hash_slot = keys.hash_slot;
        Self { hash_slot, call }
    }

    /// A script whose first argument is the key prefix of the partition state.
    pub(super) fn script_on_keys(
        keys: &PartitionKeys,
        script: &'static Script,
        arguments: impl IntoIterator<Item = Bytes>,
    ) -> Self {
        let first = std::iter::once(Bytes::from(keys.prefix.clone()));
        Self::script(keys, script, first.chain(arguments).collect())
    }
}

/// The command or script of a request.
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
    fn command(&self, needs_full_script: bool) -> Cmd {
        match self {
            Self::Command(command) => command.clone(),
            Self::Script {
                script,
                key,
                arguments,
            } => script.command(key, arguments, needs_full_script),
        }
    }
}

/// How a request is resent after a redirect or an unknown script.
#[derive(Debug, Clone, Default)]
struct Routing {
    /// True if the full script must be sent.
    needs_full_script: bool,
    /// The node of a redirect, which overrides the slot map.
    redirect: Option<Node>,
}

/// The owner of each range of hash slots: first, last, node.
type SlotMap = Vec<(u16, u16, Node)>;

/// The nodes of a server or cluster.
#[derive(Debug)]
pub(super) struct Nodes {
    config: ConnectionConfig,
    seeds: Vec<Node>,
    /// Set once a node has answered.
    is_cluster: OnceCell<bool>,
    pub(super) retry_policy: RetryPolicy,
    connections: Mutex<HashMap<Node, Arc<NodeConnection>>>,
    slot_map: Mutex<Arc<SlotMap>>,
    /// When the slot map was read; `None` if it may be outdated.
    slot_map_read_at: tokio::sync::Mutex<Option<Instant>>,
}

impl Nodes {
    /// Creates the nodes without connecting.
    pub(super) fn new(options: &RedisOptions) -> Result<Self> {
        // The value may contain a password, so the error does not show it.
        if options.nodes.contains(['@', '/']) {
            let reason = "nodes contains a scheme or a user; write host:port, and set user, password and tls separately";
            return Err(Error::broken("using Redis", reason));
        }
        let names = options.nodes.split(',').map(str::trim);
        let parsed = names.map(Node::parse).collect::<Option<Vec<_>>>();
        let seeds = parsed.ok_or_else(|| {
            let reason = format!(
                "nodes {:?} does not parse; write host:port, separated by commas for a cluster",
                options.nodes
            );
            Error::broken("using Redis", reason)
        })?;
        let config = ConnectionConfig::new(options)?;
        // An attempt has its own deadlines within this one, and closes connections that exceed
        // them.
        let try_timeout = 2 * (config.connect_timeout + config.response_timeout);
        let call_timeout = try_timeout.max(Duration::from_millis(options.call_timeout_ms));
        let retry_policy = RetryPolicy::new(
            format!("Redis at {}", options.nodes),
            try_timeout,
            call_timeout,
        );
        Ok(Self {
            config,
            seeds,
            is_cluster: OnceCell::new(),
            retry_policy,
            connections: Mutex::default(),
            slot_map: Mutex::default(),
            slot_map_read_at: tokio::sync::Mutex::default(),
        })
    }

    /// Connects to every node to report unusable servers at once.
    pub(super) async fn connect(&self) -> Result<()> {
        let operation = "connecting";
        self.retry_policy
            .retry(operation, || self.verify_nodes(operation))
            .await
    }

    async fn is_cluster(&self, operation: &str) -> Result<bool> {
        let is_cluster = *self
            .is_cluster
            .get_or_try_init(|| self.detect_cluster(operation))
            .await?;
        let database = self.config.database();
        if is_cluster && database != 0 {
            let reason =
                format!("a cluster has no database {database}; remove the setting database");
            return Err(Error::broken(self.retry_policy.describe(operation), reason));
        }
        Ok(is_cluster)
    }

    /// Determines from the first seed that answers whether it belongs to a cluster.
    async fn detect_cluster(&self, operation: &str) -> Result<bool> {
        let mut last_error = errors::unexpected_reply(&self.retry_policy, operation);
        for seed in &self.seeds {
            let connection = self.connection(seed);
            match connection
                .info(&self.config, &self.retry_policy, operation)
                .await
            {
                Ok(info) if !info.is_cluster() && self.seeds.len() > 1 => {
                    let reason = format!(
                        "{seed} does not belong to a cluster, so it must be the only node; configure one server"
                    );
                    return Err(Error::broken(self.retry_policy.describe(operation), reason));
                }
                Ok(info) => return Ok(info.is_cluster()),
                Err(error) => last_error = error,
            }
        }
        Err(last_error)
    }

    /// Verifies every node that owns hash slots.
    async fn verify_nodes(&self, operation: &str) -> Result<()> {
        for node in self.primaries(operation).await? {
            let connection = self.connection(&node);
            let info = connection
                .info(&self.config, &self.retry_policy, operation)
                .await?;
            if let Some(problem) = info.refusal_reason().or(info.unavailable_reason()) {
                let reason = format!("{node}: {problem}");
                return Err(Error::broken(self.retry_policy.describe(operation), reason));
            }
        }
        Ok(())
    }

    /// Returns all nodes that own hash slots.
    async fn primaries(&self, operation: &str) -> Result<Vec<Node>> {
        if !self.is_cluster(operation).await? {
            return Ok(self.seeds.clone());
        }
        self.refresh_slot_map(operation).await?;
        let mut nodes: Vec<Node> = self
            .slot_map()
            .iter()
            .map(|(_, _, node)| node.clone())
            .collect();
        nodes.sort();
        nodes.dedup();
        Ok(nodes)
    }

    /// Sends requests with retries, so they must be idempotent. The replies are in the order of the
    /// requests.
    pub(super) async fn send_with_retry(
        &self,
        operation: &str,
        requests: &[Request],
    ) -> Result<Vec<Value>> {
        let tries = || self.send(operation, requests);
        self.retry_policy.retry(operation, tries).await
    }

    /// Sends requests once, each to the node that owns its hash slot; requests to one node are
    /// pipelined. The replies are in the order of the requests.
    ///
    /// # Errors
    /// The first error; the other requests may have had an effect.
    pub(super) async fn send(&self, operation: &str, requests: &[Request]) -> Result<Vec<Value>> {
        let mut routes = vec![Routing::default(); requests.len()];
        let mut results: Vec<Option<Value>> = requests.iter().map(|_| None).collect();
        for _ in 0..ROUNDS_MAX {
            let pending: Vec<usize> = (0..requests.len())
                .filter(|index| results.get(*index).is_some_and(Option::is_none))
                .collect();
            if pending.is_empty() {
                return Ok(results.into_iter().flatten().collect());
            }
            if self.is_cluster(operation).await? && self.slot_map_read_at.lock().await.is_none() {
                self.refresh_slot_map(operation).await?;
            }
            for (index, reply) in self
                .send_pending(operation, requests, &routes, &pending)
                .await?
            {
                let (Some(route), Some(result)) = (routes.get_mut(index), results.get_mut(index))
                else {
                    continue;
                };
                match reply {
                    Reply::Value(value) => *result = Some(value),
                    Reply::NoScript => route.needs_full_script = true,
                    Reply::Redirect(address) => {
                        route.redirect = Node::parse(&address);
                        *self.slot_map_read_at.lock().await = None;
                    }
                }
            }
        }
        Err(self.retry_policy.unavailable(
            operation,
            "the cluster keeps redirecting the keys of this request",
        ))
    }

    /// Sends the open requests to all nodes concurrently.
    async fn send_pending(
        &self,
        operation: &str,
        requests: &[Request],
        routes: &[Routing],
        pending: &[usize],
    ) -> Result<Vec<(usize, Reply)>> {
        let mut by_node: BTreeMap<Node, Vec<usize>> = BTreeMap::new();
        for index in pending {
            let (Some(request), Some(route)) = (requests.get(*index), routes.get(*index)) else {
                continue;
            };
            let node = match &route.redirect {
                Some(node) => node.clone(),
                None => self.find_node(operation, request.hash_slot)?,
            };
            by_node.entry(node).or_default().push(*index);
        }
        let sending = by_node
            .into_iter()
            .map(|(node, indices)| self.send_to_node(operation, node, indices, requests, routes));
        let mut replies = Vec::with_capacity(pending.len());
        for node_replies in join_all(sending).await {
            replies.extend(node_replies?);
        }
        Ok(replies)
    }

    async fn send_to_node(
        &self,
        operation: &str,
        node: Node,
        indices: Vec<usize>,
        requests: &[Request],
        routes: &[Routing],
    ) -> Result<Vec<(usize, Reply)>> {
        let mut commands = Pipeline::with_capacity(indices.len());
        // The index of the request of each reply.
        let mut sent_indices = Vec::with_capacity(indices.len());
        for index in indices {
            let (Some(request), Some(route)) = (requests.get(index), routes.get(index)) else {
                continue;
            };
            commands.add_command(request.call.command(route.needs_full_script));
            sent_indices.push(index);
        }
        let connection = self.connection(&node);
        let sent = connection.send(&self.config, &self.retry_policy, operation, &commands);
        let values = match sent.await {
            Ok(values) => values,
            Err(error) => {
                // The keys may have moved to another node.
                *self.slot_map_read_at.lock().await = None;
                return Err(error);
            }
        };
        if values.len() != sent_indices.len() {
            return Err(errors::unexpected_reply(&self.retry_policy, operation));
        }
        let mut replies = Vec::with_capacity(values.len());
        for (index, value) in sent_indices.into_iter().zip(values) {
            if errors::is_not_primary(&value) {
                connection.disconnect().await;
            }
            let reply = errors::classify_reply(&self.retry_policy, operation, value);
            if reply
                .as_ref()
                .is_err_and(|error| matches!(error, Error::Unavailable { .. }))
            {
                *self.slot_map_read_at.lock().await = None;
            }
            replies.push((index, reply?));
        }
        Ok(replies)
    }

    fn find_node(&self, operation: &str, hash_slot: u16) -> Result<Node> {
        if self.is_cluster.get() != Some(&true) {
            let seed = self.seeds.first().cloned();
            return seed.ok_or_else(|| errors::unexpected_reply(&self.retry_policy, operation));
        }
        let slot_map = self.slot_map();
        let mut ranges = slot_map.iter();
        let range = ranges.find(|(first, last, _)| (*first..=*last).contains(&hash_slot));
        range.map(|(_, _, node)| node.clone()).ok_or_else(|| {
            let reason =
                format!("no node of the cluster owns hash slot {hash_slot}; see CLUSTER INFO");
            self.retry_policy.unavailable(operation, reason)
        })
    }

    fn slot_map(&self) -> Arc<SlotMap> {
        Arc::clone(&self.slot_map.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn connection(&self, node: &Node) -> Arc<NodeConnection> {
        let mut connections = self
            .connections
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let connection = connections
            .entry(node.clone())
            .or_insert_with(|| Arc::new(NodeConnection::new(node.clone())));
        Arc::clone(connection)
    }

    /// Reads the cluster's slot map from the first node that answers.
    async fn refresh_slot_map(&self, operation: &str) -> Result<()> {
        // One caller reads the map; concurrent callers wait and reuse it.
        let mut slot_map_read_at = self.slot_map_read_at.lock().await;
        if slot_map_read_at.is_some_and(|read_at| read_at.elapsed() < SLOT_MAP_INTERVAL) {
            return Ok(());
        }
        let mut nodes: Vec<Node> = self
            .slot_map()
            .iter()
            .map(|(_, _, node)| node.clone())
            .collect();
        nodes.extend(self.seeds.iter().cloned());
        let mut queried: Vec<Node> = Vec::new();
        let mut last_error = errors::unexpected_reply(&self.retry_policy, operation);
        for node in nodes {
            if queried.contains(&node) {
                continue;
            }
            match self.fetch_slot_map(operation, &node).await {
                Ok(slot_map) => {
                    let mut connections = self
                        .connections
                        .lock()
                        .unwrap_or_else(PoisonError::into_inner);
                    connections.retain(|node, _| {
                        self.seeds.contains(node)
                            || slot_map.iter().any(|(_, _, owner)| owner == node)
                    });
                    *self.slot_map.lock().unwrap_or_else(PoisonError::into_inner) =
                        Arc::new(slot_map);
                    *slot_map_read_at = Some(Instant::now());
                    return Ok(());
                }
                Err(error) => last_error = error,
            }
            queried.push(node);
        }
        Err(last_error)
    }

    async fn fetch_slot_map(&self, operation: &str, node: &Node) -> Result<SlotMap> {
        let mut commands = Pipeline::new();
        commands.add_command(redis::cmd("CLUSTER").arg("SLOTS").take());
        let connection = self.connection(node);
        let sent = connection.send(&self.config, &self.retry_policy, operation, &commands);
        let value = sent.await?.into_iter().next().unwrap_or_default();
        let Reply::Value(value) = errors::classify_reply(&self.retry_policy, operation, value)?
        else {
            return Err(errors::unexpected_reply(&self.retry_policy, operation));
        };
        parse_slot_map(&value, node)
            .ok_or_else(|| errors::unexpected_reply(&self.retry_policy, operation))
    }

    /// Returns problems of the server, one sentence each.
    pub(super) async fn diagnostics(&self) -> Result<Vec<String>> {
        let operation = "checking the server";
        let mut diagnostics = Vec::new();
        for node in self.primaries(operation).await? {
            let connection = self.connection(&node);
            let info = connection
                .info(&self.config, &self.retry_policy, operation)
                .await?;
            let refusal_reason = info.refusal_reason().or(info.unavailable_reason());
            let warnings = info.warnings().into_iter().map(str::to_owned);
            diagnostics.extend(
                refusal_reason
                    .into_iter()
                    .chain(warnings)
                    .map(|problem| format!("Redis at {node}: {problem}")),
            );
        }
        let assigned: usize = self
            .slot_map()
            .iter()
            .map(|(first, last, _)| usize::from(*last) + 1 - usize::from(*first))
            .sum();
        if self.is_cluster(operation).await? && assigned < usize::from(HASH_SLOTS) {
            diagnostics.push(format!(
                "{}: only {assigned} of {HASH_SLOTS} hash slots have a node; see CLUSTER INFO",
                self.retry_policy.server()
            ));
        }
        Ok(diagnostics)
    }
}

/// Decodes the reply to `CLUSTER SLOTS`: first, last, primary, replicas. A node that does not know
/// its own name omits it.
fn parse_slot_map(value: &Value, queried_node: &Node) -> Option<SlotMap> {
    let Value::Array(ranges) = value else {
        return None;
    };
    let range = |value: &Value| {
        let Value::Array(parts) = value else {
            return None;
        };
        let (Value::Int(first), Value::Int(last), Value::Array(primary)) =
            (parts.first()?, parts.get(1)?, parts.get(2)?)
        else {
            return None;
        };
        let host = match primary.first()? {
            Value::BulkString(host) => String::from_utf8(host.clone()).ok()?,
            Value::SimpleString(host) => host.clone(),
            _ => String::new(),
        };
        let Value::Int(port) = primary.get(1)? else {
            return None;
        };
        let host = if host.is_empty() || host == "?" {
            queried_node.host.clone()
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
    let slot_map: SlotMap = ranges.iter().map(range).collect::<Option<_>>()?;
    slot_map
        .iter()
        .all(|(first, last, _)| first <= last)
        .then_some(slot_map)
}
