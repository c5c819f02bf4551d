//! Services with in-memory boards.

use std::sync::Arc;

use jobs::{Board, Catalog, Job};

use super::board_store::CUT;
pub(crate) use super::board_store::{BoardTime, EPOCH, TODAY};
use super::{Progress, World};
use crate::{Serving, ServingOptions};

/// The built-in board of a name.
pub(crate) fn job(name: &str) -> Arc<Job<Board>> {
    Arc::clone(&crate::board::from_catalog(&Catalog::built_in().unwrap())[name])
}

/// A service with empty built-in boards.
pub(crate) fn serving(options: ServingOptions) -> (Serving, Arc<World>) {
    serving_with(Catalog::built_in().unwrap(), options)
}

/// A service with empty boards of a catalog.
pub(crate) fn serving_with(catalog: Catalog, options: ServingOptions) -> (Serving, Arc<World>) {
    let world = World::new(&catalog, &[], 0, &Progress::default());
    {
        let mut boards = world.boards.lock().unwrap();
        let jobs = catalog.boards().iter();
        boards.views.extend(jobs.map(|job| job.view().to_owned()));
        boards.next_offset = CUT.next_offset;
    }
    world.serving(&catalog, options)
}
