//! The demo: generates live traffic, and verifies the served answers by a recount.
//!
//! It passes lines to the intakes of an installation, and sends requests to its API. To verify
//! answers, it reads the log back line by line (`ledger`) and rows by plain queries of the entity
//! store (`boards`, `applications`), and counts with loops, maps and sorts. It compares these rows
//! with the lines and requests that produced them (`rows`).
//!
//! It shares no computing code with the layers and does not depend on them: the caller starts the
//! roles and generates lines.

mod amounts;
mod applications;
mod boards;
mod calendar;
mod client;
mod compare;
mod ledger;
mod queries;
mod rhythm;
mod rows;
mod setup;
mod shared;
mod stored_rows;
mod traffic;
mod verify;
pub mod words;

use schemas::source::Source;
use stores::log::Span;
use tokio_util::sync::CancellationToken;

pub use amounts::{
    APPLICATIONS, ATHLETES, CLUBS, EVENTS_MAX, FOLLOWS, MEMBERSHIPS, OWNERS, SEGMENTS, TRACKS,
};
pub use rhythm::activity;
pub use setup::{BatchMonitor, DemoSetup, Line, LineGenerator};
pub use shared::Summary;
use shared::{SharedState, lock};
use traffic::Traffic;
use verify::Verifier;

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
    /// Fails if the installation contains other data than that of a demo, and on errors of the
    /// stores.
    pub async fn prepare(
        setup: DemoSetup,
        mut lines: Box<dyn LineGenerator>,
    ) -> anyhow::Result<Self> {
        let initial_spans = setup.stores.log.spans(Source::Plays.topic()).await?;
        let shared = SharedState::new(setup);
        if shared.setup.seconds.is_some() {
            stored_rows::load_tables(&shared).await?;
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

    /// Generates live traffic until `end` is cancelled. With a duration, verifies answers and
    /// returns afterwards. The roles must run until this returns. An error cancels `end`.
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
