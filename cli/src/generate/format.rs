//! Formats of files, and how their names tell them.

use std::path::Path;

use crate::args::Format;
use crate::failure::usage;

/// The format of a file: as said, else by its name. `compressed` says what helps if the name is that
/// of a compressed file; it is given the name's extension.
///
/// # Errors
/// A name that does not tell.
pub(crate) fn format_of(
    path: &Path,
    said: Option<Format>,
    compressed: impl FnOnce(&str) -> String,
) -> anyhow::Result<Format> {
    if let Some(said) = said {
        return Ok(said);
    }
    if path == Path::new("-") {
        return Ok(Format::Jsonl);
    }
    let extension = path
        .extension()
        .map(|extension| extension.to_string_lossy().to_lowercase());
    match extension.as_deref() {
        Some("jsonl" | "ndjson" | "json") => Ok(Format::Jsonl),
        Some("parquet") => Ok(Format::Parquet),
        Some(extension @ ("gz" | "zst" | "bz2" | "xz")) => Err(usage(format!(
            "{}: {}",
            path.display(),
            compressed(extension)
        ))),
        _ => Err(usage(format!(
            "{}: the name does not tell the format; add --format jsonl or --format parquet",
            path.display()
        ))),
    }
}
