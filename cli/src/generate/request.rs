//! Validates arguments and applies defaults.

use schemas::source::Source;

use super::rows::RowMix;
use crate::args::{AuthorizationShape, GenerateArgs};
use crate::failure::usage_error;

const DAY_MS: i64 = 24 * 3_600_000;
/// Default length of the generated time range, which ends at `--to`.
const PLAYS_SPAN_MS: i64 = 28 * DAY_MS;
const ENTITIES_SPAN_MS: i64 = 3 * 365 * DAY_MS;
/// Default fraction of revoked authorizations.
const REVOKED_FRACTION: f64 = 0.2;
/// Default end of the time range: 2026-01-01.
const END_MS: i64 = 1_767_225_600_000;

/// A validated request.
#[derive(Debug, Clone)]
pub(super) struct GenerateRequest {
    pub(super) source: Source,
    pub(super) row_count: u64,
    pub(super) seed: u64,
    pub(super) mix: RowMix,
    /// Number of ids of owners; the next ones likewise.
    pub(super) owners: u64,
    pub(super) tracks: u64,
    pub(super) segments: u64,
    pub(super) athletes: u64,
    pub(super) clubs: u64,
    pub(super) applications: u64,
    pub(super) shape: AuthorizationShape,
    /// Fraction of revoked authorizations.
    pub(super) revoked_fraction: f64,
    /// Start of the time range, in milliseconds since the Unix epoch.
    pub(super) from_ms: i64,
    /// Exclusive end of the time range, in milliseconds since the Unix epoch.
    pub(super) end_ms: i64,
}

impl GenerateRequest {
    /// Validates arguments.
    ///
    /// # Errors
    /// Arguments that do not apply to the source, or contradict each other.
    pub(super) fn new(args: &GenerateArgs) -> anyhow::Result<Self> {
        reject_inapplicable(args)?;
        let end_ms = args.to.unwrap_or(END_MS);
        let span_ms = match args.source {
            Source::Plays => PLAYS_SPAN_MS,
            _ => ENTITIES_SPAN_MS,
        };
        let from_ms = args.from.unwrap_or(end_ms.saturating_sub(span_ms));
        if from_ms >= end_ms {
            return Err(usage_error("--from must be before --to"));
        }
        let mix = RowMix {
            duplicates: args.duplicates,
            late: args.late,
            malformed: args.malformed,
        };
        // Any play may be late, so this fraction applies to the other rows.
        let unusual = match args.source {
            Source::Plays => mix.duplicates + mix.malformed,
            _ => mix.duplicates + mix.malformed + mix.late,
        };
        if unusual > 1.0 {
            return Err(usage_error(format!(
                "the fractions of unusual {} sum up to {unusual}; use fractions with a sum of at most 1",
                args.source
            )));
        }
        Ok(Self {
            source: args.source,
            row_count: args.rows,
            seed: args.seed,
            mix,
            owners: args.owners.unwrap_or(1_000),
            tracks: args.tracks.unwrap_or(20_000),
            segments: args.segments.unwrap_or(5_000),
            athletes: args.athletes.unwrap_or(100_000),
            clubs: args.clubs.unwrap_or(500),
            applications: args.applications.unwrap_or(500),
            shape: args.shape.unwrap_or_default(),
            revoked_fraction: args.revoked.unwrap_or(REVOKED_FRACTION),
            from_ms,
            end_ms,
        })
    }
}

/// Rejects options that do not apply to the source.
fn reject_inapplicable(args: &GenerateArgs) -> anyhow::Result<()> {
    use Source::{Authorizations, Clubs, Efforts, Follows, Plays};
    let athlete_sources: &[Source] = &[Efforts, Clubs, Follows, Authorizations];
    let time_sources: &[Source] = &[Plays, Efforts, Authorizations];
    let options = [
        ("--owners", args.owners.is_some(), &[Plays] as &[Source]),
        ("--tracks", args.tracks.is_some(), &[Plays]),
        ("--segments", args.segments.is_some(), &[Efforts]),
        ("--athletes", args.athletes.is_some(), athlete_sources),
        ("--clubs", args.clubs.is_some(), &[Clubs]),
        (
            "--applications",
            args.applications.is_some(),
            &[Authorizations],
        ),
        ("--shape", args.shape.is_some(), &[Authorizations]),
        ("--revoked", args.revoked.is_some(), &[Authorizations]),
        ("--from", args.from.is_some(), time_sources),
        ("--to", args.to.is_some(), time_sources),
    ];
    for (name, is_given, sources) in options {
        if !is_given || sources.contains(&args.source) {
            continue;
        }
        let names: Vec<&str> = sources.iter().map(|source| source.name()).collect();
        let applicable: Vec<&str> = options
            .iter()
            .filter(|(_, _, sources)| sources.contains(&args.source))
            .map(|(name, ..)| *name)
            .collect();
        let advice = if applicable.is_empty() {
            "omit it; --rows is the number of rows".to_owned()
        } else {
            format!("options of {} are {}", args.source, applicable.join(", "))
        };
        return Err(usage_error(format!(
            "{name} is an option of {}, not of {}; {advice}",
            names.join(", "),
            args.source
        )));
    }
    Ok(())
}
