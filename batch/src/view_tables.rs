//! Creates the missing tables of views.

use jobs::Layers;
use jobs::tables::TableGeneration;
use schemas::source::Source;
use stores::views::ViewShape;

use crate::archive::Version;
use crate::{Batch, Result, board, tally};

impl Batch {
    /// Creates the missing tables of a source's views.
    ///
    /// # Errors
    /// Errors of the views' store.
    pub async fn create_views(&self, source: Source) -> Result<()> {
        let version = Version::newest(&self.ports.archive, source).await?;
        let (generation, _) = self.generation(&version).await?;
        self.create_tables(source, generation).await
    }

    /// Creates the missing tables of a source's views for a generation.
    pub(crate) async fn create_tables(
        &self,
        source: Source,
        generation: TableGeneration,
    ) -> Result<()> {
        let aggregates = self.catalog.jobs_in_layer(source, Layers::Batch);
        let boards = self.catalog.boards_in_layer(source, Layers::Batch);
        let shapes: Vec<ViewShape> = aggregates
            .flat_map(|job| {
                let mirror_shape = tally::kept_shape(job, generation);
                std::iter::once(tally::shape(job, generation)).chain(mirror_shape)
            })
            .chain(boards.map(|job| board::view_shape(job)))
            .collect();
        for shape in shapes {
            self.ports.views.ensure_view(source, &shape).await?;
        }
        Ok(())
    }
}
