//! The demo: generates live traffic, and verifies the served answers by a recount.
//!
//! It passes lines to the intakes of an installation, and sends requests to its API. To verify answers, it reads the log back line
//! by line (`ledger`) and rows by plain queries of the entity store (`boards`, `applications`), and counts with loops, maps and
//! sorts. It compares these rows with the lines and requests that produced them (`rows`).
//!
//! It shares no computing code with the layers and does not depend on them: the caller starts the roles and generates lines.

mod applications;
mod boards;
mod calendar;
mod client;
mod compare;
mod ledger;
mod queries;
mod rhythm;
mod rows;
mod shared;
mod traffic;
mod verify;
pub mod words;

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::net::SocketAddr;
use std::sync::Arc;

use schemas::clock::Clock;
use schemas::source::Source;
use stores::Stores;
use stores::intake::Intake;
use stores::log::Span;
use tokio_util::sync::CancellationToken;

pub use rhythm::activity;
pub use shared::Summary;
use shared::{SharedState, lock};
use traffic::Traffic;
use verify::Verifier;

/// Upper limit of events, because the recount holds them in memory.
pub const EVENTS_MAX: u64 = 3_000_000;
/// The number of owners. Ids of all kinds start at 1.
pub const OWNERS: i64 = 150;
/// The number of tracks.
pub const TRACKS: i64 = 1_500;
/// The number of segments.
pub const SEGMENTS: i64 = 12;
/// The number of athletes.
pub const ATHLETES: i64 = 300;
/// The number of clubs.
pub const CLUBS: i64 = 6;
/// The number of applications.
pub const APPLICATIONS: i64 = 12;
/// The number of memberships in clubs at the start.
pub const MEMBERSHIPS: i64 = 400;
/// The number of follows at the start.
pub const FOLLOWS: i64 = 600;

/// A line of input.
#[derive(Debug, Clone)]
pub struct Line {
    bytes: Vec<u8>,
    is_valid: bool,
}

impl Line {
    /// A line without its line break, and whether the intake must accept it.
    #[must_use]
    pub const fn new(bytes: Vec<u8>, is_valid: bool) -> Self {
        Self { bytes, is_valid }
    }
}

/// Generates lines. The first lines of an entity source are new rows; later ones mostly change them.
pub trait LineGenerator: Debug + Send {
    /// The next event, at about `at_ms` or somewhat earlier, with the amount `plays`.
    fn play(&mut self, at_ms: i64, plays: i64) -> Line;
    /// The next row of a source, at about `at_ms`; `None` for sources without generated rows.
    fn row(&mut self, source: Source, at_ms: i64) -> Option<Line>;
}

/// Monitors the batch role.
pub trait BatchMonitor: Debug + Send + Sync {
    /// The number of published runs.
    fn runs(&self) -> u64;
    /// Returns whether a run is in progress.
    fn is_running(&self) -> bool;
}

/// The installation of a demo, and the amount of generated data.
#[derive(Debug)]
pub struct DemoSetup {
    /// The address of the API.
    pub address: SocketAddr,
    /// The stores, from which the log and rows are read back.
    pub stores: Stores,
    /// The intakes of all sources.
    pub intakes: BTreeMap<Source, Intake>,
    /// The clock.
    pub clock: Arc<dyn Clock>,
    /// The batch role.
    pub batch: Arc<dyn BatchMonitor>,
    /// The duration of verification; `None` for a demo that verifies nothing and does not end.
    pub seconds: Option<u64>,
    /// Events and rows per second, averaged over a week.
    pub rate: u32,
    /// The number of events in the history.
    pub history: u32,
    /// The seed of the random queries.
    pub seed: u64,
}

/// The demo.
#[derive(Debug)]
pub struct Demo {
    shared: SharedState,
    lines: Box<dyn LineGenerator>,
    /// The spans of the log of plays before the demo.
    initial_spans: Vec<Span>,
}

impl Demo {
    /// Writes names and the history. The API need not run yet.
    ///
    /// # Errors
    /// Fails if the installation contains other data than that of a demo, and on errors of the stores.
    pub async fn prepare(
        setup: DemoSetup,
        mut lines: Box<dyn LineGenerator>,
    ) -> anyhow::Result<Self> {
        let initial_spans = setup.stores.log.spans(Source::Plays.topic()).await?;
        let shared = SharedState::new(setup);
        if shared.setup.seconds.is_some() {
            rows::load(&shared).await?;
        }
        Box::pin(traffic::write_history(&shared, &mut *lines)).await?;
        Ok(Self {
            shared,
            lines,
            initial_spans,
        })
    }

    /// Waits until the speed layer has counted the history.
    ///
    /// # Errors
    /// Fails if the speed layer makes no progress, and on errors of the API.
    pub async fn wait_until_counted(&self) -> anyhow::Result<()> {
        self.shared.catch_up(&Source::LOGGED).await
    }

    /// Generates live traffic until `end` is cancelled. With a duration, verifies answers and returns afterwards. The roles must run
    /// until this returns. An error cancels `end`.
    ///
    /// # Errors
    /// Fails on errors of the installation. The summary, not an error, reports differences.
    pub async fn run(mut self, end: &CancellationToken) -> anyhow::Result<Option<Summary>> {
        let (shared, traffic) = (&self.shared, Traffic::new(end));
        let generate = async {
            let outcome = traffic.run(shared, &mut *self.lines).await;
            outcome.inspect_err(|_| end.cancel())
        };
        let verify = async {
            let mut verifier = Verifier::new(shared, &self.initial_spans);
            let outcome = match shared.setup.seconds {
                Some(seconds) => verifier.run(seconds, &traffic, end).await,
                None => verifier.change_applications(end).await,
            };
            outcome.inspect_err(|_| end.cancel())
        };
        let (generated, verified) = tokio::join!(generate, Box::pin(verify));
        generated.and(verified)?;
        let summary = lock(&shared.summary).clone();
        Ok(shared.setup.seconds.map(|_| summary))
    }
}
