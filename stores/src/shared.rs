//! Something that may go to other threads, and whose type says so by itself.

use std::fmt::{self, Debug};
use std::ops::Deref;

/// A value of a deep type, such as a driver's session. Each async method that holds one must prove that it may go to
/// another thread; the compiler does so anew for each of them, through all that it consists of, which took most of the
/// time to compile this crate. Here it ends at once.
pub(crate) struct Shared<T>(Box<dyn Deref<Target = T> + Send + Sync>);

impl<T: Send + Sync + 'static> Shared<T> {
    pub(crate) fn new(value: T) -> Self {
        Self(Box::new(Box::new(value)))
    }
}

impl<T> Deref for Shared<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}

impl<T: Debug> Debug for Shared<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        T::fmt(self, f)
    }
}
