//! Runs futures concurrently with a limit.

use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::{Error, Result};

/// Runs at most `tasks_max` tasks at a time, and passes each output to `take` in the order of
/// completion. After `stop` is cancelled, no further task starts, and the call returns when the
/// running ones have ended.
///
/// # Errors
/// The first error of a task or of `take`, which cancels the others; [`Error::Stopped`].
pub(crate) async fn run_concurrently<T, F>(
    tasks_max: usize,
    tasks: impl IntoIterator<Item = F, IntoIter: Send>,
    stop: &CancellationToken,
    mut take: impl FnMut(T) -> Result<()> + Send,
) -> Result<()>
where
    T: Send + 'static,
    F: Future<Output = Result<T>> + Send + 'static,
{
    let mut waiting = tasks.into_iter();
    let mut running: JoinSet<Result<T>> = JoinSet::new();
    loop {
        while running.len() < tasks_max && !stop.is_cancelled() {
            let Some(task) = waiting.next() else { break };
            running.spawn(task);
        }
        let Some(ended) = running.join_next().await else {
            break;
        };
        take(ended.map_err(|e| Error::fault("a task ended", e))??)?;
    }
    match stop.is_cancelled() {
        true => Err(Error::Stopped),
        false => Ok(()),
    }
}
