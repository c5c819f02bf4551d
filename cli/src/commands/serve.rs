//! `serve` and `up`.

use std::sync::Arc;

use tokio_util::sync::CancellationToken;

use super::Context;
use crate::args::{ServeArgs, UpArgs};
use crate::engine::BatchEngine;
use crate::installation::Installation;
use crate::roles::{self, BatchWatch, Roles, Schedule};

/// Serves until `stop`.
pub(super) async fn serve(
    args: &ServeArgs,
    context: &Context,
    stop: CancellationToken,
) -> anyhow::Result<()> {
    let installation = Installation::open(context.settings()).await?;
    let keys = &*installation.stores().keys;
    let (listener, address) = roles::listen(&args.listen, keys).await?;
    let mut roles = Roles::new(stop);
    roles.serving(&installation, listener)?;
    context.announce("", format!("http://{address}"))?;
    roles.join().await
}

/// Runs every role until `stop`.
pub(super) async fn up(
    args: &UpArgs,
    context: &Context,
    stop: CancellationToken,
) -> anyhow::Result<()> {
    let installation = Installation::open(context.settings()).await?;
    let keys = &*installation.stores().keys;
    let (listener, address) = roles::listen(&args.listen, keys).await?;
    let every = args.batch_interval;
    let schedule = Schedule {
        first: every,
        every,
        engine: BatchEngine::Local,
    };
    let engine = installation.engine()?;
    let mut roles = Roles::new(stop);
    roles.speed(&installation, &engine).await?;
    let watch = Arc::new(BatchWatch::default());
    roles
        .batch(&installation, &engine, schedule, &watch)
        .await?;
    roles.serving(&installation, listener)?;
    context.announce("", format!("http://{address}"))?;
    roles.join().await
}
