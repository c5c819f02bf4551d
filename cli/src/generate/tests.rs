use std::collections::{HashMap, HashSet};

use schemas::plays::check_line;
use serde_json::Value;

use super::*;

fn lines(seed: u64, count: u64, mix: Mix) -> Vec<Vec<u8>> {
    let rhythm = Rhythm::new(0, SPAN_MS);
    let mut traffic = Traffic::new(seed, Shape::default(), mix).unwrap();
    (0..count)
        .map(|index| {
            let mut line = Vec::new();
            write_line(&mut line, &traffic.next(rhythm.at(index, count)));
            line
        })
        .collect()
}

#[test]
fn a_seed_gives_the_same_bytes() {
    let mix = Mix {
        duplicates: 0.1,
        late: 0.1,
        malformed: 0.1,
    };
    assert_eq!(lines(7, 2_000, mix), lines(7, 2_000, mix));
    assert_ne!(lines(7, 2_000, mix), lines(8, 2_000, mix));
}

#[test]
fn ordinary_rows_are_taken_and_all_different() {
    let lines = lines(1, 20_000, Mix::default());
    let mut ids = HashSet::new();
    let mut tracks: HashMap<i64, u32> = HashMap::new();
    let mut last = String::new();
    for line in &lines {
        check_line(line.trim_ascii()).unwrap();
        let event: Value = serde_json::from_slice(line).unwrap();
        assert!(ids.insert(event["event_id"].as_str().unwrap().to_owned()));
        *tracks
            .entry(event["track_id"].as_i64().unwrap())
            .or_default() += 1;
        let at = event["at"].as_str().unwrap()[..13].to_owned();
        assert!(at >= last, "in order of time");
        last = at;
    }
    let most = tracks.values().max().unwrap();
    assert!(*most > 500, "skewed: {most}");
    assert!(tracks.len() > 2_000);
}

#[test]
fn the_fractions_are_kept() {
    let mix = Mix {
        duplicates: 0.1,
        late: 0.05,
        malformed: 0.2,
    };
    let lines = lines(3, 20_000, mix);
    let bad = lines
        .iter()
        .filter(|line| check_line(line.trim_ascii()).is_err())
        .count();
    assert!((3_700..4_300).contains(&bad), "{bad}");
    let mut seen = HashSet::new();
    let again = lines.iter().filter(|line| !seen.insert(*line)).count();
    assert!((1_700..2_300).contains(&again), "{again}");
    let every_reason: HashSet<String> = lines
        .iter()
        .filter_map(|line| check_line(line.trim_ascii()).err())
        .map(|reason| reason.chars().take(9).collect())
        .collect();
    assert!(every_reason.len() >= 6, "{every_reason:?}");
}

#[test]
fn a_rhythm_stays_within_its_time() {
    for (from, until) in [
        (0, SPAN_MS),
        (-5, 3),
        (1_234_567, 1_234_568),
        (0, SPAN_MS * 2_000),
    ] {
        let rhythm = Rhythm::new(from, until);
        let mut last = from;
        for index in 0..1_000 {
            let at = rhythm.at(index, 1_000);
            assert!((from..until).contains(&at) && at >= last);
            last = at;
        }
    }
}

#[test]
fn names_tell_formats() {
    let format = |name: &str| format_of(Path::new(name), None).ok();
    assert_eq!(format("-"), Some(Format::Jsonl));
    assert_eq!(format("a/b.JSONL"), Some(Format::Jsonl));
    assert_eq!(format("b.parquet"), Some(Format::Parquet));
    assert_eq!(format("b.jsonl.gz"), None);
    assert_eq!(format("b"), None);
}
