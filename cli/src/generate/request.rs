//! Validates arguments and applies defaults.

use schemas::source::Source;

use super::rows::Mix;
use crate::args::{GenerateArgs, Shape};
use crate::failure::usage;

const DAY_MS: i64 = 24 * 3_600_000;
/// Default length of the generated time range, which ends at `--to`.
const SPAN_OF_PLAYS_MS: i64 = 28 * DAY_MS;
const SPAN_OF_ENTITIES_MS: i64 = 3 * 365 * DAY_MS;
/// Default fraction of revoked authorizations.
const REVOKED: f64 = 0.2;
/// 2026-01-01.
const UNTIL_MS: i64 = 1_767_225_600_000;

/// A validated request.
#[derive(Debug, Clone)]
pub(super) struct Request {
    pub(super) source: Source,
    pub(super) rows: u64,
    pub(super) seed: u64,
    pub(super) mix: Mix,
    pub(super) owners: u64,
    pub(super) tracks: u64,
    pub(super) segments: u64,
    pub(super) athletes: u64,
    pub(super) clubs: u64,
    pub(super) applications: u64,
    pub(super) shape: Shape,
    /// Fraction of revoked authorizations.
    pub(super) revoked: f64,
    /// Start of the time range, in milliseconds since the Unix epoch.
    pub(super) from_ms: i64,
    /// Exclusive end of the time range, in milliseconds since the Unix epoch.
    pub(super) until_ms: i64,
}

impl Request {
    /// Validates arguments.
    ///
    /// # Errors
    /// Arguments that do not apply to the source, or contradict each other.
    pub(super) fn new(args: &GenerateArgs) -> anyhow::Result<Self> {
        refuse_foreign(args)?;
        let until_ms = args.to.unwrap_or(UNTIL_MS);
        let span_ms = match args.source {
            Source::Plays => SPAN_OF_PLAYS_MS,
            _ => SPAN_OF_ENTITIES_MS,
        };
        let from_ms = args.from.unwrap_or(until_ms.saturating_sub(span_ms));
        if from_ms >= until_ms {
            return Err(usage("--from must be before --to"));
        }
        let mix = Mix {
            duplicates: args.duplicates,
            late: args.late,
            malformed: args.malformed,
        };
        // Any play may be late, so this fraction applies to the other rows.
        let apart = match args.source {
            Source::Plays => mix.duplicates + mix.malformed,
            _ => mix.duplicates + mix.malformed + mix.late,
        };
        if apart > 1.0 {
            return Err(usage(format!(
                "the fractions of unusual {} sum up to {apart}; use fractions with a sum of at most 1",
                args.source
            )));
        }
        Ok(Self {
            source: args.source,
            rows: args.rows,
            seed: args.seed,
            mix,
            owners: args.owners.unwrap_or(1_000),
            tracks: args.tracks.unwrap_or(20_000),
            segments: args.segments.unwrap_or(5_000),
            athletes: args.athletes.unwrap_or(100_000),
            clubs: args.clubs.unwrap_or(500),
            applications: args.applications.unwrap_or(500),
            shape: args.shape.unwrap_or_default(),
            revoked: args.revoked.unwrap_or(REVOKED),
            from_ms,
            until_ms,
        })
    }
}

/// Rejects options of other sources.
fn refuse_foreign(args: &GenerateArgs) -> anyhow::Result<()> {
    use Source::{Authorizations, Clubs, Efforts, Follows, Plays};
    let with_athletes: &[Source] = &[Efforts, Clubs, Follows, Authorizations];
    let with_times: &[Source] = &[Plays, Efforts, Authorizations];
    let options = [
        ("--owners", args.owners.is_some(), &[Plays] as &[Source]),
        ("--tracks", args.tracks.is_some(), &[Plays]),
        ("--segments", args.segments.is_some(), &[Efforts]),
        ("--athletes", args.athletes.is_some(), with_athletes),
        ("--clubs", args.clubs.is_some(), &[Clubs]),
        (
            "--applications",
            args.applications.is_some(),
            &[Authorizations],
        ),
        ("--shape", args.shape.is_some(), &[Authorizations]),
        ("--revoked", args.revoked.is_some(), &[Authorizations]),
        ("--from", args.from.is_some(), with_times),
        ("--to", args.to.is_some(), with_times),
    ];
    for (name, is_given, sources) in options {
        if !is_given || sources.contains(&args.source) {
            continue;
        }
        let names: Vec<&str> = sources.iter().map(|source| source.name()).collect();
        let own: Vec<&str> = options
            .iter()
            .filter(|(_, _, sources)| sources.contains(&args.source))
            .map(|(name, ..)| *name)
            .collect();
        let advice = if own.is_empty() {
            "omit it; --rows is the number of rows".to_owned()
        } else {
            format!("options of {} are {}", args.source, own.join(", "))
        };
        return Err(usage(format!(
            "{name} is an option of {}, not of {}; {advice}",
            names.join(", "),
            args.source
        )));
    }
    Ok(())
}
