//! Erasures: one partition, changed by lightweight transactions alone and read serially, so that who has
//! begun an erasure is sure that whoever looks afterwards finds it.

use std::sync::Arc;

use async_trait::async_trait;
use scylla::response::PagingState;

use super::session::{Cql, Outcome};
use crate::erasures::{Erasure, Erasures, Key, Kind};
use crate::{Error, Result};

/// All are in this scope.
const SCOPE: &str = "all";
/// Rows that are read at once.
const STEP: i32 = 1_000;

/// Erasures in a keyspace.
#[derive(Debug)]
pub struct CassandraErasures {
    cql: Arc<Cql>,
}

/// A row as it is stored: number, kind, person, begin, who, why, end, receipt.
type Stored = (
    i64,
    Option<String>,
    Option<Vec<u8>>,
    Option<i64>,
    Option<String>,
    Option<String>,
    Option<i64>,
    Option<String>,
);

impl CassandraErasures {
    pub(super) const fn new(cql: Arc<Cql>) -> Self {
        Self { cql }
    }

    /// Key and newest number.
    async fn head(&self, doing: &str) -> Result<(Option<Vec<u8>>, Option<i64>)> {
        let text = "SELECT secret, newest FROM erasures WHERE scope = ? LIMIT 1";
        let page = self.cql.read_serial(doing, text, (SCOPE,)).await?;
        let row = page.maybe_first_row::<(Option<Vec<u8>>, Option<i64>)>();
        let row = row.map_err(|error| self.cql.broken(doing, error))?;
        Ok(row.unwrap_or_default())
    }

    /// Whether the erasure of a number is this one: an answer may have been lost.
    async fn is_there(&self, doing: &str, erasure: &Erasure) -> Result<bool> {
        let text = "SELECT person, begun_at_ms FROM erasures WHERE scope = ? AND number = ?";
        let number = erasure.number.cast_signed();
        let page = self.cql.read_serial(doing, text, (SCOPE, number)).await?;
        let row = page.maybe_first_row::<(Option<Vec<u8>>, Option<i64>)>();
        let row = row.map_err(|error| self.cql.broken(doing, error))?;
        Ok(row.is_some_and(|(person, begun)| {
            person.as_deref() == Some(&erasure.person[..]) && begun == Some(erasure.begun_at_ms)
        }))
    }

    fn erasure(&self, doing: &str, row: Stored) -> Result<Erasure> {
        let (number, kind, person, begun, by, reason, finished_at_ms, receipt) = row;
        let broken = || {
            let why = format!("erasure {number} can't be read");
            self.cql.broken(doing, why)
        };
        let receipt = receipt.unwrap_or_else(|| "null".to_owned());
        Ok(Erasure {
            number: number.cast_unsigned(),
            kind: kind.as_deref().and_then(Kind::of).ok_or_else(broken)?,
            person: person.and_then(|p| p.try_into().ok()).ok_or_else(broken)?,
            begun_at_ms: begun.unwrap_or_default(),
            by: by.unwrap_or_default(),
            reason: reason.unwrap_or_default(),
            finished_at_ms,
            receipt: serde_json::from_str(&receipt).map_err(|_| broken())?,
        })
    }
}

#[async_trait]
impl Erasures for CassandraErasures {
    async fn newest(&self) -> Result<u64> {
        let (_, newest) = self.head("looking for erasures").await?;
        Ok(newest.unwrap_or(0).cast_unsigned())
    }

    async fn all(&self) -> Result<Vec<Erasure>> {
        let doing = "reading erasures";
        let text =
            "SELECT number, kind, person, begun_at_ms, asked_by, reason, finished_at_ms, receipt
                    FROM erasures WHERE scope = ? AND number > ? LIMIT ?";
        // What a transaction left undecided is decided before.
        self.head(doing).await?;
        let statement = self.cql.prepare(doing, text).await?;
        let mut all: Vec<Erasure> = Vec::new();
        loop {
            let after = all.last().map_or(0, |last| last.number.cast_signed());
            let begun = all.len();
            let mut next = Some(PagingState::start());
            while let Some(from) = next {
                let values = (SCOPE, after, STEP);
                let (page, rest) = self.cql.page(doing, &statement, &values, from).await?;
                next = rest;
                let rows = page.rows::<Stored>();
                for row in rows.map_err(|error| self.cql.broken(doing, error))? {
                    let row = row.map_err(|error| self.cql.broken(doing, error))?;
                    all.push(self.erasure(doing, row)?);
                }
            }
            if all.len() - begun < usize::try_from(STEP).unwrap_or(usize::MAX) {
                return Ok(all);
            }
        }
    }

    async fn key(&self, drawn: Key) -> Result<Key> {
        let doing = "reading the key of erasures";
        let text = "UPDATE erasures SET secret = ? WHERE scope = ? IF secret = NULL";
        let patience = self.cql.patience();
        patience
            .repeated_steps(doing, || async {
                if let (Some(found), _) = self.head(doing).await? {
                    let wrong = |_| self.cql.broken(doing, "it has another length");
                    return found.try_into().map_err(wrong);
                }
                match self.cql.agree(doing, text, (&drawn[..], SCOPE)).await? {
                    Outcome::Applied => Ok(drawn),
                    Outcome::NotApplied(_) => {
                        Err(patience.unavailable(doing, "somebody else was quicker"))
                    }
                    Outcome::Unknown(error) => Err(error),
                }
            })
            .await
    }

    async fn add(&self, erasure: &Erasure) -> Result<bool> {
        let doing = "beginning an erasure";
        let number = "UPDATE erasures SET newest = ? WHERE scope = ? IF newest = ?";
        let row =
            "INSERT INTO erasures (scope, number, kind, person, begun_at_ms, asked_by, reason,
                                         finished_at_ms, receipt)
                   VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)";
        self.cql
            .patience()
            .repeated_steps(doing, || async {
                if self.is_there(doing, erasure).await? {
                    // An earlier try of ours, of which nothing was told.
                    return Ok(true);
                }
                let (_, newest) = self.head(doing).await?;
                if newest.unwrap_or(0) + 1 != erasure.number.cast_signed() {
                    return Ok(false);
                }
                let statements = vec![
                    self.cql.prepare(doing, number).await?,
                    self.cql.prepare(doing, row).await?,
                ];
                let at = erasure.number.cast_signed();
                let values = (
                    (at, SCOPE, newest),
                    (
                        SCOPE,
                        at,
                        erasure.kind.name(),
                        &erasure.person[..],
                        erasure.begun_at_ms,
                        &erasure.by,
                        &erasure.reason,
                        erasure.finished_at_ms,
                        erasure.receipt.to_string(),
                    ),
                );
                match self.cql.agree_all(doing, statements, values).await? {
                    Outcome::Applied => Ok(true),
                    Outcome::NotApplied(_) => Ok(false),
                    Outcome::Unknown(error) => Err(error),
                }
            })
            .await
    }

    async fn tidy(&self) -> Result<()> {
        // Servers look after their files themselves.
        Ok(())
    }

    async fn note(
        &self,
        number: u64,
        finished_at_ms: Option<i64>,
        receipt: &serde_json::Value,
    ) -> Result<()> {
        let doing = "noting an erasure";
        let text = "UPDATE erasures SET finished_at_ms = ?, receipt = ?
                    WHERE scope = ? AND number = ? IF EXISTS";
        self.cql
            .patience()
            .repeated_steps(doing, || async {
                let values = (
                    finished_at_ms,
                    receipt.to_string(),
                    SCOPE,
                    number.cast_signed(),
                );
                match self.cql.agree(doing, text, values).await? {
                    Outcome::Applied => Ok(()),
                    Outcome::NotApplied(_) => {
                        Err(Error::Refused(format!("there is no erasure {number}")))
                    }
                    Outcome::Unknown(error) => Err(error),
                }
            })
            .await
    }
}
