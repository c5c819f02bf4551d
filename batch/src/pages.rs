//! Reading what a store gives page by page.

use futures::{Stream, stream};

use crate::Result;

/// The pages of a store, each from the key of the last item of the page before on, until one is empty.
pub(crate) fn pages<T, K, F>(
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
