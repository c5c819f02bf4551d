//! `demo`: every role in one process on embedded stores, with the traffic of the crate `showcase`.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use schemas::source::Source;
use showcase::{Demo, DemoSetup, EVENTS_MAX, Summary};
use stores::keys::Keys;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use super::Context;
use crate::args::DemoArgs;
use crate::engine::BatchEngine;
use crate::failure::usage;
use crate::generate::Live;
use crate::installation::Installation;
use crate::output;
use crate::roles::{self, BatchWatch, Roles, Schedule};

/// A duplicate comes at most so much later than its first: well within the speed layer's window,
/// so that live values are exact.
const REPEATS_WITHIN_SECONDS: usize = 300;
/// Events and rows a second with and without a comparison.
const RATE_COMPARED: u32 = 200;
const RATE: u32 = 20;

/// Runs the demo until `stop`, or until its time is over.
///
/// # Errors
/// Those of the roles, and with `--seconds` any difference.
pub(super) async fn run(
    args: &DemoArgs,
    context: &Context,
    stop: CancellationToken,
) -> anyhow::Result<()> {
    let rate = rate(args)?;
    let mut settings = context.settings().clone();
    let mut folder = None;
    if !context.loaded().is_set("data_dir") {
        let new = tempfile::Builder::new()
            .prefix("backstitch-demo-")
            .tempdir();
        let new = folder.insert(new.context("making a temporary folder")?);
        settings.data_dir = new.path().to_path_buf();
    }
    let installation = Installation::open(&settings).await?;
    let keys = &*installation.stores().keys;
    if keys.has_keys().await? {
        return Err(usage(format!(
            "{}: the installation has API keys, and the demo uses none; choose another folder with --data-dir",
            settings.data_dir.display()
        )));
    }
    let outcome = Box::pin(show(args, rate, context, &installation, &stop)).await;
    drop(installation);
    if let Some(folder) = folder {
        let path = folder.path().to_path_buf();
        let removed = folder.close();
        return outcome.and(removed.with_context(|| format!("removing {}", path.display())));
    }
    outcome
}

/// Events and rows a second.
fn rate(args: &DemoArgs) -> anyhow::Result<u32> {
    let Some(seconds) = args.seconds else {
        return Ok(args.rate.unwrap_or(RATE));
    };
    let rate = args.rate.unwrap_or(RATE_COMPARED);
    let events = u64::from(args.history) + seconds * u64::from(rate);
    if events > EVENTS_MAX {
        return Err(usage(format!(
            "--seconds {seconds} --rate {rate}: these are {events} events, but the recount holds at most {EVENTS_MAX} in memory; lower one of them"
        )));
    }
    Ok(rate)
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

async fn show(
    args: &DemoArgs,
    rate: u32,
    context: &Context,
    installation: &Installation,
    stop: &CancellationToken,
) -> anyhow::Result<()> {
    let stores = installation.stores();
    let (listener, address) = listen(args, &*stores.keys).await?;
    let mut intakes = BTreeMap::new();
    for source in Source::ALL {
        intakes.insert(source, installation.intake(source).await?);
    }
    let watch = Arc::new(BatchWatch::default());
    let setup = DemoSetup {
        address,
        stores: stores.clone(),
        intakes,
        clock: Arc::clone(installation.clock()),
        batch: Arc::clone(&watch) as _,
        seconds: args.seconds,
        rate,
        history: args.history,
        seed: args.seed,
    };
    let run = installation.clock().now_ms().unsigned_abs();
    let repeats_within = usize::try_from(rate)?.saturating_mul(REPEATS_WITHIN_SECONDS);
    let lines = Live::new(args.seed, run, repeats_within)?;
    let end = stop.child_token();
    let prepare = Box::pin(Demo::prepare(setup, Box::new(lines)));
    let Some(demo) = end.run_until_cancelled(prepare).await.transpose()? else {
        return finish(args, stop);
    };
    let (schedule, engine) = (schedule(args), installation.engine()?);
    let every = schedule.every;
    let mut roles = Roles::new(end.clone());
    roles.speed(installation, &engine).await?;
    roles.batch(installation, &engine, schedule, &watch).await?;
    roles.serving(installation, listener)?;
    let show = async {
        if let Some(ready) = end.run_until_cancelled(demo.wait_until_counted()).await {
            ready?;
        } else {
            return Ok(None);
        }
        announce(context, args.seconds, rate, address, every)?;
        demo.run(&end).await
    };
    let shown = async {
        let shown = Box::pin(show).await;
        end.cancel();
        shown
    };
    let (served, shown) = tokio::join!(roles.join(), shown);
    served?;
    let summary = shown?;
    finish(args, stop)?;
    let Some(summary) = summary else {
        return Ok(());
    };
    context.output().result(&summary, Summary::text)?;
    summary.verdict()
}

/// Fails if a comparison was asked for and interrupted.
fn finish(args: &DemoArgs, stop: &CancellationToken) -> anyhow::Result<()> {
    anyhow::ensure!(
        args.seconds.is_none() || !stop.is_cancelled(),
        "interrupted before everything was compared"
    );
    Ok(())
}

fn schedule(args: &DemoArgs) -> Schedule {
    let every = match (args.batch_interval, args.seconds) {
        (Some(every), _) => every,
        (None, Some(seconds)) => Duration::from_millis((seconds * 250).clamp(500, 60_000)),
        (None, None) => Duration::from_secs(60),
    };
    Schedule {
        first: every.min(Duration::from_secs(5)),
        every,
        engine: BatchEngine::Local,
    }
}

fn announce(
    context: &Context,
    seconds: Option<u64>,
    rate: u32,
    address: SocketAddr,
    batch_every: Duration,
) -> anyhow::Result<()> {
    if context.output().is_json() {
        if seconds.is_some() {
            return Ok(());
        }
        let listening = serde_json::json!({ "listening": format!("http://{address}") });
        return context.output().result(&listening, |_| String::new());
    }
    let every = batch_every.as_secs_f64();
    let ends = match seconds {
        Some(seconds) => format!(
            "After {seconds} seconds of traffic, the demo compares its answers with a recount and exits."
        ),
        None if context.loaded().is_set("data_dir") => "Press Ctrl-C to stop.".to_owned(),
        None => "Press Ctrl-C to stop and delete the data.".to_owned(),
    };
    output::raw(
        format!(
            "Backstitch is running: about {rate} generated events and rows a second, a batch run every {every} s.\n\
             \n\
             pages    http://{address}/owners/1\n         \
                      http://{address}/segments/1\n         \
                      http://{address}/applications/1\n\
             total    http://{address}/api/v1/stats/plays/total?owner_id=1&period=today\n\
             series   http://{address}/api/v1/stats/plays/series?owner_id=1&period=7d&interval=day&tz=Europe/Berlin\n\
             ranking  http://{address}/api/v1/stats/plays/breakdown?owner_id=1&by=country\n\
             board    http://{address}/api/v1/boards/segments/1?board=gender:F&window=month\n\
             athlete  http://{address}/api/v1/boards/segments/1/athletes/1?around=3\n\
             counts   http://{address}/api/v1/segments/1/counts\n\
             app      http://{address}/api/v1/applications/1\n\
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
