//! Reads a store's listing page by page.

use futures::{Stream, stream};

use crate::Result;

/// Streams the pages of a store until one is empty. Each read starts after the key of the last item
/// of the page before.
pub(crate) fn stream_pages<T, K, F>(
    mut read: impl FnMut(Option<K>) -> F,
    key: fn(&T) -> K,
) -> impl Stream<Item = Result<Vec<T>>>
where
    F: Future<Output = stores::Result<Vec<T>>>,
{
    stream::try_unfold(None, move |after| {
        let page = read(after);
        async move {
            let page = page.await?;
            let last = page.last().map(key);
            Ok(last.map(|last| (page, Some(last))))
        }
    })
}
