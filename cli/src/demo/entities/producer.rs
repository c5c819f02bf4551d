//! Gives the made-up changes to the installation: lines to the way in, wishes to connect over HTTP.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use schemas::clock::Clock;
use schemas::source::{Source, SourceKind};
use serde_json::json;
use stores::intake::Intake;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::rows::{Became, Rows};
use super::traffic::{Change, Traffic};
use super::{Ids, Ledger, rows_after};
use crate::demo::client::{Ask, Client};
use crate::demo::findings::Findings;
use crate::installation::Installation;
use crate::roles::sleep;

const TICK: Duration = Duration::from_millis(100);
const CHANGES_PER_STEP: usize = 1_000;

/// What was produced.
#[derive(Debug, Clone, Copy, Default)]
pub(in crate::demo) struct EntityCounts {
    /// Lines that were taken.
    pub(in crate::demo) rows: u64,
    /// Of these: those that were older than the row; known only where rows are compared.
    pub(in crate::demo) older: u64,
    /// Lines that were refused.
    pub(in crate::demo) rejected: u64,
    /// Athletes that connected over HTTP.
    pub(in crate::demo) connected: u64,
    /// Athletes for which there was no room.
    pub(in crate::demo) turned_away: u64,
}

/// Makes changes and gives them.
#[derive(Debug)]
pub(in crate::demo) struct EntityProducer {
    intakes: BTreeMap<Source, Intake>,
    client: Client,
    clock: Arc<dyn Clock>,
    traffic: Traffic,
    rate: u32,
    ledger: Option<Arc<Ledger>>,
    counts: EntityCounts,
    findings: Findings,
}

impl EntityProducer {
    /// A producer for a demo with `rate` rows of all kinds a second; what it does is noted in the
    /// ledger, if there is one.
    pub(in crate::demo) async fn new(
        installation: &Installation,
        client: Client,
        ids: Ids,
        (rate, seed): (u32, u64),
        ledger: Option<Arc<Ledger>>,
    ) -> anyhow::Result<Self> {
        let mut intakes = BTreeMap::new();
        for source in Source::ALL {
            if source.kind() == SourceKind::Entities {
                intakes.insert(source, installation.intake(source).await?);
            }
        }
        Ok(Self {
            intakes,
            client,
            clock: Arc::clone(installation.clock()),
            traffic: Traffic::new(ids, seed),
            rate,
            ledger,
            counts: EntityCounts::default(),
            findings: Findings::default(),
        })
    }

    /// Gives what is there at the start, `efforts` efforts among it.
    pub(in crate::demo) async fn history(&mut self, efforts: u64) -> anyhow::Result<()> {
        let changes = self.traffic.history(efforts, self.clock.now_ms());
        for step in changes.chunks(CHANGES_PER_STEP) {
            self.give(step).await?;
        }
        Ok(())
    }

    /// Gives changes until `stop`. The API must be served.
    pub(in crate::demo) async fn run(&mut self, stop: &CancellationToken) -> anyhow::Result<()> {
        let begun = Instant::now();
        let mut given = 0_u128;
        while sleep(TICK, stop).await {
            let due = rows_after(begun.elapsed().as_millis(), self.rate);
            let now_ms = self.clock.now_ms();
            let count = usize::try_from(due - given)?.min(CHANGES_PER_STEP);
            given = due;
            let changes: Vec<Change> = (0..count)
                .map(|_| self.traffic.next(now_ms - 1_500))
                .collect();
            self.give(&changes).await?;
        }
        Ok(())
    }

    pub(in crate::demo) const fn counts(&self) -> EntityCounts {
        self.counts
    }

    /// Lines and requests that were not answered as they should have been.
    pub(in crate::demo) const fn findings(&self) -> &Findings {
        &self.findings
    }

    async fn give(&mut self, changes: &[Change]) -> anyhow::Result<()> {
        let ledger = self.ledger.clone();
        let mut rows = match &ledger {
            Some(ledger) => Some(ledger.lock().await),
            None => None,
        };
        let mut lines: BTreeMap<Source, Vec<(&str, bool)>> = BTreeMap::new();
        for change in changes {
            if let Change::Line {
                source,
                text,
                broken,
            } = change
            {
                lines.entry(*source).or_default().push((text, *broken));
                continue;
            }
            // What is asked for over HTTP must find the lines before it.
            self.give_lines(&mut lines, rows.as_deref_mut()).await?;
            self.ask(change, rows.as_deref_mut()).await?;
        }
        self.give_lines(&mut lines, rows.as_deref_mut()).await
    }

    async fn give_lines(
        &mut self,
        lines: &mut BTreeMap<Source, Vec<(&str, bool)>>,
        mut rows: Option<&mut Rows>,
    ) -> anyhow::Result<()> {
        for (source, lines) in std::mem::take(lines) {
            let Some(intake) = self.intakes.get(&source) else {
                continue;
            };
            let numbered = (1..).zip(lines.iter().map(|(text, _)| text.as_bytes()));
            let taken = intake.take("demo", numbered).await?;
            self.counts.rows += taken.accepted;
            self.counts.rejected += u64::try_from(taken.rejected.len())?;
            let Some(rows) = rows.as_deref_mut() else {
                continue;
            };
            let refused: BTreeSet<u64> = taken.rejected.iter().map(|line| line.line).collect();
            for (number, (text, broken)) in (1..).zip(lines) {
                let became = if broken {
                    Became::Refused
                } else {
                    rows.take(source, text)?
                };
                self.counts.older += u64::from(became == Became::Older);
                let is_refused = refused.contains(&number);
                if is_refused != (became == Became::Refused) {
                    let was = if is_refused { "refused" } else { "taken" };
                    self.findings
                        .differs(format!("{source}: this line was {was}: {text}"));
                }
            }
        }
        Ok(())
    }

    async fn ask(&mut self, change: &Change, rows: Option<&mut Rows>) -> anyhow::Result<()> {
        let (application, path, ask) = match change {
            Change::Line { .. } => return Ok(()),
            Change::Connect {
                application,
                athlete,
            } => {
                let body = json!({"athlete_id": athlete});
                (application, "/authorizations".to_owned(), Ask::Post(body))
            }
            Change::Disconnect {
                application,
                athlete,
            } => {
                let path = format!("/authorizations/{athlete}");
                (application, path, Ask::Delete)
            }
            Change::Allow {
                application,
                capacity,
            } => {
                let body = json!({"athlete_capacity": capacity});
                (application, String::new(), Ask::Patch(body))
            }
        };
        let path = format!("/api/v1/applications/{application}{path}");
        let answer = self.client.send(&path, ask).await?;
        self.counts.connected += u64::from(answer.0 == 201);
        self.counts.turned_away += u64::from(answer.0 == 403);
        let Some(rows) = rows else {
            return Ok(());
        };
        let noted = match *change {
            Change::Line { .. } => Ok(()),
            Change::Connect {
                application,
                athlete,
            } => rows.connect(application, athlete, &answer),
            Change::Disconnect {
                application,
                athlete,
            } => rows.disconnect(application, athlete, &answer),
            Change::Allow {
                application,
                capacity,
            } => rows.allow(application, capacity, &answer),
        };
        if let Err(why) = noted {
            self.findings.differs(format!("{change:?}: {why}"));
        }
        Ok(())
    }
}
