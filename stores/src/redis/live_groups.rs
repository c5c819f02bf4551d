//! Reads the rows of one group page by page, because a large group does not fit into one answer.

use std::collections::{BTreeMap, HashSet};
use std::hash::{BuildHasher, RandomState};

use redis::Value;

use super::errors;
use super::live::RedisLive;
use super::nodes::Request;
use super::pairs::{Pairs, pairs, unpack_chunks};
use super::record::{PartitionKeys, has_chunks};
use crate::{Error, Result};

/// Most times that a group is read again because it has changed during the read.
pub(super) const GROUP_TRIES: usize = 8;

/// Rows in one page of a large group.
const PAGE_ROWS: usize = 5_000;
/// Chunks in one page of a large group.
const PAGE_CHUNKS: usize = 200;

/// First cursor of a scan, and the cursor that ends it.
const FIRST_PAGE: &[u8] = b"0";

/// Address of the rows of one group in one container.
#[derive(Debug, Clone, Copy)]
pub(super) struct GroupAddress<'a> {
    pub(super) keys: &'a PartitionKeys,
    pub(super) container: &'a str,
    pub(super) group: &'a [u8],
}

impl GroupAddress<'_> {
    fn key(&self) -> Vec<u8> {
        self.keys.group(self.container, self.group)
    }
}

impl RedisLive {
    /// Adds an increment to a row that may have others.
    pub(super) fn add_row_part(
        &self,
        operation: &str,
        rows: &mut BTreeMap<Vec<u8>, Vec<u8>>,
        row: Vec<u8>,
        part: Vec<u8>,
    ) -> Result<()> {
        let value = match rows.get(&row) {
            Some(others) => self.sum(operation, others, &part)?,
            None => part,
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
        expected: usize,
        mut keep: impl FnMut(Vec<u8>, Vec<u8>) -> Result<()> + Send,
    ) -> Result<()> {
        // HSCAN may return a field twice. A hash collision makes one too few, and the group is read
        // again.
        let (hasher, mut field_hashes) = (RandomState::new(), HashSet::new());
        let is_chunked = has_chunks(address.container);
        let mut cursor = Some(FIRST_PAGE.to_vec());
        while let Some(from) = cursor {
            let (next, mut page) = self.read_row_page(operation, address, &from).await?;
            page.retain(|(field, _)| field_hashes.insert(hasher.hash_one(field)));
            if is_chunked {
                let unexpected = || errors::unexpected_answer(&self.nodes.retry_policy, operation);
                page = unpack_chunks(&page).ok_or_else(unexpected)?;
            }
            for (row, value) in page {
                keep(row, value)?;
            }
            cursor = next;
        }
        if field_hashes.len() >= expected {
            return Ok(());
        }
        if is_chunked && self.field_count(operation, address).await? < expected {
            // The chunks were merged meanwhile, so the record has changed; the caller detects that.
            return Ok(());
        }
        let why = format!(
            "a scan returned {} of {expected} rows of a group",
            field_hashes.len()
        );
        Err(self.nodes.retry_policy.unavailable(operation, why))
    }

    /// Returns the number of fields in the hash of a group.
    async fn field_count(&self, operation: &str, address: GroupAddress<'_>) -> Result<usize> {
        let command = redis::cmd("HLEN").arg(address.key()).take();
        match self
            .send_one(operation, Request::command(address.keys, command))
            .await?
        {
            Value::Int(fields) => Ok(usize::try_from(fields).unwrap_or(usize::MAX)),
            _ => Err(errors::unexpected_answer(
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
        let answer = self.send_one(operation, request).await?;
        let unexpected = || errors::unexpected_answer(&self.nodes.retry_policy, operation);
        let Value::Array(answer) = answer else {
            return Err(unexpected());
        };
        let mut answer = answer.into_iter();
        match (answer.next(), answer.next()) {
            (Some(Value::BulkString(next)), Some(Value::Array(values))) => {
                let next = (next != FIRST_PAGE).then_some(next);
                Ok((next, pairs(values).ok_or_else(unexpected)?))
            }
            _ => Err(unexpected()),
        }
    }

    /// Sums two stored counts.
    fn sum(&self, operation: &str, one: &[u8], other: &[u8]) -> Result<Vec<u8>> {
        let (one, other) = (
            self.parse_count(operation, one)?,
            self.parse_count(operation, other)?,
        );
        let sum = one.checked_add(other);
        let sum = sum.ok_or_else(|| self.overflow_error(operation))?;
        Ok(sum.to_string().into_bytes())
    }

    pub(super) fn overflow_error(&self, operation: &str) -> Error {
        let why = "a sum exceeds 64 bits; look for events with wrong amounts";
        Error::broken(self.nodes.retry_policy.describe(operation), why)
    }
}
