use schemas::dead_letter::DeadLetter;
use schemas::source::Source;

use super::suppressed::{hash_person, may_mention};
use super::*;

fn listener(id: i64) -> Person {
    Person {
        kind: PersonKind::Listener,
        id,
    }
}

#[test]
fn a_hash_depends_on_key_and_kind() {
    let (a, b) = (
        hash_person(&[1; 32], listener(7)),
        hash_person(&[2; 32], listener(7)),
    );
    let athlete = Person {
        kind: PersonKind::Athlete,
        id: 7,
    };
    assert!(
        a != b && a != hash_person(&[1; 32], athlete) && a != hash_person(&[1; 32], listener(8))
    );
}

#[test]
fn finds_a_person_wherever_an_id_may_be() {
    let check = |source: &str, raw: &[u8], expected: bool| {
        let source = Source::ALL
            .into_iter()
            .find(|candidate| candidate.name() == source);
        let is_searched = |person: Person| person.id == 4711;
        assert_eq!(
            may_mention(source.unwrap(), raw, is_searched),
            expected,
            "{source:?} {raw:?}"
        );
    };
    check("plays", br#"{"listener_id": 4711, "track_id": 1}"#, true);
    check("plays", br#"{"listener_id": "4711"}"#, true);
    check("plays", br#"{"listener_id": 1, "track_id": 4711}"#, false);
    check("plays", br#"{"track_id": 4711, "at": "4711-01-01"}"#, false);
    // Envelopes, and unknown field names.
    check("plays", br#"{"after": {"listener_id": 4711}}"#, true);
    check("plays", br#"{"payload": "{\"listener_id\": 4711}"}"#, true);
    check("plays", br#"{"LISTENER_ID": 4711}"#, true);
    check("plays", br#"{"listener_id": 1, "at": [4711]}"#, true);
    check("plays", b"{\"listener_id\": 4711, ", true);
    check("plays", b"47110 14711", false);
    check("plays", b"x4711y", true);
    // A hyphen may be a sign or not; in a JSON number it is a sign.
    check("plays", b"user-4711", true);
    check("plays", br#"{"listener_id": "user-4711"}"#, true);
    check("plays", br#"{"listener_id": -4711}"#, false);
    // Other spellings. In the last one, parsers keep one of the two values.
    check("plays", br#"{"listener_id": 4711.0}"#, true);
    check("plays", br#"{"listener_id": 4.711e3}"#, true);
    check("plays", br#"{"listener_id": "\u0034711"}"#, true);
    check("plays", br#"{"listener\u005fid": "%34711"}"#, true);
    check("plays", br#"{"payload": "{\"id\": \"\\u0034711\"}"}"#, true);
    check("plays", br#"{"4711": 1}"#, true);
    check("plays", br#"{"listener_id": 4711, "listener_id": 1}"#, true);
    check("athletes", br#"{"id": 4711}"#, true);
    check(
        "follows",
        br#"{"follower_id": 1, "followed_id": 4711}"#,
        true,
    );
    check("applications", br#"{"id": 4711}"#, false);
    // Avro writes 4711 as 9422: ce 49.
    check("plays", &[0, 0, 0, 0, 9, 2, 0xce, 0x49, 1], true);
    check("plays", &[0, 0, 0, 0, 9, 2, 0xcf, 0x49, 1], false);
    // Avro without its framing.
    check("plays", &[2, 0xce, 0x49, 1], true);
}

#[test]
fn a_redacted_letter_keeps_its_origin() {
    let erasure = Erasure {
        number: 1,
        kind: PersonKind::Listener,
        person: hash_person(&[3; 32], listener(4711)),
        begun_at_ms: 0,
        by: String::new(),
        reason: String::new(),
        finished_at_ms: None,
        receipt: Value::Null,
    };
    let list = SuppressedPeople::new([3; 32], &[erasure]);
    let letter = |raw: &[u8]| DeadLetter {
        source: "plays".to_owned(),
        reason: "listener_id: 4711 is odd".to_owned(),
        origin: "f:1".to_owned(),
        at_ms: 5,
        raw: raw.to_vec(),
    };
    let mut mentioning = letter(b"4711,");
    assert!(list.redact(Source::Plays, &mut mentioning));
    assert_eq!(
        (mentioning.origin.as_str(), mentioning.raw.len()),
        ("f:1", 0)
    );
    assert!(!mentioning.reason.contains("4711"));
    let mut foreign = DeadLetter {
        source: "of another client".to_owned(),
        ..letter(b"4711,")
    };
    assert!(list.redact(Source::Plays, &mut foreign));
    let mut other = letter(b"4712,");
    assert!(!list.redact(Source::Plays, &mut other));
    assert_eq!(other, letter(b"4712,"));
}

#[test]
fn each_person_is_counted_once_per_item() {
    let mut people = SearchedPeople::new(PersonKind::Athlete, [7, 9, 11]);
    let raw = br#"{"follower_id": 7, "followed_id": 9, "other": [7, 7, 8]}"#;
    for _ in 0..2 {
        people.count_mentions(|matches| {
            may_mention_kind(Source::Follows, raw, PersonKind::Athlete, matches)
        });
    }
    people.count_mentions(|matches| {
        may_mention_kind(Source::Plays, b"7", PersonKind::Athlete, matches)
    });
    people.increment(11);
    people.increment(12);
    let list_counts = |people: &SearchedPeople| people.iter().collect::<Vec<_>>();
    assert_eq!(list_counts(&people), [(7, 2), (9, 2), (11, 1)]);
    assert_eq!(list_counts(&people.zeroed()), [(7, 0), (9, 0), (11, 0)]);
    let mut sum = people.zeroed();
    sum.add(&people);
    sum.add(&people);
    assert_eq!(list_counts(&sum), [(7, 4), (9, 4), (11, 2)]);
}
