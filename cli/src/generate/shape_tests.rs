//! Tests of the distributions of each source.

use std::collections::{HashMap, HashSet};

use schemas::entities::{Application, Athlete, Authorization, Effort, Entity};
use schemas::plays::check_line;
use serde_json::Value;

use super::rhythm::Rhythm;
use super::tests::{args, lines, made, made_by, rows};
use crate::args::Format;
use crate::failure::Usage;

const DAY_US: i64 = 24 * 3_600 * 1_000_000;

fn efforts(line: &str) -> Vec<Effort> {
    let rows = rows(&format!("efforts --rows {line}"));
    let effort = |row| match row {
        Entity::Effort(effort) => effort,
        other => panic!("{other:?}"),
    };
    rows.into_iter().map(effort).collect()
}

fn athletes(line: &str) -> Vec<Athlete> {
    let rows = rows(&format!("athletes --rows {line}"));
    let athlete = |row| match row {
        Entity::Athlete(athlete) => athlete,
        other => panic!("{other:?}"),
    };
    rows.into_iter().map(athlete).collect()
}

fn authorizations(line: &str) -> Vec<Authorization> {
    let rows = rows(&format!("authorizations --rows {line}"));
    let authorization = |row| match row {
        Entity::Authorization(authorization) => authorization,
        other => panic!("{other:?}"),
    };
    rows.into_iter().map(authorization).collect()
}

fn applications(line: &str) -> Vec<Application> {
    let rows = rows(&format!("applications --rows {line}"));
    let application = |row| match row {
        Entity::Application(application) => application,
        other => panic!("{other:?}"),
    };
    rows.into_iter().map(application).collect()
}

/// The pairs of clubs or follows.
fn pairs(line: &str) -> Vec<(i64, i64)> {
    let pair = |row| match row {
        Entity::Membership(row) => (row.club_id, row.athlete_id),
        Entity::Follow(row) => (row.follower_id, row.followed_id),
        other => panic!("{other:?}"),
    };
    rows(line).into_iter().map(pair).collect()
}

/// Frequency of each value, most frequent first.
fn counts(values: impl Iterator<Item = i64>) -> Vec<usize> {
    let mut counts: HashMap<i64, usize> = HashMap::new();
    for value in values {
        *counts.entry(value).or_default() += 1;
    }
    let mut counts: Vec<usize> = counts.into_values().collect();
    counts.sort_unstable_by(|a, b| b.cmp(a));
    counts
}

fn share(count: usize, of: usize) -> f64 {
    f64::from(u32::try_from(count).unwrap()) / f64::from(u32::try_from(of).unwrap())
}

#[test]
fn plays_are_in_order_of_time_and_skewed() {
    let lines = lines("plays --rows 20000");
    let mut ids = HashSet::new();
    let mut last = String::new();
    let mut tracks = Vec::new();
    for line in &lines {
        check_line(line).unwrap();
        let event: Value = serde_json::from_slice(line).unwrap();
        assert!(ids.insert(event["event_id"].as_str().unwrap().to_owned()));
        tracks.push(event["track_id"].as_i64().unwrap());
        let at = event["at"].as_str().unwrap()[..13].to_owned();
        assert!(at >= last, "in order of time");
        last = at;
    }
    let tracks = counts(tracks.into_iter());
    assert!(tracks[0] > 500 && tracks.len() > 2_000, "{}", tracks[0]);
}

#[test]
fn plays_come_again_and_late() {
    let line = "plays --rows 20000 --duplicates 0.1 --late 0.05";
    let (_, written) = made(line, Format::Jsonl).unwrap();
    let mut seen = HashSet::new();
    let again = lines(line)
        .into_iter()
        .filter(|line| !seen.insert(line.clone()))
        .count();
    assert_eq!(written.duplicates, again as u64);
    assert!((1_700..2_300).contains(&again), "{again}");
    assert!((750..1_050).contains(&written.late), "{written:?}");
}

#[test]
fn efforts_are_as_in_life() {
    let efforts = efforts("50000 --athletes 3000");
    let all = efforts.len();
    let segments = counts(efforts.iter().map(|effort| effort.segment_id));
    assert!(
        segments[0] > 500 && segments.len() > 3_500,
        "{} {}",
        segments[0],
        segments.len()
    );
    let athletes = counts(efforts.iter().map(|effort| effort.athlete_id));
    assert!(
        athletes[0] > 300 && athletes.len() > 2_000,
        "{} {}",
        athletes[0],
        athletes.len()
    );
    let hidden = efforts.iter().filter(|effort| effort.is_hidden).count();
    let deleted = efforts.iter().filter(|effort| effort.is_deleted).count();
    for (count, about) in [(hidden, 0.01), (deleted, 0.01)] {
        assert!((share(count, all) - about).abs() < about / 5.0, "{count}");
    }
    // From 2023-01-02 until 2026-01-01, about in order.
    let range = 1_672_617_600_000_000..1_767_225_600_000_000;
    assert!(
        efforts
            .iter()
            .all(|effort| range.contains(&effort.started_at_us))
    );
    for two in efforts.windows(2) {
        assert!(
            two[1].started_at_us > two[0].started_at_us - DAY_US * 4,
            "{two:?}"
        );
    }
    let mut zones = HashMap::new();
    let mut activities: HashMap<i64, (i64, String, i64)> = HashMap::new();
    for effort in &efforts {
        let zone = zones.entry(effort.segment_id).or_insert(&effort.tz);
        assert_eq!(*zone, &effort.tz, "a segment has one zone");
        let (athlete, zone, until) = activities.entry(effort.activity_id).or_insert((
            effort.athlete_id,
            effort.tz.clone(),
            i64::MIN,
        ));
        assert_eq!((*athlete, &*zone), (effort.athlete_id, &effort.tz));
        assert!(effort.started_at_us >= *until, "efforts follow each other");
        *until = effort.started_at_us + effort.elapsed_time_s * 1_000_000;
    }
    assert!(zones.values().collect::<HashSet<_>>().len() > 8);
    assert!(activities.len() < all / 2 && activities.len() > all / 8);
}

#[test]
fn times_on_a_segment_are_near_each_other_and_some_are_equal() {
    let efforts = efforts("20000 --segments 3 --athletes 500");
    let mut usual = HashSet::new();
    for segment_id in 1..=3 {
        let times = efforts
            .iter()
            .filter(|effort| effort.segment_id == segment_id);
        let mut times: Vec<i64> = times.map(|effort| effort.elapsed_time_s).collect();
        times.sort_unstable();
        let (low, middle, high) = (
            times[times.len() / 20],
            times[times.len() / 2],
            times[times.len() * 19 / 20],
        );
        assert!(
            low * 2 > middle && middle * 2 > high,
            "{low} {middle} {high}"
        );
        assert!((25..8_000).contains(&middle) && times[0] > 0);
        usual.insert(middle);
        times.dedup();
        assert!(times.len() < 6_000, "ties");
    }
    assert_eq!(usual.len(), 3);
}

#[test]
fn athletes_leave_open_what_need_not_be_told() {
    let athletes = athletes("20000");
    let all = athletes.len();
    let part = |is: fn(&Athlete) -> bool| share(athletes.iter().filter(|a| is(a)).count(), all);
    for (part, about) in [
        (part(|a| a.gender.is_none()), 0.1),
        (
            part(|a| a.gender.is_some_and(|gender| gender.letter() == "F")),
            0.4,
        ),
        (
            part(|a| a.gender.is_some_and(|gender| gender.letter() == "X")),
            0.03,
        ),
        (part(|a| a.birth_year.is_none()), 0.12),
        (part(|a| a.weight_kg.is_none()), 0.25),
        (part(|a| a.is_deleted), 0.01),
        (part(|a| a.is_disqualified), 0.005),
    ] {
        assert!(
            (part - about).abs() < about / 5.0,
            "{part} is not about {about}"
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
    let authorizations = authorizations("20000 --from 2025-01-01 --until 2025-02-01");
    let all = authorizations.len();
    let applications = counts(authorizations.iter().map(|a| a.application_id));
    assert!(
        applications[0] > 700 && applications.len() > 400,
        "{}",
        applications[0]
    );
    let revoked = authorizations.iter().filter(|a| a.revoked_at_us.is_some());
    assert!((share(revoked.clone().count(), all) - 0.2).abs() < 0.01);
    let until_us = 1_738_368_000_000_000;
    assert!(
        revoked
            .clone()
            .all(|a| { (a.created_at_us..until_us).contains(&a.revoked_at_us.unwrap()) })
    );
}

#[test]
fn authorizations_are_as_in_the_article() {
    let line = "20000 --shape article --applications 200 --athletes 20000 --revoked 0";
    let given = authorizations(line);
    let mut ids: HashMap<i64, Vec<i64>> = HashMap::new();
    for authorization in &given {
        assert_eq!(authorization.revoked_at_us, None);
        let athletes = ids.entry(authorization.application_id).or_default();
        athletes.push(authorization.athlete_id);
    }
    let size = |id| ids.get(&id).map_or(0, Vec::len);
    assert_eq!(ids.len(), 200, "each application has an athlete");
    assert_eq!(size(1), 4_000);
    assert!((2..=5).all(|id| size(id) == 1_000));
    let rest: Vec<usize> = (6..=100).map(size).collect();
    // A root drops by less than one from a position to the next at the end, which rounding hides.
    assert!(rest.windows(2).all(|two| two[0] + 1 >= two[1]), "{rest:?}");
    assert!(rest[0] > 1_000 && rest[94] > 10, "{rest:?}");
    assert!((101..=200).all(|id| size(id) == 1));
    for athletes in ids.values() {
        let different: HashSet<&i64> = athletes.iter().collect();
        assert_eq!(different.len(), athletes.len());
    }
    // Each at any time, not one application after the other.
    let early = given.iter().take(2_000).filter(|a| a.application_id == 1);
    assert!((330..=470).contains(&early.count()));
    for line in ["1", "7 --applications 3", "50 --applications 100"] {
        let given = authorizations(&format!("{line} --shape article --athletes 3"));
        assert!(given.iter().all(|a| (1..=3).contains(&a.athlete_id)));
    }
    let few = authorizations("100 --shape article --applications 3");
    assert!(few.iter().all(|a| (1..=3).contains(&a.application_id)));
}

#[test]
fn sources_of_one_seed_fit_each_other() {
    let ids: HashSet<i64> = athletes("40").iter().map(|athlete| athlete.id).collect();
    assert_eq!(ids, (1..=40).collect());
    let apps: HashSet<i64> = applications("12").iter().map(|app| app.id).collect();
    assert_eq!(apps, (1..=12).collect());
    let of_efforts = efforts("5000 --athletes 40");
    assert_eq!(
        of_efforts
            .iter()
            .map(|e| e.athlete_id)
            .collect::<HashSet<_>>(),
        ids
    );
    let given = authorizations("5000 --athletes 40 --applications 12");
    assert_eq!(
        given.iter().map(|a| a.athlete_id).collect::<HashSet<_>>(),
        ids
    );
    assert_eq!(
        given
            .iter()
            .map(|a| a.application_id)
            .collect::<HashSet<_>>(),
        apps
    );
    let members = pairs("clubs --rows 300 --athletes 40 --clubs 20");
    assert_eq!(
        members
            .iter()
            .map(|(_, athlete)| *athlete)
            .collect::<HashSet<_>>(),
        ids
    );
    let follows = pairs("follows --rows 900 --athletes 40");
    assert_eq!(
        follows.iter().map(|(who, _)| *who).collect::<HashSet<_>>(),
        ids
    );
    assert!(
        follows
            .iter()
            .all(|(who, whom)| who != whom && ids.contains(whom))
    );
    // However many rows there are.
    let zones = |efforts: Vec<Effort>| -> HashMap<i64, String> {
        efforts
            .into_iter()
            .map(|effort| (effort.segment_id, effort.tz))
            .collect()
    };
    let (few, many) = (zones(efforts("500")), zones(efforts("20000 --athletes 9")));
    assert!(
        few.iter()
            .all(|(segment, tz)| many.get(segment).is_none_or(|other| other == tz))
    );
}

#[test]
fn different_seeds_make_different_efforts_of_the_same_athletes() {
    let ids = |seed: u64| -> HashSet<i64> {
        let mut args = args("efforts --rows 1000");
        args.seed = seed;
        let bytes = made_by(&args, Format::Jsonl).unwrap().0;
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
fn pairs_are_all_there_are_and_no_more() {
    for (line, all) in [
        ("clubs --clubs 7 --athletes 9 --rows", 63),
        ("follows --athletes 9 --rows", 72),
    ] {
        let pairs = pairs(&format!("{line} {all}"));
        assert_eq!(pairs.iter().collect::<HashSet<_>>().len(), all, "{line}");
        let error = made(&format!("{line} {}", all + 1), Format::Jsonl).unwrap_err();
        assert!(error.is::<Usage>(), "{error}");
        assert!(
            error
                .to_string()
                .contains(&format!("at most {all} distinct rows"))
        );
    }
    assert!(made("follows --athletes 1 --rows 1", Format::Jsonl).is_err());
    let members = counts(
        pairs("clubs --rows 20000")
            .into_iter()
            .map(|(club, _)| club),
    );
    assert!(members[0] > 500 && members.len() == 500, "{}", members[0]);
    let followers = counts(
        pairs("follows --rows 20000")
            .into_iter()
            .map(|(_, whom)| whom),
    );
    assert!(followers[0] > 50, "{}", followers[0]);
}

#[test]
fn a_rhythm_stays_within_its_time() {
    let span_ms = 28 * 24 * 3_600_000;
    for (from, until) in [
        (0, span_ms),
        (-5, 3),
        (1_234_567, 1_234_568),
        (0, span_ms * 2_000),
    ] {
        let rhythm = Rhythm::new(from, until);
        let mut last = from;
        for index in 0..1_000 {
            let at = rhythm.at(index, 1_000);
            assert!((from..until).contains(&at) && at >= last);
            last = at;
        }
    }
    let efforts = efforts("200 --from 2025-03-01T12:00:00.5Z --until 2025-03-01T12:00:01Z");
    let only = efforts
        .iter()
        .all(|effort| effort.started_at_us == 1_740_830_400_500_000);
    assert!(only, "{efforts:?}");
}
