//! Reprocesses dead letters after their cause is fixed.
//!
//! Their bytes are ingested unchanged, so an event keeps its id and time, and a row its version. So
//! reprocessing twice, or after the data arrived in another way, changes nothing.

use std::collections::HashSet;

use schemas::avro::{is_framed, schema_ids};
use schemas::entities::{Group, Notifications};
use schemas::line::trim_line;
use schemas::plays;
use schemas::source::SourceKind;

use super::anonymize::anonymize_lines;
use super::{CheckedLines, Intake, IntakeReport, RejectedLine, ValidInput};
use crate::registry::{SchemaSource, fetch_schemas};
use crate::{Error, Result, relay};

/// The ids of the rows that were reprocessed before.
#[derive(Debug, Default)]
pub struct ReprocessedIds {
    /// The ids of rows. Of several rows with one id, the last one counts.
    ids: HashSet<(i64, i64)>,
}

/// Checked dead letters, ready to be reprocessed.
#[derive(Debug)]
pub struct ReprocessBatch(BatchContent);

#[derive(Debug)]
enum BatchContent {
    Lines {
        checked: CheckedLines,
        superseded: u64,
    },
    Notifications {
        groups: Vec<Group>,
        report: IntakeReport,
    },
}

impl ReprocessBatch {
    /// Predicts the result. It only checks each row by itself: rejections of the entity store are
    /// not predicted.
    #[must_use]
    pub fn preview(&self) -> IntakeReport {
        match &self.0 {
            BatchContent::Lines {
                checked,
                superseded,
            } => {
                let accepted = match &checked.input {
                    ValidInput::Events(keyed) => keyed.count(),
                    ValidInput::Rows(rows, _) => rows.len() as u64,
                };
                let rejected = checked.dead_letters.entries.iter();
                let rejected = rejected.map(|(line, dead_letter)| RejectedLine {
                    line: *line,
                    reason: dead_letter.reason.clone(),
                });
                IntakeReport {
                    accepted,
                    rejected: rejected.collect(),
                    superseded: *superseded,
                    erased: 0,
                }
            }
            BatchContent::Notifications { report, .. } => report.clone(),
        }
    }
}

impl Intake {
    /// Checks lines that are dead letters, to reprocess them. Those that are still invalid are not
    /// stored again. A row is ingested only if no row with its version is stored, except by this
    /// reprocessing: pass `earlier` to each call. An event may also be an Avro record. Writes
    /// nothing.
    ///
    /// # Errors
    /// Those of the entity store and of `schemas`.
    pub async fn check_dead_letters<'a>(
        &self,
        lines: impl Iterator<Item = (u64, &'a [u8])>,
        earlier: &mut ReprocessedIds,
        schemas: &dyn SchemaSource,
    ) -> Result<ReprocessBatch> {
        let mut checked = match self.source.kind() {
            SourceKind::Events => self.check_records(lines, schemas).await?,
            SourceKind::Entities => self.check("", lines),
        };
        checked.dead_letters.are_in_log = true;
        let mut superseded = 0;
        if let ValidInput::Rows(rows, lines) = &mut checked.input {
            let stored = self.ports.entities.versions(rows).await?;
            let candidates = std::mem::take(rows).into_iter().zip(std::mem::take(lines));
            for ((row, line), stored) in candidates.zip(stored) {
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
        Ok(ReprocessBatch(BatchContent::Lines {
            checked,
            superseded,
        }))
    }

    /// Checks notifications that are dead letters, to reprocess them. Those that name a group are
    /// appended to the log, like new notifications. The speed layer reads the rows of the group
    /// again, so this is safe at any time. The others are not stored again. Notifications of erased
    /// athletes are skipped, because the log must not contain them again. Writes nothing.
    ///
    /// # Errors
    /// Those of `schemas`.
    pub async fn check_notifications<'a>(
        &self,
        records: impl Iterator<Item = (u64, &'a [u8])>,
        schemas: &dyn SchemaSource,
    ) -> Result<ReprocessBatch> {
        let records: Vec<(u64, &[u8])> = records.collect();
        let bytes = || records.iter().map(|(_, bytes)| *bytes);
        let writers = fetch_schemas(schemas, &schema_ids(bytes())).await?;
        let notifications = Notifications::read(self.source, bytes(), &writers)
            .map_err(|error| Error::broken("reading dead letters", error))?;
        let suppressed = self.ports.suppressions.recent().await;
        let (mut groups, mut report) = (Vec::new(), IntakeReport::default());
        for (index, (line, bytes)) in records.iter().enumerate() {
            match notifications.group(index, bytes) {
                Ok(group) if suppressed.contains_athlete(group.member) => report.erased += 1,
                Ok(group) => groups.push(group),
                Err(reason) => report.rejected.push(RejectedLine {
                    line: *line,
                    reason,
                }),
            }
        }
        report.accepted = groups.len() as u64;
        Ok(ReprocessBatch(BatchContent::Notifications {
            groups,
            report,
        }))
    }

    /// Writes a checked batch durably.
    ///
    /// # Errors
    /// As [`Intake::ingest`].
    pub async fn reprocess(&self, batch: ReprocessBatch) -> Result<IntakeReport> {
        match batch.0 {
            BatchContent::Lines {
                checked,
                superseded,
            } => {
                let report = self.write(checked).await?;
                Ok(IntakeReport {
                    superseded,
                    ..report
                })
            }
            BatchContent::Notifications { groups, report } => {
                if !groups.is_empty() {
                    let topic = self.source.topic();
                    let partitions = self.partition_counts.count(topic).await?;
                    let records =
                        relay::build_notification_records(self.source, &groups, partitions);
                    let now_ms = self.ports.clock.now_ms();
                    self.ports.log.append(topic, &records, now_ms).await?;
                }
                Ok(report)
            }
        }
    }

    /// Checks events that are lines or Avro records, and adds keys.
    async fn check_records<'a>(
        &self,
        records: impl Iterator<Item = (u64, &'a [u8])>,
        schemas: &dyn SchemaSource,
    ) -> Result<CheckedLines> {
        // The last byte of an Avro record may have any value.
        let records: Vec<(u64, &[u8])> = records
            .map(|(number, bytes)| match bytes {
                bytes if is_framed(bytes) => (number, bytes),
                bytes => (number, trim_line(bytes)),
            })
            .filter(|(_, bytes)| !bytes.is_empty())
            .collect();
        let ids = schema_ids(records.iter().map(|(_, bytes)| *bytes));
        let writers = fetch_schemas(schemas, &ids).await?;
        let owners = plays::check_records(records.iter().map(|(_, bytes)| *bytes), &writers)
            .map_err(|error| Error::broken("reading dead letters", error))?;
        let suppressed = self.ports.suppressions.recent().await;
        let mut anonymized = std::collections::BTreeMap::new();
        if suppressed.newest_listener() > 0 {
            let bytes = records.iter().map(|(_, bytes)| *bytes);
            anonymized = anonymize_lines(bytes, &writers, &suppressed)?;
        }
        let records = records.iter().enumerate().map(|(index, (number, bytes))| {
            let anonymous = anonymized.get(&index).map(Vec::as_slice);
            (*number, anonymous.unwrap_or(bytes))
        });
        let mut dead_letters = self.new_dead_letters("");
        let records = records.zip(owners);
        let keyed = records.map(|((number, bytes), owner)| (number, bytes, owner));
        let input = self.key_events(keyed, &mut dead_letters);
        Ok(CheckedLines {
            input,
            dead_letters,
        })
    }
}
