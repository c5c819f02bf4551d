//! A `Send + Sync` wrapper whose type proves it without looking inside.

use std::fmt::{self, Debug};
use std::ops::Deref;

/// A value of a deeply nested type, such as a driver's session. Each async method that holds one
/// must prove that it is `Send`. The compiler repeats the proof for each method, through all nested
/// types, which took most of the compile time of this crate. The trait object ends the proof at
/// once.
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
