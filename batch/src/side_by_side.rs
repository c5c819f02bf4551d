//! Tasks that are carried out side by side.

use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::{Error, Result};

/// Carries out tasks, so many at once, and hands on what each gives, in the order in which they end. Told to stop, it
/// begins none any more, and ends once those have ended that had begun.
///
/// # Errors
/// The first error of a task or of `take`, which ends the others; [`Error::Stopped`].
pub(crate) async fn side_by_side<T, F>(
    at_once: usize,
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
        while running.len() < at_once && !stop.is_cancelled() {
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
