//! Arguments of `generate`.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use schemas::source::Source;

use super::values::{parse_fraction, parse_instant, source_parser};

/// Format of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum FileFormat {
    /// One JSON object per line
    Jsonl,
    /// Parquet
    Parquet,
}

/// Distribution of authorizations over applications.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum AuthorizationShape {
    /// Random; applications with small ids have more
    #[default]
    Skewed,
    /// As in Strava's article on connected athletes: application 1 has a fifth of all, each of the next
    /// four a twentieth, half of the applications one; the others share the rest in decreasing parts.
    /// An athlete connects to an application only once if there are enough athletes
    Article,
}

/// Shown below the options.
const SEEDS: &str = "Inputs of different sources with the same seed fit together: \
`--athletes N` uses the ids of `generate athletes --rows N`, and `--applications N` those of \
`generate applications --rows N`. Efforts and authorizations of different seeds have different ids.";

/// Arguments of `generate`.
#[derive(Debug, Args)]
#[command(after_help = SEEDS)]
pub(crate) struct GenerateArgs {
    /// Source of the input
    #[arg(value_parser = source_parser())]
    pub(crate) source: Source,
    /// Number of rows, including duplicate, late and malformed ones
    #[arg(
        long,
        value_name = "N",
        default_value_t = 1_000,
        allow_negative_numbers = true
    )]
    pub(crate) rows: u64,
    /// Seed; the same arguments with the same seed give the same bytes
    #[arg(
        long,
        value_name = "S",
        default_value_t = 1,
        allow_negative_numbers = true
    )]
    pub(crate) seed: u64,
    /// Fraction of rows that repeat an earlier row. Plays repeat it unchanged; of the other sources,
    /// half repeat it unchanged and half edit it and raise its version, if the source has versions
    #[arg(long, value_name = "F", default_value_t = 0.0, value_parser = parse_fraction)]
    pub(crate) duplicates: f64,
    /// Fraction of late rows. Late plays are hours or days older than the plays around them; late rows
    /// of the other sources have an older version than an earlier row, and must change nothing
    #[arg(long, value_name = "F", default_value_t = 0.0, value_parser = parse_fraction)]
    pub(crate) late: f64,
    /// Fraction of malformed rows: broken JSON, wrong types, impossible values
    #[arg(long, value_name = "F", default_value_t = 0.0, value_parser = parse_fraction)]
    pub(crate) malformed: f64,
    /// For plays: number of owners [default: 1000]
    #[arg(long, value_name = "N", value_parser = id_count_parser())]
    pub(crate) owners: Option<u64>,
    /// For plays: number of tracks [default: 20000]
    #[arg(long, value_name = "N", value_parser = id_count_parser())]
    pub(crate) tracks: Option<u64>,
    /// For efforts: number of segments [default: 5000]
    #[arg(long, value_name = "N", value_parser = id_count_parser())]
    pub(crate) segments: Option<u64>,
    /// For efforts, clubs, follows and authorizations: number of athletes
    /// [default: 100000]
    #[arg(long, value_name = "N", value_parser = id_count_parser())]
    pub(crate) athletes: Option<u64>,
    /// For clubs: number of clubs [default: 500]
    #[arg(long, value_name = "N", value_parser = id_count_parser())]
    pub(crate) clubs: Option<u64>,
    /// For authorizations: number of applications [default: 500]
    #[arg(long, value_name = "N", value_parser = id_count_parser())]
    pub(crate) applications: Option<u64>,
    /// For authorizations: distribution over applications [default: skewed]
    #[arg(long, value_enum)]
    pub(crate) shape: Option<AuthorizationShape>,
    /// For authorizations: fraction of revoked ones [default: 0.2]
    #[arg(long, value_name = "F", value_parser = parse_fraction)]
    pub(crate) revoked: Option<f64>,
    /// For plays, efforts and authorizations: earliest time [default: 28 days before --to for
    /// plays, three years for the others]
    #[arg(long, value_name = "TIME", value_parser = parse_instant)]
    pub(crate) from: Option<i64>,
    /// For plays, efforts and authorizations: end time, exclusive [default: 2026-01-01]
    #[arg(long, alias = "until", value_name = "TIME", value_parser = parse_instant)]
    pub(crate) to: Option<i64>,
    /// Format, if the file name has no known extension [default: jsonl]
    #[arg(long, value_enum)]
    pub(crate) format: Option<FileFormat>,
    /// Output file; `-` is standard output
    #[arg(short, long, value_name = "FILE", default_value = "-")]
    pub(crate) output: PathBuf,
}

/// Creates the parser of a number of ids.
fn id_count_parser() -> clap::builder::RangedU64ValueParser<u64> {
    clap::value_parser!(u64).range(1..=1_000_000_000)
}
