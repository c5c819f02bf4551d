//! Tests of decoded rows and of defaults.

#[path = "refused_tests.rs"]
mod refused;

use serde_json::{Map, json};

use super::*;
use crate::entities::{Follow, Membership};

const EFFORT: &str = r#"{"id":1,"segment_id":2,"athlete_id":3,"activity_id":4,"elapsed_time":61,"started_at":"2013-05-06T23:30:00Z"}"#;
const ATHLETE: &str = r#"{"id":1}"#;
const MEMBERSHIP: &str = r#"{"club_id":1,"athlete_id":2}"#;
const FOLLOW: &str = r#"{"follower_id":1,"followed_id":2}"#;
const AUTHORIZATION: &str =
    r#"{"id":1,"application_id":2,"athlete_id":3,"created_at":"1970-01-01T00:00:01Z"}"#;
const APPLICATION: &str = r#"{"id":1,"name":"a","owner":"o"}"#;

/// All entity sources with a line of only the required fields, and their optional fields.
const LINES: [(Source, &str, &str); 6] = [
    (Source::Efforts, EFFORT, "tz visibility deleted version"),
    (
        Source::Athletes,
        ATHLETE,
        "name gender birth_year weight_kg country disqualified deleted version",
    ),
    (Source::Clubs, MEMBERSHIP, "deleted version"),
    (Source::Follows, FOLLOW, "deleted version"),
    (Source::Authorizations, AUTHORIZATION, "revoked_at version"),
    (
        Source::Applications,
        APPLICATION,
        "athlete_capacity version",
    ),
];

fn fields(line: &str) -> Map<String, Value> {
    serde_json::from_str(line).unwrap()
}

/// Returns the line with one field set to a JSON value.
fn with(line: &str, field: &str, value: &str) -> String {
    let mut rest = fields(line);
    rest.remove(field);
    let rest = serde_json::to_string(&rest).unwrap();
    let comma = if rest == "{}" { "" } else { "," };
    rest.replacen('{', &format!("{{\"{field}\":{value}{comma}"), 1)
}

fn check(source: Source, line: &str, expected: Entity) {
    assert_eq!(parse(source, line.as_bytes()), Ok(expected), "{line}");
}

fn reason(source: Source, line: &str) -> String {
    match parse(source, line.as_bytes()) {
        Ok(entity) => panic!("{line}\n  was accepted as {entity:?}"),
        Err(reason) => reason,
    }
}

fn check_reason(source: Source, line: &str, words: &[&str]) -> String {
    let reason = reason(source, line);
    for word in words {
        assert!(
            reason.contains(word),
            "{line}\n  gives {reason:?}\n  without {word:?}"
        );
    }
    reason
}

fn effort() -> Effort {
    Effort {
        id: 1,
        segment_id: 2,
        athlete_id: 3,
        activity_id: 4,
        elapsed_time_s: 61,
        started_at_us: 1_367_883_000_000_000,
        tz: "UTC".to_owned(),
        is_hidden: false,
        is_deleted: false,
        version: 0,
    }
}

fn athlete() -> Athlete {
    Athlete {
        id: 1,
        name: None,
        gender: None,
        birth_year: None,
        weight_kg: None,
        country: None,
        is_disqualified: false,
        is_deleted: false,
        version: 0,
    }
}

fn application() -> Application {
    Application {
        id: 1,
        name: "a".to_owned(),
        owner: json!("o"),
        athlete_capacity: 1,
        version: 0,
    }
}

/// Returns the entity of a line with only the required fields.
fn plain(source: Source) -> Entity {
    match source {
        Source::Efforts => Entity::Effort(effort()),
        Source::Athletes => Entity::Athlete(athlete()),
        Source::Clubs => Entity::Membership(Membership {
            club_id: 1,
            athlete_id: 2,
            is_deleted: false,
            version: 0,
        }),
        Source::Follows => Entity::Follow(Follow {
            follower_id: 1,
            followed_id: 2,
            is_deleted: false,
            version: 0,
        }),
        Source::Authorizations => Entity::Authorization(Authorization {
            id: 1,
            application_id: 2,
            athlete_id: 3,
            created_at_us: 1_000_000,
            revoked_at_us: None,
            version: 0,
        }),
        Source::Applications => Entity::Application(application()),
        Source::Plays => panic!("plays are no entities"),
    }
}

#[test]
fn absent_and_null_fields_take_their_defaults() {
    for (source, line, optional) in LINES {
        check(source, line, plain(source));
        check(source, &format!("\u{feff} {line}\r"), plain(source));
        check(
            source,
            &with(line, "unknown", r#"{"deep":[1,"id"]}"#),
            plain(source),
        );
        for field in optional.split(' ') {
            check(source, &with(line, field, "null"), plain(source));
        }
    }
}

#[test]
fn decodes_all_fields_of_an_effort() {
    check(
        Source::Efforts,
        r#"{"version":-7,"deleted":true,"visibility":"only_me","tz":"Europe/Berlin",
            "started_at":"1969-12-31T23:59:59.9999999+01:00","elapsed_time":1000000000,
            "activity_id":9223372036854775807,"athlete_id":0,"segment_id":-9223372036854775808,"id":-1}"#,
        Entity::Effort(Effort {
            id: -1,
            segment_id: i64::MIN,
            athlete_id: 0,
            activity_id: i64::MAX,
            elapsed_time_s: 1_000_000_000,
            started_at_us: -3_600_000_001,
            tz: "Europe/Berlin".to_owned(),
            is_hidden: true,
            is_deleted: true,
            version: -7,
        }),
    );
}

#[test]
fn decodes_all_fields_of_people() {
    check(
        Source::Athletes,
        r#"{"id":5,"name":"Zo\u00eb \"Z\"","gender":"F","birth_year":1984,"weight_kg":58.5,
            "country":"NL","disqualified":true,"deleted":true,"version":9223372036854775807}"#,
        Entity::Athlete(Athlete {
            id: 5,
            name: Some("Zoë \"Z\"".to_owned()),
            gender: Some(Gender::F),
            birth_year: Some(1984),
            weight_kg: Some(58.5),
            country: Some("NL".to_owned()),
            is_disqualified: true,
            is_deleted: true,
            version: i64::MAX,
        }),
    );
    check(
        Source::Clubs,
        r#"{"club_id":8,"athlete_id":5,"deleted":true,"version":2}"#,
        Entity::Membership(Membership {
            club_id: 8,
            athlete_id: 5,
            is_deleted: true,
            version: 2,
        }),
    );
    check(
        Source::Follows,
        r#"{"follower_id":8,"followed_id":5,"deleted":true,"version":2}"#,
        Entity::Follow(Follow {
            follower_id: 8,
            followed_id: 5,
            is_deleted: true,
            version: 2,
        }),
    );
}

#[test]
fn decodes_all_fields_of_applications() {
    check(
        Source::Authorizations,
        r#"{"id":8,"application_id":5,"athlete_id":6,"created_at":"1970-01-01T01:00:00+01:00",
            "revoked_at":"1969-01-01T00:00:00Z","version":2}"#,
        Entity::Authorization(Authorization {
            id: 8,
            application_id: 5,
            athlete_id: 6,
            created_at_us: 0,
            revoked_at_us: Some(-31_536_000_000_000),
            version: 2,
        }),
    );
    check(
        Source::Applications,
        r#"{"id":8,"name":"","owner":17,"athlete_capacity":9007199254740991,"version":2}"#,
        Entity::Application(Application {
            id: 8,
            name: String::new(),
            owner: json!(17),
            athlete_capacity: 9_007_199_254_740_991,
            version: 2,
        }),
    );
}

fn athlete_with(set: impl FnOnce(&mut Athlete)) -> Entity {
    let mut athlete = athlete();
    set(&mut athlete);
    Entity::Athlete(athlete)
}

fn application_with(set: impl FnOnce(&mut Application)) -> Entity {
    let mut application = application();
    set(&mut application);
    Entity::Application(application)
}

#[test]
fn accepts_boundary_values_of_athletes() {
    for (gender, letter) in [(Gender::F, "F"), (Gender::M, "M"), (Gender::X, "X")] {
        assert_eq!(gender.letter(), letter);
        let line = with(ATHLETE, "gender", &json!(letter).to_string());
        let expected = athlete_with(|athlete| athlete.gender = Some(gender));
        check(Source::Athletes, &line, expected);
    }
    for year in [1, 9999] {
        let line = with(ATHLETE, "birth_year", &year.to_string());
        let expected = athlete_with(|athlete| athlete.birth_year = Some(year));
        check(Source::Athletes, &line, expected);
    }
    for (text, weight_kg) in [
        ("70", 70.0),
        ("1000", 1000.0),
        ("1e3", 1000.0),
        ("0.1", 0.1),
        ("54.999", 54.999),
        ("54.99999999999999", 55.0_f64.next_down()),
        ("94.99999999999999", 95.0_f64.next_down()),
        ("114.99999999999999", 115.0_f64.next_down()),
    ] {
        let line = with(ATHLETE, "weight_kg", text);
        let expected = athlete_with(|athlete| athlete.weight_kg = Some(weight_kg));
        check(Source::Athletes, &line, expected);
    }
}

proptest::proptest! {
    #[test]
    fn weights_round_trip_exactly(weight_kg in f64::MIN_POSITIVE..=1000.0) {
        let line = with(ATHLETE, "weight_kg", &json!(weight_kg).to_string());
        let expected = athlete_with(|athlete| athlete.weight_kg = Some(weight_kg));
        check(Source::Athletes, &line, expected);
    }
}

#[test]
fn accepts_string_and_integer_owners() {
    for owner in [
        json!(""),
        json!("é"),
        json!(0),
        json!(i64::MIN),
        json!(u64::MAX),
    ] {
        let line = with(APPLICATION, "owner", &owner.to_string());
        let expected = application_with(|application| application.owner = owner);
        check(Source::Applications, &line, expected);
    }
    let longest = "é".repeat(NAME_BYTES_MAX / 2);
    let line = with(APPLICATION, "name", &json!(longest).to_string());
    let expected = application_with(|application| application.name = longest);
    check(Source::Applications, &line, expected);
    let line = with(APPLICATION, "athlete_capacity", "0");
    let expected = application_with(|application| application.athlete_capacity = 0);
    check(Source::Applications, &line, expected);
}

#[test]
fn a_deletion_requires_all_fields() {
    let line = with(EFFORT, "deleted", "true");
    check(
        Source::Efforts,
        &line,
        Entity::Effort(Effort {
            is_deleted: true,
            ..effort()
        }),
    );
    check_reason(
        Source::Efforts,
        r#"{"id":1,"deleted":true}"#,
        &["the required field segment_id is missing"],
    );
}

#[test]
fn zones_are_iana_names() {
    for (alias, name) in [
        ("UTC", "UTC"),
        ("utc", "UTC"),
        ("europe/BERLIN", "Europe/Berlin"),
        ("Asia/Calcutta", "Asia/Calcutta"),
        ("Etc/GMT+5", "Etc/GMT+5"),
    ] {
        let tz = name.to_owned();
        check(
            Source::Efforts,
            &with(EFFORT, "tz", &json!(alias).to_string()),
            Entity::Effort(Effort { tz, ..effort() }),
        );
    }
    for other in [
        "",
        " ",
        "+02:00",
        "local",
        "Etc/Unknown",
        "Mars/Olympus",
        "EST5EDT,M3.2.0,M11.1.0",
        "UTC0",
        ":Europe/Berlin",
        "../../etc/passwd",
        "Europe/Berlin ",
        "Europe/Berlin\0",
    ] {
        assert_eq!(
            reason(
                Source::Efforts,
                &with(EFFORT, "tz", &json!(other).to_string())
            ),
            format!("tz: {other:?} is not an IANA time zone such as \"Europe/Berlin\""),
        );
    }
}

/// An authorization is revoked for any time, including one in the far future.
#[test]
fn accepts_any_revocation_time() {
    let revoked = |at: &str| {
        let line = format!(
            r#"{{"id":1,"application_id":2,"athlete_id":3,"created_at":"2024-01-01T00:00:00Z","revoked_at":"{at}"}}"#
        );
        parse(Source::Authorizations, line.as_bytes()).map(|row| match row {
            Entity::Authorization(row) => row.revoked_at_us,
            other => panic!("{other:?}"),
        })
    };
    let first = Ok(Some(-9_214_560_000_000_000));
    let last = Ok(Some(9_214_646_399_000_000));
    for at in [
        "2262-01-01T00:00:00Z",
        "9999-12-31T23:59:59Z",
        "2500-06-01T00:00:00.5+02:00",
    ] {
        assert_eq!(revoked(at), last, "{at}");
    }
    for at in ["0000-01-01T00:00:00Z", "1677-12-31T23:59:59Z"] {
        assert_eq!(revoked(at), first, "{at}");
    }
    for at in [
        "9999-13-01T00:00:00Z",
        "9999-12-31",
        "12500-01-01T00:00:00Z",
        "9999-12-31T23:59:59",
    ] {
        let reason = revoked(at).expect_err(at);
        assert!(reason.starts_with("revoked_at: "), "{reason}");
    }
}
