//! The embedded stores.

use stores::{Result, Stores};
use tempfile::TempDir;

use super::Stage;

/// A data folder.
pub(super) struct Folder(pub(super) TempDir);

impl Stage for Folder {
    async fn set() -> Self {
        Self(tempfile::tempdir().expect("a temporary folder"))
    }

    async fn ports(&self) -> Result<Stores> {
        Stores::embedded(self.0.path()).await
    }
}

super::laws_of! {
    Folder; log live states live_scans editions runs views view_scans achievements counts canon canon_reads canon_connect canon_admin canon_recounts canon_erase canon_aged canon_names keys records reconciliations erasures lease archive
}

#[tokio::test]
async fn times_are_those_given() -> Result<()> {
    let folder = Folder::set().await;
    tests::conformance::log::times_are_those_given(&folder.ports().await?).await
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
async fn outlived_runs_are_deleted() -> Result<()> {
    let folder = tempfile::tempdir().expect("a folder");
    let folder = stores::embedded::DataFolder::open(folder.path())?;
    let views = folder.views().await?.keeping_runs(70);
    tests::conformance::runs::outlived_runs_are_deleted(&views).await
}
