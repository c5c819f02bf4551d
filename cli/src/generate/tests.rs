//! Laws of every source: equal arguments give equal rows, and rows have the requested kinds and
//! fractions.

use std::collections::HashMap;

use clap::Parser;
use schemas::entities::{Entity, parse};
use schemas::plays::check_line;

use super::*;
use crate::args::{Cli, Command, Format};
use crate::failure::Usage;

/// The arguments of a command line that writes to standard output.
pub(super) fn args(line: &str) -> GenerateArgs {
    let line = format!("backstitch generate {line} --seed 7 -o -");
    match Cli::try_parse_from(line.split(' ')).unwrap().command {
        Command::Generate(args) => args,
        other => panic!("{other:?}"),
    }
}

/// Runs a command line and returns its output.
pub(super) fn made(line: &str, format: Format) -> anyhow::Result<(Vec<u8>, Written)> {
    made_by(&args(line), format)
}

pub(super) fn made_by(args: &GenerateArgs, format: Format) -> anyhow::Result<(Vec<u8>, Written)> {
    let mut out = Vec::new();
    let (bar, stop) = (ProgressBar::hidden(), CancellationToken::new());
    let target = Target::new(format, &mut out, &bar, &stop);
    let written = write(&Request::new(args)?, target)?;
    Ok((out, written))
}

/// The lines of a command line.
pub(super) fn lines(line: &str) -> Vec<Vec<u8>> {
    let (bytes, _) = made(line, Format::Jsonl).unwrap();
    let lines = bytes.strip_suffix(b"\n").unwrap_or_default();
    lines
        .split(|byte| *byte == b'\n')
        .map(<[u8]>::to_vec)
        .collect()
}

/// The rows of a command line, which all can be taken.
pub(super) fn rows(line: &str) -> Vec<Entity> {
    let source: Source = line.split(' ').next().unwrap().parse().unwrap();
    let lines = lines(line);
    lines
        .iter()
        .map(|line| parse(source, line).unwrap())
        .collect()
}

/// The immutable fields of a row, key first, and its version.
fn known_by(row: &Entity) -> ([i64; 4], i64) {
    match row {
        Entity::Effort(row) => (
            [row.id, row.segment_id, row.athlete_id, row.activity_id],
            row.version,
        ),
        Entity::Athlete(row) => ([row.id, 0, 0, 0], row.version),
        Entity::Membership(row) => ([row.club_id, row.athlete_id, 0, 0], row.version),
        Entity::Follow(row) => ([row.follower_id, row.followed_id, 0, 0], row.version),
        Entity::Authorization(row) => (
            [
                row.id,
                row.application_id,
                row.athlete_id,
                row.created_at_us,
            ],
            row.version,
        ),
        Entity::Application(row) => ([row.id, 0, 0, 0], row.version),
    }
}

fn entities() -> impl Iterator<Item = Source> {
    Source::ALL
        .into_iter()
        .filter(|source| *source != Source::Plays)
}

#[test]
fn the_same_arguments_give_the_same_bytes() {
    for source in Source::ALL {
        for format in [Format::Jsonl, Format::Parquet] {
            let of = |seed| {
                let line =
                    format!("{source} --rows 2000 --duplicates 0.1 --late 0.1 --malformed 0.1");
                let args = GenerateArgs {
                    seed,
                    ..args(&line)
                };
                made_by(&args, format).unwrap()
            };
            assert_eq!(of(7), of(7), "{source}");
            assert_ne!(of(7).0, of(8).0, "{source}");
        }
    }
}

#[test]
fn ordinary_rows_are_all_different_and_have_no_version() {
    for source in entities() {
        let rows = rows(&format!("{source} --rows 20000"));
        assert_eq!(rows.len(), 20_000);
        let mut seen = HashMap::new();
        for row in &rows {
            let (key, version) = known_by(row);
            assert_eq!(version, 0);
            assert_eq!(seen.insert(key, ()), None, "{row:?}");
        }
    }
}

#[test]
fn rows_come_again_as_they_were_or_newer_or_late_and_older() {
    for source in entities() {
        let line = format!("{source} --rows 20000 --duplicates 0.1 --late 0.05 --malformed 0.1");
        let (_, written) = made(&line, Format::Jsonl).unwrap();
        let mut found = Written::default();
        let mut newest: HashMap<i64, HashMap<i64, Entity>> = HashMap::new();
        for line in lines(&line) {
            found.rows += 1;
            let Ok(row) = parse(source, &line) else {
                found.malformed += 1;
                continue;
            };
            let ([first, second, ..], version) = known_by(&row);
            let second = if matches!(source, Source::Clubs | Source::Follows) {
                second
            } else {
                0
            };
            let of_first = newest.entry(first).or_default();
            let Some(known) = of_first.get(&second) else {
                assert!(version <= 1, "{row:?}");
                of_first.insert(second, row);
                continue;
            };
            let (what, newest_version) = known_by(known);
            assert_eq!(known_by(&row).0, what, "what never changes");
            if version < newest_version {
                found.late += 1;
                continue;
            }
            found.duplicates += 1;
            assert_eq!(version == newest_version, row == *known, "{row:?}");
            if version > newest_version {
                assert_eq!(version, newest_version + 1);
                found.edits += 1;
                of_first.insert(second, row);
            }
        }
        assert_eq!(found, written, "{source}");
        for (count, about) in [
            (found.duplicates, 2_000),
            (found.edits, 1_000),
            (found.late, 1_000),
            (found.malformed, 2_000),
        ] {
            assert!(count.abs_diff(about) < about / 7, "{source}: {found:?}");
        }
    }
}

#[test]
fn what_can_t_be_taken_is_refused_for_many_reasons() {
    for source in Source::ALL {
        let mut reasons = HashMap::new();
        for line in lines(&format!("{source} --rows 2000 --malformed 1")) {
            let reason = match source {
                Source::Plays => check_line(&line).map(|_| ()).unwrap_err(),
                _ => parse(source, &line).map(|_| ()).unwrap_err(),
            };
            let words: String = reason.chars().take(9).collect();
            *reasons.entry(words).or_insert(0) += 1;
        }
        assert!(reasons.len() >= 3, "{source}: {reasons:?}");
        assert!(reasons.keys().any(|reason| reason.starts_with("not JSON")));
    }
}

#[test]
fn any_fractions_that_come_to_one_are_possible() {
    for source in Source::ALL {
        for mix in ["--duplicates 1", "--late 1", "--malformed 1"] {
            let (_, written) = made(&format!("{source} --rows 500 {mix}"), Format::Jsonl).unwrap();
            assert_eq!(written.rows, 500);
            let much = written.duplicates.max(written.late).max(written.malformed);
            assert!(much >= 480, "{source} {mix}: {written:?}");
        }
        let line = format!("{source} --rows 1 --duplicates 0.6 --malformed 0.5");
        assert!(made(&line, Format::Jsonl).unwrap_err().is::<Usage>());
        let (nothing, written) = made(&format!("{source} --rows 0"), Format::Jsonl).unwrap();
        assert_eq!((nothing.len(), written), (0, Written::default()));
    }
}

#[test]
fn options_of_other_sources_are_refused() {
    let refused = |line: &str| {
        let error = Request::new(&args(line)).unwrap_err();
        assert!(error.is::<Usage>());
        error.to_string()
    };
    assert_eq!(
        refused("efforts --rows 1 --owners 5"),
        "--owners is an option of plays, not of efforts; options of efforts are --segments, \
         --athletes, --from, --to"
    );
    assert_eq!(
        refused("athletes --rows 1 --athletes 5"),
        "--athletes is an option of efforts, clubs, follows, authorizations, not of athletes; \
         omit it; --rows is the number of rows"
    );
    for line in [
        "plays --rows 1 --segments 5",
        "clubs --rows 1 --until 2020-01-01",
        "follows --rows 1 --applications 5",
        "applications --rows 1 --from 2020-01-01",
        "efforts --rows 1 --from 2020-01-02 --until 2020-01-02",
    ] {
        refused(line);
    }
}

#[test]
fn a_signal_ends_it() {
    let stop = CancellationToken::new();
    stop.cancel();
    let args = GenerateArgs {
        output: "/dev/null".into(),
        format: Some(Format::Jsonl),
        ..args("efforts --rows 10")
    };
    let error = generate(&args, &ProgressBar::hidden(), &stop).unwrap_err();
    assert!(format!("{error:#}").contains("interrupted"), "{error:#}");
}

#[test]
fn names_tell_formats() {
    let format = |name: &str| format_of(Path::new(name), None, |of| format!("unpack {of}"));
    assert_eq!(format("-").unwrap(), Format::Jsonl);
    assert_eq!(format("a/b.JSONL").unwrap(), Format::Jsonl);
    assert_eq!(format("b.parquet").unwrap(), Format::Parquet);
    let error = format("b.jsonl.gz").unwrap_err().to_string();
    assert_eq!(error, "b.jsonl.gz: unpack gz");
    assert!(format("b").unwrap_err().is::<Usage>());
}
