//! `demo`: everything in one process on embedded stores, with made-up live traffic.
//!
//! With `--seconds` every served value is compared with an independent recount: the raw lines are
//! read back from the log and counted one by one ([`recount`]), with none of the code that the
//! layers compute with. Boards are compared with a plain sort of all rows ([`entities`]).

mod calendar;
mod client;
mod entities;
mod findings;
mod ledger;
mod named;
mod producer;
mod question;
mod recount;
mod summary;
mod verify;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use stores::keys::Keys;
use tempfile::TempDir;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use crate::args::DemoArgs;
use crate::commands::Context;
use crate::engine::BatchEngine;
use crate::failure::usage;
use crate::installation::Installation;
use crate::output;
use crate::roles::{self, BatchWatch, Roles, Schedule};
use client::Client;
use entities::{EntityProducer, EntityVerifier, Ids, Ledger};
use producer::{Pending, Producer};
use summary::{RUNS_MIN, Summary};
use verify::Verifier;

/// Events that the recount keeps in memory, at most.
const EVENTS_MAX: u64 = 3_000_000;
/// Efforts that are there at the start: one for so many events.
const EVENTS_AN_EFFORT: u32 = 5;
/// And at most so many.
const EFFORTS_MAX: u32 = 20_000;
/// How long to wait for them beyond the time that was asked for.
const RUNS_WAIT: Duration = Duration::from_secs(120);

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
    let keys = &*installation.stores().keys;
    if keys.any_key().await? {
        return Err(usage(format!(
            "{}: there are keys, and the demo asks without one; take another folder by --data-dir",
            settings.data_dir.display()
        )));
    }
    let (listener, address) = listen(args, keys).await?;
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

async fn listen(args: &DemoArgs, keys: &dyn Keys) -> anyhow::Result<(TcpListener, SocketAddr)> {
    match &args.listen {
        Some(address) => roles::listen(address, keys).await,
        None => match roles::listen("127.0.0.1:8080", keys).await {
            Ok(bound) => Ok(bound),
            Err(_) => roles::listen("127.0.0.1:0", keys).await,
        },
    }
}

/// What is given while the demo runs.
#[derive(Debug)]
struct Traffic {
    events: Producer,
    rows: EntityProducer,
}

impl Traffic {
    /// Gives both until `stop`; one that fails ends all.
    async fn run(
        &mut self,
        stop: &CancellationToken,
        end: &CancellationToken,
    ) -> anyhow::Result<()> {
        let events = async {
            let given = self.events.run(stop).await;
            if given.is_err() {
                end.cancel();
            }
            given
        };
        let rows = async {
            let given = self.rows.run(stop).await;
            if given.is_err() && end.is_cancelled() {
                // Nobody answers requests any more.
                return Ok(());
            }
            if given.is_err() {
                end.cancel();
            }
            given
        };
        let (events, rows) = tokio::join!(events, rows);
        events.and(rows)
    }
}

/// Who compares what is served.
#[derive(Debug)]
struct Verifiers {
    plays: Verifier,
    boards: EntityVerifier,
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
    let client = Client::new(address);
    let stores = installation.stores();
    let now_ms = installation.clock().now_ms();
    let ids = Ids::free(&*stores.canon, &*stores.log, now_ms).await?;
    // An installation that is in use has names of its own.
    if ids.are_first() {
        named::give(&*stores.canon, ids).await?;
    }
    let (mut verifiers, mut traffic) = Box::pin(prepare(args, installation, &client, ids)).await?;
    let (schedule, engine) = (schedule(args), installation.engine()?);
    let every = schedule.every;
    let mut roles = Roles::new(end.clone());
    roles.speed(installation, &engine).await?;
    roles.batch(installation, &engine, schedule, &watch).await?;
    roles.serving(installation, listener)?;
    announce(args, context, (address, ids), every)?;

    let stop_traffic = end.child_token();
    let driver = async {
        let compared = match (&mut verifiers, args.seconds) {
            (Some(verifiers), Some(seconds)) => {
                let span = Duration::from_secs(seconds);
                Box::pin(compare(verifiers, span, &watch, &stop_traffic, &end)).await
            }
            _ => {
                end.cancelled().await;
                Ok(())
            }
        };
        end.cancel();
        compared
    };
    let (served, given, compared) =
        tokio::join!(roles.join(), traffic.run(&stop_traffic, &end), driver);
    served?;
    given?;
    compared?;
    let Some(verifiers) = verifiers else {
        return Ok(());
    };
    anyhow::ensure!(
        !stop.is_cancelled(),
        "interrupted before everything was compared"
    );
    let boards = verifiers.boards.findings();
    let mut findings = verifiers.plays.findings();
    findings.add(boards);
    findings.add(traffic.rows.findings());
    let counts = (traffic.events.counts(), traffic.rows.counts());
    let summary = Summary::new(address, watch.runs(), counts, findings, boards.answers);
    context.output().result(&summary, Summary::text)?;
    summary.verdict()
}

/// Gives what is there at the start. With `--seconds` there is who compares.
async fn prepare(
    args: &DemoArgs,
    installation: &Installation,
    client: &Client,
    ids: Ids,
) -> anyhow::Result<(Option<Verifiers>, Traffic)> {
    let compared = args.seconds.is_some();
    let pending = compared.then(|| Arc::new(Pending::default()));
    let ledger = compared.then(|| Arc::new(Ledger::default()));
    let verifiers = match (&pending, &ledger) {
        (Some(pending), Some(ledger)) => Some(Verifiers {
            plays: Verifier::new(installation, client.clone(), pending, args.seed).await?,
            boards: EntityVerifier::new(
                installation,
                client.clone(),
                ids,
                args.seed,
                Arc::clone(ledger),
            ),
        }),
        _ => None,
    };
    let mut events = Producer::new(installation, args.rate, args.seed, pending).await?;
    events.history(u64::from(args.history)).await?;
    let of_rows = (args.rate, args.seed);
    let mut rows = EntityProducer::new(installation, client.clone(), ids, of_rows, ledger).await?;
    let efforts = args.history.div_ceil(EVENTS_AN_EFFORT).min(EFFORTS_MAX);
    rows.history(u64::from(efforts)).await?;
    Ok((verifiers, Traffic { events, rows }))
}

/// Compares until the time is over and enough batch runs were met, then once more when everything
/// has been counted.
async fn compare(
    verifiers: &mut Verifiers,
    span: Duration,
    watch: &BatchWatch,
    stop_traffic: &CancellationToken,
    end: &CancellationToken,
) -> anyhow::Result<()> {
    let begun = tokio::time::Instant::now();
    let goes_on = || {
        let elapsed = begun.elapsed();
        let awaits_runs = watch.runs() < RUNS_MIN && elapsed < span + RUNS_WAIT;
        (elapsed < span || awaits_runs) && !end.is_cancelled()
    };
    while goes_on() {
        verifiers.plays.ask_some(watch).await?;
        verifiers.boards.ask_some(watch).await?;
    }
    tracing::debug!(elapsed = ?begun.elapsed(), "the traffic ends");
    stop_traffic.cancel();
    if !end.is_cancelled() {
        verifiers.plays.ask_everything(watch, end).await?;
    }
    if !end.is_cancelled() {
        tracing::debug!(elapsed = ?begun.elapsed(), "plays are compared");
        verifiers.boards.ask_everything(watch).await?;
        tracing::debug!(elapsed = ?begun.elapsed(), "boards are compared");
    }
    Ok(())
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
        computes: BatchEngine::Local,
    }
}

fn announce(
    args: &DemoArgs,
    context: &Context,
    (address, ids): (SocketAddr, Ids),
    batch_every: Duration,
) -> anyhow::Result<()> {
    if context.output().is_json() {
        if args.seconds.is_some() {
            return Ok(());
        }
        let listening = serde_json::json!({ "listening": format!("http://{address}") });
        return context.output().result(&listening, |_| String::new());
    }
    let rate = args.rate;
    let every = batch_every.as_secs_f64();
    let ends = match args.seconds {
        Some(seconds) => format!(
            "After {seconds} seconds of traffic, the demo compares its answers with a recount and exits."
        ),
        None if context.loaded().is_set("data_dir") => "Press Ctrl-C to stop.".to_owned(),
        None => "Press Ctrl-C to stop and delete the data.".to_owned(),
    };
    let (segment, application) = (ids.segments().first(), ids.applications().first());
    output::raw(
        format!(
            "Backstitch is running: {rate} generated events and rows a second, a batch run every {every} s.\n\
             \n\
             pages    http://{address}/owners/1\n         \
                      http://{address}/segments/{segment}\n         \
                      http://{address}/applications/{application}\n\
             total    http://{address}/api/v1/stats/plays/total?owner_id=1&period=today\n\
             series   http://{address}/api/v1/stats/plays/series?owner_id=1&period=7d&interval=day&tz=Europe/Berlin\n\
             ranking  http://{address}/api/v1/stats/plays/breakdown?owner_id=1&by=country\n\
             board    http://{address}/api/v1/boards/segments/{segment}?board=gender:F&window=month\n\
             athlete  http://{address}/api/v1/boards/segments/{segment}/athletes/{segment}?around=3\n\
             counts   http://{address}/api/v1/segments/{segment}/counts\n\
             app      http://{address}/api/v1/applications/{application}\n\
             runs     http://{address}/api/v1/batch/runs\n\
             metrics  http://{address}/metrics\n\
             \n\
             The \"provenance\" of an answer names the layers that it comes from, and its log position.\n\
             {ends}\n\
             \n\
             Open http://{address}/\n"
        )
        .as_bytes(),
    )
}
