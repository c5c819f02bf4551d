//! `serve` and `up`.

use std::sync::Arc;

use tokio_util::sync::CancellationToken;

use super::Context;
use crate::args::{ServeArgs, UpArgs};
use crate::engine::BatchEngine;
use crate::installation::Installation;
use crate::roles::{self, BatchStatus, Roles, Schedule};

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
    roles.start_serving(&installation, listener)?;
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
    let interval = args.batch_interval;
    let schedule = Schedule {
        first_delay: interval,
        interval,
        engine: BatchEngine::Local,
    };
    let engine = installation.create_engine()?;
    let mut roles = Roles::new(stop);
    roles.start_speed(&installation, &engine).await?;
    let status = Arc::new(BatchStatus::default());
    roles
        .start_batch(&installation, &engine, schedule, &status)
        .await?;
    roles.start_serving(&installation, listener)?;
    context.announce("", format!("http://{address}"))?;
    roles.join().await
}
