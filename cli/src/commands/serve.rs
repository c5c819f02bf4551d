//! `serve` and `up`.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use serde::Serialize;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::Context;
use crate::args::{ServeArgs, UpArgs};
use crate::installation::Installation;
use crate::roles::{self, BatchWatch, Schedule};

/// Where the API is.
#[derive(Debug, Serialize)]
struct Listening {
    listening: String,
}

/// Serves until it is told to end.
pub(super) async fn serve(
    args: &ServeArgs,
    context: &Context,
    stop: CancellationToken,
) -> anyhow::Result<()> {
    let (listener, address) = roles::listen(&args.listen).await?;
    let installation = Installation::open(context.settings()).await?;
    let mut tasks = JoinSet::new();
    let serving = installation.serving(roles::metrics(&mut tasks, &stop)?)?;
    let end = stop.clone();
    tasks.spawn(async move { serving.run(listener, end).await.context("serving") });
    announce(context, address)?;
    roles::join(tasks, &stop).await
}

/// Runs every role until it is told to end.
pub(super) async fn up(
    args: &UpArgs,
    context: &Context,
    stop: CancellationToken,
) -> anyhow::Result<()> {
    let (listener, address) = roles::listen(&args.listen).await?;
    let installation = Installation::open(context.settings()).await?;
    let every = Duration::from_secs(args.batch_interval);
    let schedule = Schedule { first: every, every };
    let mut tasks = JoinSet::new();
    let watch = Arc::new(BatchWatch::default());
    roles::start(&installation, listener, schedule, &watch, &mut tasks, &stop).await?;
    announce(context, address)?;
    roles::join(tasks, &stop).await
}

fn announce(context: &Context, address: SocketAddr) -> anyhow::Result<()> {
    let listening = Listening {
        listening: format!("http://{address}"),
    };
    context.output().result(&listening, |listening| {
        format!("listening on {}", listening.listening)
    })
}
