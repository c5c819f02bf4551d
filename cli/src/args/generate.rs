//! Arguments of `generate`.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use schemas::source::Source;

use super::values::{fraction, instant, source};

/// What a file holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    /// One JSON object a line.
    Jsonl,
    /// Parquet.
    Parquet,
}

/// Arguments of `generate`.
#[derive(Debug, Args)]
pub(crate) struct GenerateArgs {
    /// The source that the input is for
    #[arg(value_parser = source())]
    pub(crate) source: Source,
    /// How many rows, duplicates and malformed ones among them
    #[arg(long, value_name = "N")]
    pub(crate) rows: u64,
    /// The seed: the same arguments with the same seed give the same bytes
    #[arg(long, value_name = "S")]
    pub(crate) seed: u64,
    /// The fraction of rows that repeat an earlier one
    #[arg(long, value_name = "F", default_value_t = 0.0, value_parser = fraction)]
    pub(crate) duplicates: f64,
    /// The fraction of events that are hours or days older than their neighbours
    #[arg(long, value_name = "F", default_value_t = 0.0, value_parser = fraction)]
    pub(crate) late: f64,
    /// The fraction of rows that can't be taken: broken JSON, wrong types, impossible dates
    #[arg(long, value_name = "F", default_value_t = 0.0, value_parser = fraction)]
    pub(crate) malformed: f64,
    /// How many owners there are
    #[arg(long, value_name = "N", default_value_t = 1_000, value_parser = clap::value_parser!(u64).range(1..=1_000_000_000))]
    pub(crate) owners: u64,
    /// How many tracks there are
    #[arg(long, value_name = "N", default_value_t = 20_000, value_parser = clap::value_parser!(u64).range(1..=1_000_000_000))]
    pub(crate) tracks: u64,
    /// When the events begin [default: 28 days before --until]
    #[arg(long, value_name = "TIME", value_parser = instant)]
    pub(crate) from: Option<i64>,
    /// When the events end
    #[arg(long, value_name = "TIME", value_parser = instant, default_value = "2026-01-01")]
    pub(crate) until: i64,
    /// The format, where the file's name does not tell
    #[arg(long, value_enum)]
    pub(crate) format: Option<Format>,
    /// The file to write; `-` is standard output
    #[arg(short, long, value_name = "FILE")]
    pub(crate) output: PathBuf,
}
