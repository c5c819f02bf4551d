//! Tests of the distributions of each source.

use std::collections::{HashMap, HashSet};

use schemas::entities::{Application, Athlete, Authorization, Effort, Entity};
use schemas::plays::check_line;
use serde_json::Value;

use super::tests::{
    generate_lines, generate_output, generate_rows, generate_with_args, parse_args,
};
use super::time_distribution::TimeDistribution;
use crate::args::FileFormat;
use crate::failure::UsageError;

const DAY_US: i64 = 24 * 3_600 * 1_000_000;

fn generate_efforts(line: &str) -> Vec<Effort> {
    let rows = generate_rows(&format!("efforts --rows {line}"));
    let effort = |row| match row {
        Entity::Effort(effort) => effort,
        other => panic!("{other:?}"),
    };
    rows.into_iter().map(effort).collect()
}

fn generate_athletes(line: &str) -> Vec<Athlete> {
    let rows = generate_rows(&format!("athletes --rows {line}"));
    let athlete = |row| match row {
        Entity::Athlete(athlete) => athlete,
        other => panic!("{other:?}"),
    };
    rows.into_iter().map(athlete).collect()
}

fn generate_authorizations(line: &str) -> Vec<Authorization> {
    let rows = generate_rows(&format!("authorizations --rows {line}"));
    let authorization = |row| match row {
        Entity::Authorization(authorization) => authorization,
        other => panic!("{other:?}"),
    };
    rows.into_iter().map(authorization).collect()
}

fn generate_applications(line: &str) -> Vec<Application> {
    let rows = generate_rows(&format!("applications --rows {line}"));
    let application = |row| match row {
        Entity::Application(application) => application,
        other => panic!("{other:?}"),
    };
    rows.into_iter().map(application).collect()
}

/// Generates pairs of clubs or follows.
fn generate_pairs(line: &str) -> Vec<(i64, i64)> {
    let pair = |row| match row {
        Entity::Membership(row) => (row.club_id, row.athlete_id),
        Entity::Follow(row) => (row.follower_id, row.followed_id),
        other => panic!("{other:?}"),
    };
    generate_rows(line).into_iter().map(pair).collect()
}

/// Counts each value; the highest count is first.
fn count_values(values: impl Iterator<Item = i64>) -> Vec<usize> {
    let mut counts: HashMap<i64, usize> = HashMap::new();
    for value in values {
        *counts.entry(value).or_default() += 1;
    }
    let mut counts: Vec<usize> = counts.into_values().collect();
    counts.sort_unstable_by(|a, b| b.cmp(a));
    counts
}

fn fraction(count: usize, total: usize) -> f64 {
    f64::from(u32::try_from(count).unwrap()) / f64::from(u32::try_from(total).unwrap())
}

#[test]
fn plays_are_in_order_of_time_and_skewed() {
    let lines = generate_lines("plays --rows 20000");
    let mut ids = HashSet::new();
    let mut last_hour = String::new();
    let mut tracks = Vec::new();
    for line in &lines {
        check_line(line).unwrap();
        let event: Value = serde_json::from_slice(line).unwrap();
        assert!(ids.insert(event["event_id"].as_str().unwrap().to_owned()));
        tracks.push(event["track_id"].as_i64().unwrap());
        let hour = event["at"].as_str().unwrap()[..13].to_owned();
        assert!(hour >= last_hour, "in order of time");
        last_hour = hour;
    }
    let tracks = count_values(tracks.into_iter());
    assert!(tracks[0] > 500 && tracks.len() > 2_000, "{}", tracks[0]);
}

#[test]
fn some_plays_are_repeated_or_late() {
    let line = "plays --rows 20000 --duplicates 0.1 --late 0.05";
    let (_, report) = generate_output(line, FileFormat::Jsonl).unwrap();
    let mut distinct = HashSet::new();
    let repeated = generate_lines(line)
        .into_iter()
        .filter(|line| !distinct.insert(line.clone()))
        .count();
    assert_eq!(report.duplicates, repeated as u64);
    assert!((1_700..2_300).contains(&repeated), "{repeated}");
    assert!((750..1_050).contains(&report.late), "{report:?}");
}

#[test]
fn efforts_resemble_real_ones() {
    let efforts = generate_efforts("50000 --athletes 3000");
    let total = efforts.len();
    let segments = count_values(efforts.iter().map(|effort| effort.segment_id));
    assert!(
        segments[0] > 500 && segments.len() > 3_500,
        "{} {}",
        segments[0],
        segments.len()
    );
    let athletes = count_values(efforts.iter().map(|effort| effort.athlete_id));
    assert!(
        athletes[0] > 300 && athletes.len() > 2_000,
        "{} {}",
        athletes[0],
        athletes.len()
    );
    let hidden = efforts.iter().filter(|effort| effort.is_hidden).count();
    let deleted = efforts.iter().filter(|effort| effort.is_deleted).count();
    for (count, expected) in [(hidden, 0.01), (deleted, 0.01)] {
        assert!(
            (fraction(count, total) - expected).abs() < expected / 5.0,
            "{count}"
        );
    }
    // From 2023-01-02 until 2026-01-01, roughly in order.
    let range = 1_672_617_600_000_000..1_767_225_600_000_000;
    assert!(
        efforts
            .iter()
            .all(|effort| range.contains(&effort.started_at_us))
    );
    for pair in efforts.windows(2) {
        assert!(
            pair[1].started_at_us > pair[0].started_at_us - DAY_US * 4,
            "{pair:?}"
        );
    }
    let mut zones = HashMap::new();
    let mut activities: HashMap<i64, (i64, String, i64)> = HashMap::new();
    for effort in &efforts {
        let zone = zones.entry(effort.segment_id).or_insert(&effort.tz);
        assert_eq!(*zone, &effort.tz, "a segment has one zone");
        let (athlete_id, zone, end_us) = activities.entry(effort.activity_id).or_insert((
            effort.athlete_id,
            effort.tz.clone(),
            i64::MIN,
        ));
        assert_eq!((*athlete_id, &*zone), (effort.athlete_id, &effort.tz));
        assert!(effort.started_at_us >= *end_us, "efforts follow each other");
        *end_us = effort.started_at_us + effort.elapsed_time_s * 1_000_000;
    }
    assert!(zones.values().collect::<HashSet<_>>().len() > 8);
    assert!(activities.len() < total / 2 && activities.len() > total / 8);
}

#[test]
fn times_on_a_segment_are_near_each_other_and_some_are_equal() {
    let efforts = generate_efforts("20000 --segments 3 --athletes 500");
    let mut medians = HashSet::new();
    for segment_id in 1..=3 {
        let times = efforts
            .iter()
            .filter(|effort| effort.segment_id == segment_id);
        let mut times: Vec<i64> = times.map(|effort| effort.elapsed_time_s).collect();
        times.sort_unstable();
        let (low, median, high) = (
            times[times.len() / 20],
            times[times.len() / 2],
            times[times.len() * 19 / 20],
        );
        assert!(
            low * 2 > median && median * 2 > high,
            "{low} {median} {high}"
        );
        assert!((25..8_000).contains(&median) && times[0] > 0);
        medians.insert(median);
        times.dedup();
        assert!(times.len() < 6_000, "ties");
    }
    assert_eq!(medians.len(), 3);
}

#[test]
fn some_athletes_lack_optional_fields() {
    let athletes = generate_athletes("20000");
    let total = athletes.len();
    let fraction_of =
        |is: fn(&Athlete) -> bool| fraction(athletes.iter().filter(|a| is(a)).count(), total);
    for (actual, expected) in [
        (fraction_of(|a| a.gender.is_none()), 0.1),
        (
            fraction_of(|a| a.gender.is_some_and(|gender| gender.letter() == "F")),
            0.4,
        ),
        (
            fraction_of(|a| a.gender.is_some_and(|gender| gender.letter() == "X")),
            0.03,
        ),
        (fraction_of(|a| a.birth_year.is_none()), 0.12),
        (fraction_of(|a| a.weight_kg.is_none()), 0.25),
        (fraction_of(|a| a.is_deleted), 0.01),
        (fraction_of(|a| a.is_disqualified), 0.005),
    ] {
        assert!(
            (actual - expected).abs() < expected / 5.0,
            "{actual} is not about {expected}"
        );
    }
    assert!(
        athletes
            .iter()
            .filter_map(|a| a.birth_year)
            .all(|year| (1938..2014).contains(&year))
    );
    let weights = athletes.iter().filter_map(|a| a.weight_kg);
    assert!(
        weights
            .clone()
            .all(|weight_kg| (40.0..122.0).contains(&weight_kg))
    );
    assert!(weights.clone().any(|weight_kg| weight_kg.fract() != 0.0));
}

#[test]
fn some_applications_are_popular_and_a_fifth_is_revoked() {
    let authorizations = generate_authorizations("20000 --from 2025-01-01 --until 2025-02-01");
    let total = authorizations.len();
    let applications = count_values(authorizations.iter().map(|a| a.application_id));
    assert!(
        applications[0] > 700 && applications.len() > 400,
        "{}",
        applications[0]
    );
    let revoked = authorizations.iter().filter(|a| a.revoked_at_us.is_some());
    assert!((fraction(revoked.clone().count(), total) - 0.2).abs() < 0.01);
    let end_us = 1_738_368_000_000_000;
    assert!(
        revoked
            .clone()
            .all(|a| { (a.created_at_us..end_us).contains(&a.revoked_at_us.unwrap()) })
    );
}

#[test]
fn authorizations_are_as_in_the_article() {
    let line = "20000 --shape article --applications 200 --athletes 20000 --revoked 0";
    let authorizations = generate_authorizations(line);
    let mut ids: HashMap<i64, Vec<i64>> = HashMap::new();
    for authorization in &authorizations {
        assert_eq!(authorization.revoked_at_us, None);
        let athletes = ids.entry(authorization.application_id).or_default();
        athletes.push(authorization.athlete_id);
    }
    let size = |id| ids.get(&id).map_or(0, Vec::len);
    assert_eq!(ids.len(), 200, "each application has an athlete");
    assert_eq!(size(1), 4_000);
    assert!((2..=5).all(|id| size(id) == 1_000));
    let middle: Vec<usize> = (6..=100).map(size).collect();
    // At the end, consecutive counts differ by less than one, so rounding may raise the later count
    // by one.
    assert!(
        middle.windows(2).all(|pair| pair[0] + 1 >= pair[1]),
        "{middle:?}"
    );
    assert!(middle[0] > 1_000 && middle[94] > 10, "{middle:?}");
    assert!((101..=200).all(|id| size(id) == 1));
    for athletes in ids.values() {
        let distinct: HashSet<&i64> = athletes.iter().collect();
        assert_eq!(distinct.len(), athletes.len());
    }
    // The applications are mixed, not one after the other.
    let early = authorizations
        .iter()
        .take(2_000)
        .filter(|a| a.application_id == 1);
    assert!((330..=470).contains(&early.count()));
    for line in ["1", "7 --applications 3", "50 --applications 100"] {
        let authorizations =
            generate_authorizations(&format!("{line} --shape article --athletes 3"));
        assert!(
            authorizations
                .iter()
                .all(|a| (1..=3).contains(&a.athlete_id))
        );
    }
    let few = generate_authorizations("100 --shape article --applications 3");
    assert!(few.iter().all(|a| (1..=3).contains(&a.application_id)));
}

#[test]
fn sources_of_one_seed_fit_together() {
    let ids: HashSet<i64> = generate_athletes("40")
        .iter()
        .map(|athlete| athlete.id)
        .collect();
    assert_eq!(ids, (1..=40).collect());
    let apps: HashSet<i64> = generate_applications("12")
        .iter()
        .map(|app| app.id)
        .collect();
    assert_eq!(apps, (1..=12).collect());
    let efforts = generate_efforts("5000 --athletes 40");
    assert_eq!(
        efforts.iter().map(|e| e.athlete_id).collect::<HashSet<_>>(),
        ids
    );
    let authorizations = generate_authorizations("5000 --athletes 40 --applications 12");
    assert_eq!(
        authorizations
            .iter()
            .map(|a| a.athlete_id)
            .collect::<HashSet<_>>(),
        ids
    );
    assert_eq!(
        authorizations
            .iter()
            .map(|a| a.application_id)
            .collect::<HashSet<_>>(),
        apps
    );
    let members = generate_pairs("clubs --rows 300 --athletes 40 --clubs 20");
    assert_eq!(
        members
            .iter()
            .map(|(_, athlete)| *athlete)
            .collect::<HashSet<_>>(),
        ids
    );
    let follows = generate_pairs("follows --rows 900 --athletes 40");
    assert_eq!(
        follows
            .iter()
            .map(|(follower_id, _)| *follower_id)
            .collect::<HashSet<_>>(),
        ids
    );
    assert!(
        follows
            .iter()
            .all(|(follower_id, followed_id)| follower_id != followed_id
                && ids.contains(followed_id))
    );
    // The time zone of a segment does not depend on the number of rows.
    let zones = |efforts: Vec<Effort>| -> HashMap<i64, String> {
        efforts
            .into_iter()
            .map(|effort| (effort.segment_id, effort.tz))
            .collect()
    };
    let (few, many) = (
        zones(generate_efforts("500")),
        zones(generate_efforts("20000 --athletes 9")),
    );
    assert!(
        few.iter()
            .all(|(segment, tz)| many.get(segment).is_none_or(|other| other == tz))
    );
}

#[test]
fn different_seeds_generate_different_efforts_of_the_same_athletes() {
    let ids = |seed: u64| -> HashSet<i64> {
        let mut args = parse_args("efforts --rows 1000");
        args.seed = seed;
        let bytes = generate_with_args(&args, FileFormat::Jsonl).unwrap().0;
        let rows = bytes
            .split(|byte| *byte == b'\n')
            .filter(|line| !line.is_empty());
        rows.map(|line| {
            serde_json::from_slice::<Value>(line).unwrap()["id"]
                .as_i64()
                .unwrap()
        })
        .collect()
    };
    assert!(ids(1).is_disjoint(&ids(2)) && ids(1).is_disjoint(&ids(0)));
    assert!(ids(u64::MAX).iter().all(|id| (0..1 << 53).contains(id)));
}

#[test]
fn all_possible_pairs_are_generated_and_no_more() {
    for (line, pairs_max) in [
        ("clubs --clubs 7 --athletes 9 --rows", 63),
        ("follows --athletes 9 --rows", 72),
    ] {
        let pairs = generate_pairs(&format!("{line} {pairs_max}"));
        assert_eq!(
            pairs.iter().collect::<HashSet<_>>().len(),
            pairs_max,
            "{line}"
        );
        let error =
            generate_output(&format!("{line} {}", pairs_max + 1), FileFormat::Jsonl).unwrap_err();
        assert!(error.is::<UsageError>(), "{error}");
        assert!(
            error
                .to_string()
                .contains(&format!("at most {pairs_max} distinct rows"))
        );
    }
    assert!(generate_output("follows --athletes 1 --rows 1", FileFormat::Jsonl).is_err());
    let members = count_values(
        generate_pairs("clubs --rows 20000")
            .into_iter()
            .map(|(club, _)| club),
    );
    assert!(members[0] > 500 && members.len() == 500, "{}", members[0]);
    let followers = count_values(
        generate_pairs("follows --rows 20000")
            .into_iter()
            .map(|(_, followed_id)| followed_id),
    );
    assert!(followers[0] > 50, "{}", followers[0]);
}

#[test]
fn times_stay_within_their_range() {
    let span_ms = 28 * 24 * 3_600_000;
    for (from_ms, end_ms) in [
        (0, span_ms),
        (-5, 3),
        (1_234_567, 1_234_568),
        (0, span_ms * 2_000),
    ] {
        let times = TimeDistribution::new(from_ms, end_ms);
        let mut last_ms = from_ms;
        for index in 0..1_000 {
            let time_ms = times.time_at(index, 1_000);
            assert!((from_ms..end_ms).contains(&time_ms) && time_ms >= last_ms);
            last_ms = time_ms;
        }
    }
    let efforts =
        generate_efforts("200 --from 2025-03-01T12:00:00.5Z --until 2025-03-01T12:00:01Z");
    let are_equal = efforts
        .iter()
        .all(|effort| effort.started_at_us == 1_740_830_400_500_000);
    assert!(are_equal, "{efforts:?}");
}
