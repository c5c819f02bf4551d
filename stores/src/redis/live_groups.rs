//! Reads the rows of one group page by page, because a large group does not fit into one reply.

use std::collections::{BTreeMap, HashSet};
use std::hash::{BuildHasher, RandomState};

use redis::Value;

use super::errors;
use super::live::RedisLive;
use super::nodes::Request;
use super::pairs::{Pairs, decode_pairs, unpack_chunks};
use super::record::{PartitionKeys, has_chunks};
use crate::{Error, Result};

/// The maximum number of reads of a group that changes during each of them.
pub(super) const GROUP_TRIES_MAX: usize = 8;

/// The number of rows in one page of a large group.
const PAGE_ROWS: usize = 5_000;
/// The number of chunks in one page of a large group.
const PAGE_CHUNKS: usize = 200;

/// The first cursor of a scan, and the cursor that ends it.
const FIRST_CURSOR: &[u8] = b"0";

/// The address of the rows of one group in one container.
#[derive(Debug, Clone, Copy)]
pub(super) struct GroupAddress<'a> {
    pub(super) keys: &'a PartitionKeys,
    pub(super) container: &'a str,
    pub(super) group: &'a [u8],
}

impl GroupAddress<'_> {
    fn key(&self) -> Vec<u8> {
        self.keys.group_key(self.container, self.group)
    }
}

impl RedisLive {
    /// Adds an increment to the sum of a row.
    pub(super) fn add_increment(
        &self,
        operation: &str,
        rows: &mut BTreeMap<Vec<u8>, Vec<u8>>,
        row: Vec<u8>,
        increment: Vec<u8>,
    ) -> Result<()> {
        let value = match rows.get(&row) {
            Some(sum) => self.add_counts(operation, sum, &increment)?,
            None => increment,
        };
        rows.insert(row, value);
        Ok(())
    }

    /// Calls `keep` for every row of a group, in no order. A row that is in several chunks is
    /// passed several times; its increments must be summed.
    ///
    /// # Errors
    /// [`Error::Unavailable`] if there are fewer rows than expected. After a failover or restart, a
    /// cursor has another meaning on the server.
    pub(super) async fn for_each_row(
        &self,
        operation: &str,
        address: GroupAddress<'_>,
        expected_fields: usize,
        mut keep: impl FnMut(Vec<u8>, Vec<u8>) -> Result<()> + Send,
    ) -> Result<()> {
        // HSCAN may return a field twice. A hash collision makes one too few, and the group is read
        // again.
        let (hasher, mut field_hashes) = (RandomState::new(), HashSet::new());
        let is_chunked = has_chunks(address.container);
        let mut cursor = Some(FIRST_CURSOR.to_vec());
        while let Some(from) = cursor {
            let (next, mut page) = self.read_row_page(operation, address, &from).await?;
            page.retain(|(field, _)| field_hashes.insert(hasher.hash_one(field)));
            if is_chunked {
                let unexpected = || errors::unexpected_reply(&self.nodes.retry_policy, operation);
                page = unpack_chunks(&page).ok_or_else(unexpected)?;
            }
            for (row, value) in page {
                keep(row, value)?;
            }
            cursor = next;
        }
        if field_hashes.len() >= expected_fields {
            return Ok(());
        }
        if is_chunked && self.count_fields(operation, address).await? < expected_fields {
            // The chunks were merged meanwhile, so the record has changed; the caller detects that.
            return Ok(());
        }
        let reason = format!(
            "a scan returned {} of {expected_fields} rows of a group",
            field_hashes.len()
        );
        Err(self.nodes.retry_policy.unavailable(operation, reason))
    }

    /// Returns the number of fields in the hash of a group.
    async fn count_fields(&self, operation: &str, address: GroupAddress<'_>) -> Result<usize> {
        let command = redis::cmd("HLEN").arg(address.key()).take();
        match self
            .send_one(operation, Request::command(address.keys, command))
            .await?
        {
            Value::Int(fields) => Ok(usize::try_from(fields).unwrap_or(usize::MAX)),
            _ => Err(errors::unexpected_reply(
                &self.nodes.retry_policy,
                operation,
            )),
        }
    }

    /// Reads a page of rows, and the cursor of the next page.
    async fn read_row_page(
        &self,
        operation: &str,
        address: GroupAddress<'_>,
        cursor: &[u8],
    ) -> Result<(Option<Vec<u8>>, Pairs)> {
        let mut command = redis::cmd("HSCAN");
        let fields = match has_chunks(address.container) {
            true => PAGE_CHUNKS,
            false => PAGE_ROWS,
        };
        command
            .arg(address.key())
            .arg(cursor)
            .arg("COUNT")
            .arg(fields);
        let request = Request::command(address.keys, command);
        let reply = self.send_one(operation, request).await?;
        let unexpected = || errors::unexpected_reply(&self.nodes.retry_policy, operation);
        let Value::Array(reply) = reply else {
            return Err(unexpected());
        };
        let mut reply = reply.into_iter();
        match (reply.next(), reply.next()) {
            (Some(Value::BulkString(next)), Some(Value::Array(values))) => {
                let next = (next != FIRST_CURSOR).then_some(next);
                Ok((next, decode_pairs(values).ok_or_else(unexpected)?))
            }
            _ => Err(unexpected()),
        }
    }

    /// Sums two stored counts.
    fn add_counts(&self, operation: &str, a: &[u8], b: &[u8]) -> Result<Vec<u8>> {
        let (a, b) = (
            self.parse_count(operation, a)?,
            self.parse_count(operation, b)?,
        );
        let sum = a.checked_add(b);
        let sum = sum.ok_or_else(|| self.overflow_error(operation))?;
        Ok(sum.to_string().into_bytes())
    }

    pub(super) fn overflow_error(&self, operation: &str) -> Error {
        let reason = "a sum exceeds 64 bits; look for events with wrong amounts";
        Error::broken(self.nodes.retry_policy.describe(operation), reason)
    }
}
