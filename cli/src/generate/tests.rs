//! Tests of every source: equal arguments give equal rows, and rows have the requested kinds and
//! fractions.

use std::collections::HashMap;

use clap::Parser;
use schemas::entities::{Entity, parse};
use schemas::plays::check_line;

use super::*;
use crate::args::{Cli, Command, FileFormat};
use crate::failure::UsageError;

/// Parses a command line that writes to standard output.
pub(super) fn parse_args(line: &str) -> GenerateArgs {
    let line = format!("backstitch generate {line} --seed 7 -o -");
    match Cli::try_parse_from(line.split(' ')).unwrap().command {
        Command::Generate(args) => args,
        other => panic!("{other:?}"),
    }
}

/// Runs a command line and returns its output.
pub(super) fn generate_output(
    line: &str,
    format: FileFormat,
) -> anyhow::Result<(Vec<u8>, WriteReport)> {
    generate_with_args(&parse_args(line), format)
}

pub(super) fn generate_with_args(
    args: &GenerateArgs,
    format: FileFormat,
) -> anyhow::Result<(Vec<u8>, WriteReport)> {
    let mut out = Vec::new();
    let (bar, stop) = (ProgressBar::hidden(), CancellationToken::new());
    let output = RowOutput::new(format, &mut out, &bar, &stop);
    let report = write(&GenerateRequest::new(args)?, output)?;
    Ok((out, report))
}

/// Runs a command line and returns the lines.
pub(super) fn generate_lines(line: &str) -> Vec<Vec<u8>> {
    let (bytes, _) = generate_output(line, FileFormat::Jsonl).unwrap();
    let lines = bytes.strip_suffix(b"\n").unwrap_or_default();
    lines
        .split(|byte| *byte == b'\n')
        .map(<[u8]>::to_vec)
        .collect()
}

/// Runs a command line and returns the rows, which must be valid.
pub(super) fn generate_rows(line: &str) -> Vec<Entity> {
    let source: Source = line.split(' ').next().unwrap().parse().unwrap();
    let lines = generate_lines(line);
    lines
        .iter()
        .map(|line| parse(source, line).unwrap())
        .collect()
}

/// Returns the immutable fields of a row, key first, and its version.
fn immutable_fields(row: &Entity) -> ([i64; 4], i64) {
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

fn entity_sources() -> impl Iterator<Item = Source> {
    Source::ALL
        .into_iter()
        .filter(|source| *source != Source::Plays)
}

#[test]
fn the_same_arguments_give_the_same_bytes() {
    for source in Source::ALL {
        for format in [FileFormat::Jsonl, FileFormat::Parquet] {
            let generate = |seed| {
                let line =
                    format!("{source} --rows 2000 --duplicates 0.1 --late 0.1 --malformed 0.1");
                let args = GenerateArgs {
                    seed,
                    ..parse_args(&line)
                };
                generate_with_args(&args, format).unwrap()
            };
            assert_eq!(generate(7), generate(7), "{source}");
            assert_ne!(generate(7).0, generate(8).0, "{source}");
        }
    }
}

#[test]
fn ordinary_rows_are_all_different_and_have_no_version() {
    for source in entity_sources() {
        let rows = generate_rows(&format!("{source} --rows 20000"));
        assert_eq!(rows.len(), 20_000);
        let mut keys = HashMap::new();
        for row in &rows {
            let (key, version) = immutable_fields(row);
            assert_eq!(version, 0);
            assert_eq!(keys.insert(key, ()), None, "{row:?}");
        }
    }
}

#[test]
fn repeated_rows_are_unchanged_or_newer_and_late_rows_are_older() {
    for source in entity_sources() {
        let line = format!("{source} --rows 20000 --duplicates 0.1 --late 0.05 --malformed 0.1");
        let (_, report) = generate_output(&line, FileFormat::Jsonl).unwrap();
        let mut counted = WriteReport::default();
        let mut newest: HashMap<i64, HashMap<i64, Entity>> = HashMap::new();
        for line in generate_lines(&line) {
            counted.rows += 1;
            let Ok(row) = parse(source, &line) else {
                counted.malformed += 1;
                continue;
            };
            let ([first, second, ..], version) = immutable_fields(&row);
            let second = if matches!(source, Source::Clubs | Source::Follows) {
                second
            } else {
                0
            };
            let rows_of_first = newest.entry(first).or_default();
            let Some(newest_row) = rows_of_first.get(&second) else {
                assert!(version <= 1, "{row:?}");
                rows_of_first.insert(second, row);
                continue;
            };
            let (fields, newest_version) = immutable_fields(newest_row);
            assert_eq!(immutable_fields(&row).0, fields, "immutable fields");
            if version < newest_version {
                counted.late += 1;
                continue;
            }
            counted.duplicates += 1;
            assert_eq!(version == newest_version, row == *newest_row, "{row:?}");
            if version > newest_version {
                assert_eq!(version, newest_version + 1);
                counted.edits += 1;
                rows_of_first.insert(second, row);
            }
        }
        assert_eq!(counted, report, "{source}");
        for (count, expected) in [
            (counted.duplicates, 2_000),
            (counted.edits, 1_000),
            (counted.late, 1_000),
            (counted.malformed, 2_000),
        ] {
            assert!(
                count.abs_diff(expected) < expected / 7,
                "{source}: {counted:?}"
            );
        }
    }
}

#[test]
fn malformed_rows_are_rejected_for_many_reasons() {
    for source in Source::ALL {
        let mut reasons = HashMap::new();
        for line in generate_lines(&format!("{source} --rows 2000 --malformed 1")) {
            let reason = match source {
                Source::Plays => check_line(&line).map(|_| ()).unwrap_err(),
                _ => parse(source, &line).map(|_| ()).unwrap_err(),
            };
            let prefix: String = reason.chars().take(9).collect();
            *reasons.entry(prefix).or_insert(0) += 1;
        }
        assert!(reasons.len() >= 3, "{source}: {reasons:?}");
        assert!(reasons.keys().any(|reason| reason.starts_with("not JSON")));
    }
}

#[test]
fn fractions_up_to_a_sum_of_one_are_possible() {
    for source in Source::ALL {
        for mix in ["--duplicates 1", "--late 1", "--malformed 1"] {
            let (_, report) =
                generate_output(&format!("{source} --rows 500 {mix}"), FileFormat::Jsonl).unwrap();
            assert_eq!(report.rows, 500);
            let unusual = report.duplicates.max(report.late).max(report.malformed);
            assert!(unusual >= 480, "{source} {mix}: {report:?}");
        }
        let line = format!("{source} --rows 1 --duplicates 0.6 --malformed 0.5");
        assert!(
            generate_output(&line, FileFormat::Jsonl)
                .unwrap_err()
                .is::<UsageError>()
        );
        let (bytes, report) =
            generate_output(&format!("{source} --rows 0"), FileFormat::Jsonl).unwrap();
        assert_eq!((bytes.len(), report), (0, WriteReport::default()));
    }
}

#[test]
fn options_of_other_sources_are_rejected() {
    let rejection = |line: &str| {
        let error = GenerateRequest::new(&parse_args(line)).unwrap_err();
        assert!(error.is::<UsageError>());
        error.to_string()
    };
    assert_eq!(
        rejection("efforts --rows 1 --owners 5"),
        "--owners is an option of plays, not of efforts; options of efforts are --segments, \
         --athletes, --from, --to"
    );
    assert_eq!(
        rejection("athletes --rows 1 --athletes 5"),
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
        rejection(line);
    }
}

#[test]
fn a_stop_signal_interrupts_generation() {
    let stop = CancellationToken::new();
    stop.cancel();
    let args = GenerateArgs {
        output: "/dev/null".into(),
        format: Some(FileFormat::Jsonl),
        ..parse_args("efforts --rows 10")
    };
    let error = generate(&args, &ProgressBar::hidden(), &stop).unwrap_err();
    assert!(format!("{error:#}").contains("interrupted"), "{error:#}");
}

#[test]
fn file_names_determine_formats() {
    let format = |name: &str| {
        detect_format(Path::new(name), None, |extension| {
            format!("unpack {extension}")
        })
    };
    assert_eq!(format("-").unwrap(), FileFormat::Jsonl);
    assert_eq!(format("a/b.JSONL").unwrap(), FileFormat::Jsonl);
    assert_eq!(format("b.parquet").unwrap(), FileFormat::Parquet);
    let error = format("b.jsonl.gz").unwrap_err().to_string();
    assert_eq!(error, "b.jsonl.gz: unpack gz");
    assert!(format("b").unwrap_err().is::<UsageError>());
}
