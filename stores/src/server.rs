//! The port of a server that holds one of the stores: its migration and its diagnostics.

use async_trait::async_trait;

use crate::Result;

/// A server that holds one of the stores.
#[async_trait]
pub trait Server: std::fmt::Debug + Send + Sync {
    /// Describes the stores of the server, for messages.
    fn name(&self) -> &'static str;

    /// Creates or upgrades the store's schema on the server. Returns a sentence for each change.
    ///
    /// # Errors
    /// Those of the server.
    async fn migrate(&self) -> Result<Vec<String>> {
        Ok(Vec::new())
    }

    /// Checks the server. Returns a sentence for each problem.
    ///
    /// # Errors
    /// Those of a server that does not respond.
    async fn diagnostics(&self) -> Result<Vec<String>>;
}
