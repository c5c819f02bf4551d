//! Tallies of facts: computed from the archive by pieces of time, published where they differ, and
//! compared with what was counted live.

mod check;
mod compute;
mod drift;
mod fingerprint;
mod held;
mod loading;
mod note;
mod planning;
mod publish;
mod repeats;
mod result;
mod run;
mod shared;
mod tables;
mod tasks;

pub(crate) use compute::OfDays;
pub(crate) use note::Note;
pub(crate) use publish::{Edition, NewRow, Published, Publisher, new_rows};
pub(crate) use result::{RowStream, ViewManifest, Written};
pub(crate) use run::run_tallies;
pub(crate) use shared::Shared;
pub(crate) use tables::{kept_shape, shape};

/// The files, and their row groups, that the manifest of a result names; none if the bytes are not such a
/// manifest.
pub(crate) fn segments(manifest: &[u8]) -> Vec<(String, Vec<usize>)> {
    let Ok(manifest) = crate::manifest_file::from_bytes::<ViewManifest>(manifest) else {
        return Vec::new();
    };
    let segments = manifest
        .pieces
        .into_values()
        .flat_map(|piece| piece.segments);
    let named = segments.map(|segment| {
        let (first, after) = segment.row_groups;
        (segment.file, (first..after).collect())
    });
    named.collect()
}
