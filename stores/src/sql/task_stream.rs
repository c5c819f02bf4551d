//! Streams of the values that tasks send.

use futures::StreamExt;
use futures::stream::{self, BoxStream};
use tokio::sync::mpsc::Receiver;
use tokio::task::JoinSet;

use crate::{Error, Result};

/// Streams the values that tasks send, until the tasks end or the first error. Dropping the stream
/// ends the tasks.
pub(super) fn stream_from_tasks<T: Send + 'static>(
    receiver: Receiver<Result<T>>,
    tasks: JoinSet<()>,
    operation: &'static str,
) -> BoxStream<'static, Result<T>> {
    let next = move |state: Option<(Receiver<Result<T>>, JoinSet<()>)>| async move {
        let (mut receiver, mut tasks) = state?;
        if let Some(sent) = receiver.recv().await {
            let next_state = sent.is_ok().then_some((receiver, tasks));
            return Some((sent, next_state));
        }
        while let Some(ended) = tasks.join_next().await {
            if let Err(error) = ended {
                return Some((Err(Error::broken(operation, error)), None));
            }
        }
        None
    };
    stream::unfold(Some((receiver, tasks)), next).boxed()
}
