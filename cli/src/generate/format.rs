//! File formats by file name.

use std::path::Path;

use crate::args::Format;
use crate::failure::usage;

/// The format of a file: the explicit one, else by the extension. `compressed` returns the remedy for the extension of a
/// compressed file.
///
/// # Errors
/// An unknown extension.
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
            "{}: unknown file extension; add --format jsonl or --format parquet",
            path.display()
        ))),
    }
}
