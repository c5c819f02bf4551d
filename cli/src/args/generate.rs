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

/// How authorizations spread over applications.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Shape {
    /// Drawn one by one: those with small ids have more
    #[default]
    Skewed,
    /// As the article on connected athletes tells: application 1 has a fifth of all, each of the next
    /// four a twentieth, half of the applications one, the others fewer and fewer of the rest; and no
    /// athlete comes to an application twice while there are enough
    Article,
}

/// Said below the options.
const FITTING: &str = "Inputs of different sources that are made with the same seed fit each other: \
the athletes of `--athletes N` are those of `generate athletes --rows N`, the applications of \
`--applications N` those of `generate applications --rows N`. Of efforts and authorizations, ids \
of different seeds differ.";

/// Arguments of `generate`.
#[derive(Debug, Args)]
#[command(after_help = FITTING)]
pub(crate) struct GenerateArgs {
    /// The source that the input is for
    #[arg(value_parser = source())]
    pub(crate) source: Source,
    /// How many rows, duplicates, late and malformed ones among them
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    pub(crate) rows: u64,
    /// The seed: the same arguments with the same seed give the same bytes
    #[arg(long, value_name = "S", allow_negative_numbers = true)]
    pub(crate) seed: u64,
    /// The fraction of rows that repeat an earlier one: plays as they were; of the others, half as
    /// they were and half edited and with a higher version. Rows that are never edited have no
    /// version
    #[arg(long, value_name = "F", default_value_t = 0.0, value_parser = fraction)]
    pub(crate) duplicates: f64,
    /// The fraction of rows that come late: plays that are hours or days older than their
    /// neighbours; of the others, versions that are older than one that came before, so that they
    /// must change nothing
    #[arg(long, value_name = "F", default_value_t = 0.0, value_parser = fraction)]
    pub(crate) late: f64,
    /// The fraction of rows that can't be taken: broken JSON, wrong types, impossible values
    #[arg(long, value_name = "F", default_value_t = 0.0, value_parser = fraction)]
    pub(crate) malformed: f64,
    /// For plays: how many owners there are [default: 1000]
    #[arg(long, value_name = "N", value_parser = count())]
    pub(crate) owners: Option<u64>,
    /// For plays: how many tracks there are [default: 20000]
    #[arg(long, value_name = "N", value_parser = count())]
    pub(crate) tracks: Option<u64>,
    /// For efforts: how many segments there are [default: 5000]
    #[arg(long, value_name = "N", value_parser = count())]
    pub(crate) segments: Option<u64>,
    /// For efforts, clubs, follows and authorizations: how many athletes there are
    /// [default: 100000]
    #[arg(long, value_name = "N", value_parser = count())]
    pub(crate) athletes: Option<u64>,
    /// For clubs: how many there are [default: 500]
    #[arg(long, value_name = "N", value_parser = count())]
    pub(crate) clubs: Option<u64>,
    /// For authorizations: how many applications there are [default: 500]
    #[arg(long, value_name = "N", value_parser = count())]
    pub(crate) applications: Option<u64>,
    /// For authorizations: how they spread over the applications [default: skewed]
    #[arg(long, value_enum)]
    pub(crate) shape: Option<Shape>,
    /// For authorizations: the fraction that is revoked [default: 0.2]
    #[arg(long, value_name = "F", value_parser = fraction)]
    pub(crate) revoked: Option<f64>,
    /// For plays, efforts and authorizations: when they begin [default: 28 days before --until for
    /// plays, three years for the others]
    #[arg(long, value_name = "TIME", value_parser = instant)]
    pub(crate) from: Option<i64>,
    /// For plays, efforts and authorizations: when they end [default: 2026-01-01]
    #[arg(long, value_name = "TIME", value_parser = instant)]
    pub(crate) until: Option<i64>,
    /// The format, where the file's name does not tell
    #[arg(long, value_enum)]
    pub(crate) format: Option<Format>,
    /// The file to write; `-` is standard output
    #[arg(short, long, value_name = "FILE")]
    pub(crate) output: PathBuf,
}

/// How many there are of something.
fn count() -> clap::builder::RangedU64ValueParser<u64> {
    clap::value_parser!(u64).range(1..=1_000_000_000)
}
