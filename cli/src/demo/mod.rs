//! `demo`: everything in one process on embedded stores, with made-up live traffic.
//!
//! With `--seconds` every served value is compared with an independent recount: the raw lines are
//! read back from the log and counted one by one ([`recount`]), with none of the code that the
//! layers compute with.

mod calendar;
mod ledger;
mod producer;
mod question;
mod recount;
mod verify;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use serde::Serialize;
use tempfile::TempDir;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use crate::args::DemoArgs;
use crate::commands::Context;
use crate::failure::usage;
use crate::installation::Installation;
use crate::output;
use crate::roles::{self, BatchWatch, Roles, Schedule};
use producer::{Pending, Producer};
use verify::{Findings, Verifier};

/// Events that the recount keeps in memory, at most.
const EVENTS_MAX: u64 = 3_000_000;
/// Batch runs that the comparison must have met.
const RUNS_MIN: u64 = 2;
/// Of a difference that is printed as text: so many characters.
const TOLD_CHARS_MAX: usize = 1_000;
/// How long to wait for them beyond the time that was asked for.
const RUNS_WAIT: Duration = Duration::from_secs(120);

/// What a demo that ends by itself prints.
#[derive(Debug, Serialize)]
struct Summary {
    listening: String,
    events: u64,
    duplicates: u64,
    rejected: u64,
    batch_runs: u64,
    answers: u64,
    answers_during_a_run: u64,
    differences: u64,
    first_differences: Vec<String>,
}

impl Summary {
    /// Whether everything that was served was right, and enough of it was compared.
    fn verdict(&self) -> anyhow::Result<()> {
        anyhow::ensure!(
            self.differences == 0,
            "{} served values differ from the recount; this is a fault of Backstitch, please report it",
            self.differences
        );
        anyhow::ensure!(
            self.batch_runs >= RUNS_MIN && self.answers > 0,
            "only {} batch runs were published and {} answers compared, which shows little; try more --seconds",
            self.batch_runs,
            self.answers
        );
        Ok(())
    }

    fn text(&self) -> String {
        let mut text = format!(
            "{} events ({} of them duplicates, {} lines rejected), {} batch runs\n\
             {} answers compared with a recount, {} of them during a batch run: {} differences\n",
            self.events,
            self.duplicates,
            self.rejected,
            self.batch_runs,
            self.answers,
            self.answers_during_a_run,
            self.differences,
        );
        for difference in &self.first_differences {
            let told: String = difference.chars().take(TOLD_CHARS_MAX).collect();
            text.push_str(&format!("  {told}\n"));
        }
        text
    }
}

/// Runs the demo until it is told to end, or its time is over.
///
/// # Errors
/// What a layer can't get over, and with `--seconds` any difference.
pub(crate) async fn run(
    args: &DemoArgs,
    context: &Context,
    stop: CancellationToken,
) -> anyhow::Result<()> {
    if let Some(seconds) = args.seconds {
        let events = u64::from(args.history) + seconds * u64::from(args.rate);
        if events > EVENTS_MAX {
            return Err(usage(format!(
                "--seconds {seconds} --rate {}: these are {events} events, and the recount keeps at most {EVENTS_MAX} in memory; lower one of them",
                args.rate
            )));
        }
    }
    let (listener, address) = listen(args).await?;
    let mut settings = context.settings().clone();
    let folder = if context.loaded().is_set("data_dir") {
        None
    } else {
        let folder = tempfile::Builder::new()
            .prefix("backstitch-demo-")
            .tempdir()
            .context("making a temporary folder")?;
        settings.data_dir = folder.path().to_path_buf();
        Some(folder)
    };
    let installation = Installation::open(&settings).await?;
    let outcome = Box::pin(show(
        args,
        context,
        &installation,
        (listener, address),
        &stop,
    ))
    .await;
    drop(installation);
    outcome.and(folder.map_or(Ok(()), remove))
}

/// Takes the temporary folder away.
fn remove(folder: TempDir) -> anyhow::Result<()> {
    let path = folder.path().to_path_buf();
    folder
        .close()
        .with_context(|| format!("removing {}", path.display()))
}

async fn listen(args: &DemoArgs) -> anyhow::Result<(TcpListener, SocketAddr)> {
    match &args.listen {
        Some(address) => roles::listen(address).await,
        None => match roles::listen("127.0.0.1:8080").await {
            Ok(bound) => Ok(bound),
            Err(_) => roles::listen("127.0.0.1:0").await,
        },
    }
}

async fn show(
    args: &DemoArgs,
    context: &Context,
    installation: &Installation,
    (listener, address): (TcpListener, SocketAddr),
    stop: &CancellationToken,
) -> anyhow::Result<()> {
    let end = stop.child_token();
    let watch = Arc::new(BatchWatch::default());
    let pending = args.seconds.map(|_| Arc::new(Pending::default()));
    let mut verifier = match &pending {
        Some(pending) => Some(Verifier::new(installation, address, pending, args.seed).await?),
        None => None,
    };
    let mut producer = Producer::new(installation, args.rate, args.seed, pending).await?;
    producer.history(u64::from(args.history)).await?;
    let (schedule, engine) = (schedule(args), installation.engine()?);
    let mut roles = Roles::new(end.clone());
    roles.speed(installation, &engine).await?;
    roles.batch(installation, &engine, schedule, &watch)?;
    roles.serving(installation, listener)?;
    announce(args, context, address, schedule)?;

    let stop_traffic = end.child_token();
    let traffic = async {
        let produced = producer.run(&stop_traffic).await;
        if produced.is_err() {
            end.cancel();
        }
        produced.map(|()| producer.counts())
    };
    let driver = async {
        let findings = match (&mut verifier, args.seconds) {
            (Some(verifier), Some(seconds)) => {
                let span = Duration::from_secs(seconds);
                Box::pin(compare(verifier, span, &watch, &stop_traffic, &end)).await
            }
            _ => {
                end.cancelled().await;
                Ok(Findings::default())
            }
        };
        end.cancel();
        findings
    };
    let (served, counts, findings) = tokio::join!(roles.join(), traffic, driver);
    served?;
    let (counts, findings) = (counts?, findings?);
    if args.seconds.is_none() {
        return Ok(());
    }
    anyhow::ensure!(
        !stop.is_cancelled(),
        "interrupted before everything was compared"
    );
    let summary = Summary {
        listening: format!("http://{address}"),
        events: counts.events,
        duplicates: counts.duplicates,
        rejected: counts.rejected,
        batch_runs: watch.runs(),
        answers: findings.answers,
        answers_during_a_run: findings.during_a_run,
        differences: findings.differences + counts.misjudged,
        first_differences: findings.first,
    };
    context.output().result(&summary, Summary::text)?;
    summary.verdict()
}

/// Compares until the time is over and enough batch runs were met, then once more when everything
/// has been counted.
async fn compare(
    verifier: &mut Verifier,
    span: Duration,
    watch: &BatchWatch,
    stop_traffic: &CancellationToken,
    end: &CancellationToken,
) -> anyhow::Result<Findings> {
    let begun = tokio::time::Instant::now();
    while begun.elapsed() < span && !end.is_cancelled() {
        verifier.ask_some(watch).await?;
    }
    while watch.runs() < RUNS_MIN && begun.elapsed() < span + RUNS_WAIT && !end.is_cancelled() {
        verifier.ask_some(watch).await?;
    }
    stop_traffic.cancel();
    if !end.is_cancelled() {
        verifier.ask_everything(watch, end).await?;
    }
    Ok(verifier.findings())
}

fn schedule(args: &DemoArgs) -> Schedule {
    let every = match (args.batch_interval, args.seconds) {
        (Some(every), _) => Duration::from_secs(every),
        (None, Some(seconds)) => Duration::from_millis((seconds * 250).clamp(500, 60_000)),
        (None, None) => Duration::from_secs(60),
    };
    Schedule {
        first: every.min(Duration::from_secs(5)),
        every,
    }
}

fn announce(
    args: &DemoArgs,
    context: &Context,
    address: SocketAddr,
    schedule: Schedule,
) -> anyhow::Result<()> {
    if context.output().is_json() {
        if args.seconds.is_some() {
            return Ok(());
        }
        let listening = serde_json::json!({ "listening": format!("http://{address}") });
        return context.output().result(&listening, |_| String::new());
    }
    let rate = args.rate;
    let every = schedule.every.as_secs_f64();
    let ends = match args.seconds {
        Some(seconds) => format!(
            "It compares what it serves with a recount and ends in about {seconds} seconds."
        ),
        None if context.loaded().is_set("data_dir") => "Ctrl-C ends it.".to_owned(),
        None => "Ctrl-C ends it and takes its data away.".to_owned(),
    };
    output::raw(
        format!(
            "Backstitch is running: {rate} made-up events a second, a batch run every {every} s.\n\
             \n\
             page     http://{address}/\n\
             total    http://{address}/api/v1/stats/plays/total?owner_id=1&period=today\n\
             series   http://{address}/api/v1/stats/plays/series?owner_id=1&period=7d&interval=day&tz=Europe/Berlin\n\
             ranking  http://{address}/api/v1/stats/plays/breakdown?owner_id=1&by=country\n\
             runs     http://{address}/api/v1/batch/runs\n\
             metrics  http://{address}/metrics\n\
             \n\
             Look at \"provenance\": which layers a number comes from, and up to where it counts.\n\
             {ends}\n"
        )
        .as_bytes(),
    )
}
