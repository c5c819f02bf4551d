//! The embedded stores.

use stores::{Result, Stores};
use tempfile::TempDir;

use super::Stage;

/// A data folder.
pub(super) struct Folder(pub(super) TempDir);

impl Stage for Folder {
    async fn create() -> Self {
        Self(tempfile::tempdir().expect("a temporary folder"))
    }

    async fn ports(&self) -> Result<Stores> {
        Stores::embedded(self.0.path()).await
    }
}

super::laws_of! {
    Folder; log live live_entries live_scans versions runs views view_scans achievements counts entities entity_reads entity_connections entity_admin entity_recounts entity_erasure entity_expiry entity_names keys records reconciliations erasures lease archive
}

#[tokio::test]
async fn timestamps_come_from_the_caller() -> Result<()> {
    let folder = Folder::create().await;
    tests::conformance::log::timestamps_come_from_the_caller(&folder.ports().await?).await
}

#[test]
fn live_state_follows_the_model() {
    super::live_state_follows_the_model::<Folder>(40);
}

#[test]
fn entities_follow_the_model() {
    super::entities_follow_the_model::<Folder>(40);
}

#[tokio::test]
async fn old_runs_are_deleted() -> Result<()> {
    let folder = tempfile::tempdir().expect("a folder");
    let folder = stores::embedded::DataFolder::open(folder.path())?;
    let views = folder.views().await?.keeping_runs(70);
    tests::conformance::runs::old_runs_are_deleted(&views).await
}
