//! Streams of what tasks send.

use futures::StreamExt;
use futures::stream::{self, BoxStream};
use tokio::sync::mpsc::Receiver;
use tokio::task::JoinSet;

use crate::{Error, Result};

/// Streams what tasks send, up to their end or the first error. The tasks end when the stream is dropped.
pub(super) fn task_stream<T: Send + 'static>(
    receiver: Receiver<Result<T>>,
    tasks: JoinSet<()>,
    doing: &'static str,
) -> BoxStream<'static, Result<T>> {
    let next = move |state: Option<(Receiver<Result<T>>, JoinSet<()>)>| async move {
        let (mut receiver, mut tasks) = state?;
        if let Some(sent) = receiver.recv().await {
            let left = sent.is_ok().then_some((receiver, tasks));
            return Some((sent, left));
        }
        while let Some(ended) = tasks.join_next().await {
            if let Err(error) = ended {
                return Some((Err(Error::broken(doing, error)), None));
            }
        }
        None
    };
    stream::unfold(Some((receiver, tasks)), next).boxed()
}
