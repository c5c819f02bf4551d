//! Dead letters that are taken once more, after what was wrong has been put right.
//!
//! Their bytes are taken as they are, so an event keeps its id and time, and a row its version: taking
//! them twice, or taking what came in some other way meanwhile, changes nothing.

use std::collections::HashSet;

use schemas::avro::{Writers, is_framed, schema_ids};
use schemas::entities::{Group, Notifications};
use schemas::line::trimmed;
use schemas::plays;
use schemas::source::SourceKind;

use super::without::without;
use super::{Checked, Good, Intake, RejectedLine, Taken};
use crate::registry::Schemas;
use crate::{Error, Result, relay};

/// What was taken once more so far.
#[derive(Debug, Default)]
pub struct Retaken {
    /// The ids of the rows. Of several the last one counts, as always.
    ids: HashSet<(i64, i64)>,
}

/// Dead letters that were looked at once more, ready to be taken.
#[derive(Debug)]
pub struct Again(Work);

#[derive(Debug)]
enum Work {
    Lines { checked: Checked, superseded: u64 },
    Notifications { groups: Vec<Group>, taken: Taken },
}

impl Again {
    /// What would become of them if they were taken now. Rows are checked by themselves alone: what the
    /// canonical store would refuse is not known before it is asked to take them.
    #[must_use]
    pub fn outlook(&self) -> Taken {
        match &self.0 {
            Work::Lines {
                checked,
                superseded,
            } => {
                let accepted = match &checked.good {
                    Good::Events(keyed) => keyed.events(),
                    Good::Rows(rows, _) => rows.len() as u64,
                };
                let rejected = checked.letters.letters.iter();
                let rejected = rejected.map(|(line, letter)| RejectedLine {
                    line: *line,
                    reason: letter.reason.clone(),
                });
                Taken {
                    accepted,
                    rejected: rejected.collect(),
                    superseded: *superseded,
                    erased: 0,
                }
            }
            Work::Notifications { taken, .. } => taken.clone(),
        }
    }
}

impl Intake {
    /// Looks at lines that are dead letters already, to take them once more as [`Intake::take`] does: none of those that
    /// still can't be taken is kept a second time. A row is taken only where none with its version is stored, but for one
    /// that came in the same way: give `earlier` to each call. An event may also be a record of Avro, as other producers
    /// append it. Writes nothing.
    ///
    /// # Errors
    /// Those of the canonical store and of `schemas`.
    pub async fn look_again<'a>(
        &self,
        lines: impl Iterator<Item = (u64, &'a [u8])>,
        earlier: &mut Retaken,
        schemas: &dyn Schemas,
    ) -> Result<Again> {
        let mut checked = match self.source.kind() {
            SourceKind::Facts => self.check_records(lines, schemas).await?,
            SourceKind::Entities => self.check("", lines),
        };
        checked.letters.are_kept_already = true;
        let mut superseded = 0;
        if let Good::Rows(rows, lines) = &mut checked.good {
            let stored = self.ports.canon.versions(rows).await?;
            let given = std::mem::take(rows).into_iter().zip(std::mem::take(lines));
            for ((row, line), stored) in given.zip(stored) {
                if stored == Some(row.version()) && !earlier.ids.contains(&row.id()) {
                    superseded += 1;
                    continue;
                }
                if stored.is_none_or(|stored| stored < row.version()) {
                    earlier.ids.insert(row.id());
                }
                rows.push(row);
                lines.push(line);
            }
        }
        Ok(Again(Work::Lines {
            checked,
            superseded,
        }))
    }

    /// Looks at notifications that are dead letters, to take them once more: those that name a group are appended to the
    /// log, as those that others sent; the group's rows are read again then, so that may be done at any time. None of the
    /// others is kept a second time. Those of athletes who are erased are left out: nothing of them is to be in the log
    /// again. Writes nothing.
    ///
    /// # Errors
    /// Those of `schemas`.
    pub async fn look_at_notifications<'a>(
        &self,
        records: impl Iterator<Item = (u64, &'a [u8])>,
        schemas: &dyn Schemas,
    ) -> Result<Again> {
        let records: Vec<(u64, &[u8])> = records.collect();
        let bytes = || records.iter().map(|(_, bytes)| *bytes);
        let writers = writers(bytes(), schemas).await?;
        let read = Notifications::read(self.source, bytes(), &writers)
            .map_err(|error| Error::broken("reading dead letters", error))?;
        let suppressed = self.ports.suppressions.recent().await;
        let (mut groups, mut taken) = (Vec::new(), Taken::default());
        for (index, (line, bytes)) in records.iter().enumerate() {
            match read.group(index, bytes) {
                Ok(group) if suppressed.has_athlete(group.member) => taken.erased += 1,
                Ok(group) => groups.push(group),
                Err(reason) => taken.rejected.push(RejectedLine {
                    line: *line,
                    reason,
                }),
            }
        }
        taken.accepted = groups.len() as u64;
        Ok(Again(Work::Notifications { groups, taken }))
    }

    /// Takes what was looked at, durably when it answers.
    ///
    /// # Errors
    /// As [`Intake::take`].
    pub async fn take_again(&self, again: Again) -> Result<Taken> {
        match again.0 {
            Work::Lines {
                checked,
                superseded,
            } => {
                let taken = self.write(checked).await?;
                Ok(Taken {
                    superseded,
                    ..taken
                })
            }
            Work::Notifications { groups, taken } => {
                if !groups.is_empty() {
                    let topic = self.source.topic();
                    let partitions = self.partitions.of(topic).await?;
                    let records = relay::records(self.source, &groups, partitions);
                    let now_ms = self.ports.clock.now_ms();
                    self.ports.log.append(topic, &records, now_ms).await?;
                }
                Ok(taken)
            }
        }
    }

    /// Checks and keys events that are lines or records of Avro.
    async fn check_records<'a>(
        &self,
        records: impl Iterator<Item = (u64, &'a [u8])>,
        schemas: &dyn Schemas,
    ) -> Result<Checked> {
        // Any byte may be the last one of Avro.
        let records: Vec<(u64, &[u8])> = records
            .map(|(number, bytes)| match bytes {
                bytes if is_framed(bytes) => (number, bytes),
                bytes => (number, trimmed(bytes)),
            })
            .filter(|(_, bytes)| !bytes.is_empty())
            .collect();
        let writers = writers(records.iter().map(|(_, bytes)| *bytes), schemas).await?;
        let owners = plays::check_records(records.iter().map(|(_, bytes)| *bytes), &writers)
            .map_err(|error| Error::broken("reading dead letters", error))?;
        let suppressed = self.ports.suppressions.recent().await;
        let mut found = std::collections::BTreeMap::new();
        if suppressed.newest_listener() > 0 {
            let bytes = records.iter().map(|(_, bytes)| *bytes);
            found = without(bytes, &writers, &suppressed)?;
        }
        let records = records.iter().enumerate().map(|(index, (number, bytes))| {
            let without = found.get(&index).map(Vec::as_slice);
            (*number, without.unwrap_or(bytes))
        });
        let mut letters = self.letters("");
        let records = records.zip(owners);
        let keyed = records.map(|((number, bytes), owner)| (number, bytes, owner));
        let good = self.keyed(keyed, &mut letters);
        Ok(Checked { good, letters })
    }
}

/// The schemas of the writers of those records that are Avro.
async fn writers<'a>(
    records: impl Iterator<Item = &'a [u8]>,
    schemas: &dyn Schemas,
) -> Result<Writers> {
    let ids = schema_ids(records);
    match ids.is_empty() {
        true => Ok(Writers::default()),
        false => schemas.writers(&ids).await,
    }
}
