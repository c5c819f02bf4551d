//! Creates the missing tables of views.

use jobs::Layers;
use jobs::tables::TableGeneration;
use schemas::source::Source;
use stores::views::ViewShape;

use crate::{Batch, Result, board, tally};

/// Creates the missing tables of a source's views for a generation.
pub(crate) async fn create_tables(
    batch: &Batch,
    source: Source,
    generation: TableGeneration,
) -> Result<()> {
    let aggregates = batch.catalog.jobs_in_layer(source, Layers::Batch);
    let boards = batch.catalog.boards_in_layer(source, Layers::Batch);
    let shapes: Vec<ViewShape> = aggregates
        .flat_map(|job| {
            let mirror_shape = tally::kept_shape(job, generation);
            std::iter::once(tally::shape(job, generation)).chain(mirror_shape)
        })
        .chain(boards.map(|job| board::view_shape(job)))
        .collect();
    for shape in shapes {
        batch.ports.views.ensure_view(source, &shape).await?;
    }
    Ok(())
}
