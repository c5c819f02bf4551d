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
use crate::failure::usage_error;
use crate::generate::DemoLineGenerator;
use crate::installation::Installation;
use crate::output;
use crate::roles::{self, BatchStatus, Roles, Schedule};

/// Maximum delay of a duplicate: well within the deduplication window, so that live values are
/// exact.
const REPEAT_DELAY_MAX_S: usize = 300;
/// Default events and rows per second, if the answers are compared with a recount.
const COMPARED_RATE: u32 = 200;
/// Default events and rows per second otherwise.
const DEFAULT_RATE: u32 = 20;

/// Runs the demo until `stop`, or until its time is over.
///
/// # Errors
/// Those of the roles, and with `--seconds` any difference.
pub(super) async fn run(
    args: &DemoArgs,
    context: &Context,
    stop: CancellationToken,
) -> anyhow::Result<()> {
    let rate = choose_rate(args)?;
    let mut settings = context.settings().clone();
    let mut temporary_folder = None;
    if !context.loaded().is_set("data_dir") {
        let folder = tempfile::Builder::new()
            .prefix("backstitch-demo-")
            .tempdir();
        let folder = temporary_folder.insert(folder.context("creating a temporary folder")?);
        settings.data_dir = folder.path().to_path_buf();
    }
    let installation = Installation::open(&settings).await?;
    let keys = &*installation.stores().keys;
    if keys.has_keys().await? {
        return Err(usage_error(format!(
            "{}: the installation has API keys, and the demo uses none; choose another folder with --data-dir",
            settings.data_dir.display()
        )));
    }
    let outcome = Box::pin(run_demo(args, rate, context, &installation, &stop)).await;
    drop(installation);
    if let Some(folder) = temporary_folder {
        let path = folder.path().to_path_buf();
        let removed = folder.close();
        return outcome.and(removed.with_context(|| format!("removing {}", path.display())));
    }
    outcome
}

/// Returns the events and rows per second.
fn choose_rate(args: &DemoArgs) -> anyhow::Result<u32> {
    let Some(seconds) = args.seconds else {
        return Ok(args.rate.unwrap_or(DEFAULT_RATE));
    };
    let rate = args.rate.unwrap_or(COMPARED_RATE);
    let events = u64::from(args.history) + seconds * u64::from(rate);
    if events > EVENTS_MAX {
        return Err(usage_error(format!(
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

async fn run_demo(
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
        intakes.insert(source, installation.open_intake(source).await?);
    }
    let status = Arc::new(BatchStatus::default());
    let setup = DemoSetup {
        address,
        stores: stores.clone(),
        intakes,
        clock: Arc::clone(installation.clock()),
        batch: Arc::clone(&status) as _,
        seconds: args.seconds,
        rate,
        history: args.history,
        seed: args.seed,
    };
    let run_id = installation.clock().now_ms().unsigned_abs();
    let repeat_window = usize::try_from(rate)?.saturating_mul(REPEAT_DELAY_MAX_S);
    let lines = DemoLineGenerator::new(args.seed, run_id, repeat_window)?;
    let end = stop.child_token();
    let prepare = Box::pin(Demo::prepare(setup, Box::new(lines)));
    let Some(demo) = end.run_until_cancelled(prepare).await.transpose()? else {
        return check_complete(args, stop);
    };
    let (schedule, engine) = (build_schedule(args), installation.create_engine()?);
    let interval = schedule.interval;
    let mut roles = Roles::new(end.clone());
    roles.start_speed(installation, &engine).await?;
    roles
        .start_batch(installation, &engine, schedule, &status)
        .await?;
    roles.start_serving(installation, listener)?;
    let traffic = async {
        if let Some(ready) = end.run_until_cancelled(demo.wait_until_counted()).await {
            ready?;
        } else {
            return Ok(None);
        }
        announce(context, args.seconds, rate, address, interval)?;
        demo.run(&end).await
    };
    let traffic = async {
        let summary = Box::pin(traffic).await;
        end.cancel();
        summary
    };
    let (roles_result, summary) = tokio::join!(roles.join(), traffic);
    roles_result?;
    let summary = summary?;
    check_complete(args, stop)?;
    let Some(summary) = summary else {
        return Ok(());
    };
    context.output().print_result(&summary, Summary::to_text)?;
    summary.check_result()
}

/// Fails if a requested comparison was interrupted.
fn check_complete(args: &DemoArgs, stop: &CancellationToken) -> anyhow::Result<()> {
    anyhow::ensure!(
        args.seconds.is_none() || !stop.is_cancelled(),
        "interrupted before everything was compared"
    );
    Ok(())
}

fn build_schedule(args: &DemoArgs) -> Schedule {
    let interval = match (args.batch_interval, args.seconds) {
        (Some(interval), _) => interval,
        (None, Some(seconds)) => Duration::from_millis((seconds * 250).clamp(500, 60_000)),
        (None, None) => Duration::from_secs(60),
    };
    Schedule {
        first_delay: interval.min(Duration::from_secs(5)),
        interval,
        engine: BatchEngine::Local,
    }
}

fn announce(
    context: &Context,
    seconds: Option<u64>,
    rate: u32,
    address: SocketAddr,
    batch_interval: Duration,
) -> anyhow::Result<()> {
    if context.output().is_json() {
        if seconds.is_some() {
            return Ok(());
        }
        let listening = serde_json::json!({ "listening": format!("http://{address}") });
        return context.output().print_result(&listening, |_| String::new());
    }
    let interval_s = batch_interval.as_secs_f64();
    let end_note = match seconds {
        Some(seconds) => format!(
            "After {seconds} seconds of traffic, the demo compares its answers with a recount and exits."
        ),
        None if context.loaded().is_set("data_dir") => "Press Ctrl-C to stop.".to_owned(),
        None => "Press Ctrl-C to stop and delete the data.".to_owned(),
    };
    output::write_stdout(
        format!(
            "Backstitch is running: about {rate} generated events and rows a second, a batch run every {interval_s} s.\n\
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
             {end_note}\n\
             \n\
             Open http://{address}/\n"
        )
        .as_bytes(),
    )
}
