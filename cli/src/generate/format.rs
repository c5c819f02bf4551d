//! Detects file formats by file name.

use std::path::Path;

use crate::args::FileFormat;
use crate::failure::usage_error;

/// Returns the explicit format of a file, else the one of its extension. `remedy` says what to do
/// with a file that is compressed in the format of the extension.
///
/// # Errors
/// An unknown extension.
pub(crate) fn detect_format(
    path: &Path,
    explicit: Option<FileFormat>,
    remedy: impl FnOnce(&str) -> String,
) -> anyhow::Result<FileFormat> {
    if let Some(explicit) = explicit {
        return Ok(explicit);
    }
    if path == Path::new("-") {
        return Ok(FileFormat::Jsonl);
    }
    let extension = path
        .extension()
        .map(|extension| extension.to_string_lossy().to_lowercase());
    match extension.as_deref() {
        Some("jsonl" | "ndjson" | "json") => Ok(FileFormat::Jsonl),
        Some("parquet") => Ok(FileFormat::Parquet),
        Some(extension @ ("gz" | "zst" | "bz2" | "xz")) => Err(usage_error(format!(
            "{}: {}",
            path.display(),
            remedy(extension)
        ))),
        _ => Err(usage_error(format!(
            "{}: unknown file extension; add --format jsonl or --format parquet",
            path.display()
        ))),
    }
}
