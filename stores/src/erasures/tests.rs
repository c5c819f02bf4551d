use std::sync::Arc;

use schemas::dead_letter::DeadLetter;
use schemas::source::Source;

use super::suppressed::{hash, holds};
use super::*;

fn listener(id: i64) -> Person {
    Person {
        kind: Kind::Listener,
        id,
    }
}

async fn store() -> (tempfile::TempDir, Arc<dyn Erasures>) {
    let folder = tempfile::tempdir().unwrap();
    let data = crate::embedded::DataFolder::open(folder.path()).unwrap();
    let erasures = data.erasures().await.unwrap();
    (folder, Arc::new(erasures))
}

#[tokio::test]
async fn who_is_erased_is_suppressed_from_then_on() {
    let (_folder, store) = store().await;
    let (here, elsewhere) = (
        Suppressions::new(Arc::clone(&store)),
        Suppressions::new(store),
    );
    assert!(!elsewhere.now().await.unwrap().has(listener(7)));
    let asked = Asked {
        by: "desk".to_owned(),
        reason: "ticket 5".to_owned(),
    };
    let erasure = here.begin(listener(7), &asked, 1_000).await.unwrap();
    assert_eq!((erasure.number, erasure.finished_at_ms), (1, None));
    let now = elsewhere.now().await.unwrap();
    assert_eq!((now.newest(), now.newest_listener()), (1, 1));
    assert!(now.has_listener(7) && !now.has_listener(8));
    let athlete = Person {
        kind: Kind::Athlete,
        id: 7,
    };
    assert!(!now.has(athlete));

    // What was begun is gone on with; what is done is done once more under another number.
    let again = elsewhere.begin(listener(7), &asked, 2_000).await.unwrap();
    assert_eq!(again, erasure);
    let receipt = serde_json::json!({"places": []});
    here.note(1, Some(3_000), &receipt).await.unwrap();
    let all = elsewhere.all().await.unwrap();
    assert_eq!(
        (all.len(), all[0].finished_at_ms, &all[0].receipt),
        (1, Some(3_000), &receipt)
    );
    assert_eq!(
        here.begin(listener(7), &asked, 4_000).await.unwrap().number,
        2
    );
    assert_eq!(here.begin(athlete, &asked, 5_000).await.unwrap().number, 3);
    let now = elsewhere.now().await.unwrap();
    assert_eq!((now.newest(), now.newest_listener()), (3, 2));
    assert!(here.note(9, None, &receipt).await.is_err());
}

#[tokio::test]
async fn numbers_are_given_once() {
    let (_folder, store) = store().await;
    let begin = |id: i64| {
        let list = Suppressions::new(Arc::clone(&store));
        async move {
            list.begin(listener(id), &Asked::default(), 0)
                .await
                .unwrap()
        }
    };
    let begun = futures::future::join_all((0..20).map(begin)).await;
    let numbers: std::collections::BTreeSet<u64> = begun.iter().map(|one| one.number).collect();
    assert_eq!(numbers, (1..=20).collect());
}

#[test]
fn a_hash_is_of_its_key_and_kind() {
    let (a, b) = (hash(&[1; 32], listener(7)), hash(&[2; 32], listener(7)));
    let athlete = Person {
        kind: Kind::Athlete,
        id: 7,
    };
    assert!(a != b && a != hash(&[1; 32], athlete) && a != hash(&[1; 32], listener(8)));
}

#[test]
fn a_person_is_found_where_one_may_stand() {
    let check = |source: &str, raw: &[u8], found: bool| {
        let source = Source::ALL.into_iter().find(|one| one.name() == source);
        let is_wanted = |person: Person| person.id == 4711;
        assert_eq!(
            holds(source.unwrap(), raw, is_wanted),
            found,
            "{source:?} {raw:?}"
        );
    };
    check("plays", br#"{"listener_id": 4711, "track_id": 1}"#, true);
    check("plays", br#"{"listener_id": "4711"}"#, true);
    check("plays", br#"{"listener_id": 1, "track_id": 4711}"#, false);
    check("plays", br#"{"track_id": 4711, "at": "4711-01-01"}"#, false);
    // Envelopes, and fields that are called otherwise.
    check("plays", br#"{"after": {"listener_id": 4711}}"#, true);
    check("plays", br#"{"payload": "{\"listener_id\": 4711}"}"#, true);
    check("plays", br#"{"LISTENER_ID": 4711}"#, true);
    check("plays", br#"{"listener_id": 1, "at": [4711]}"#, true);
    check("plays", b"{\"listener_id\": 4711, ", true);
    check("plays", b"47110 14711", false);
    check("plays", b"x4711y", true);
    // A hyphen may be a sign or not; in a JSON number it is one.
    check("plays", b"user-4711", true);
    check("plays", br#"{"listener_id": "user-4711"}"#, true);
    check("plays", br#"{"listener_id": -4711}"#, false);
    // Other ways to write it, of which the last keeps one of two values.
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
        kind: Kind::Listener,
        person: hash(&[3; 32], listener(4711)),
        begun_at_ms: 0,
        by: String::new(),
        reason: String::new(),
        finished_at_ms: None,
        receipt: serde_json::Value::Null,
    };
    let list = Suppressed::of([3; 32], &[erasure]);
    let letter = |raw: &[u8]| DeadLetter {
        source: "plays".to_owned(),
        reason: "listener_id: 4711 is odd".to_owned(),
        origin: "f:1".to_owned(),
        at_ms: 5,
        raw: raw.to_vec(),
    };
    let mut held = letter(b"4711,");
    assert!(list.redact(Source::Plays, &mut held));
    assert_eq!((held.origin.as_str(), held.raw.len()), ("f:1", 0));
    assert!(!held.reason.contains("4711"));
    let mut stranger = DeadLetter {
        source: "of another client".to_owned(),
        ..letter(b"4711,")
    };
    assert!(list.redact(Source::Plays, &mut stranger));
    let mut other = letter(b"4712,");
    assert!(!list.redact(Source::Plays, &mut other));
    assert_eq!(other, letter(b"4712,"));
}

#[test]
fn each_who_is_sought_is_found_once_in_a_thing() {
    let mut found = Sought::of(Kind::Athlete, [7, 9, 11]);
    let raw = br#"{"follower_id": 7, "followed_id": 9, "other": [7, 7, 8]}"#;
    for _ in 0..2 {
        found.once(|has| mentions(Source::Follows, raw, Kind::Athlete, has));
    }
    found.once(|has| mentions(Source::Plays, b"7", Kind::Athlete, has));
    found.note(11);
    found.note(12);
    let all = |found: &Sought| found.iter().collect::<Vec<_>>();
    assert_eq!(all(&found), [(7, 2), (9, 2), (11, 1)]);
    assert_eq!(all(&found.none()), [(7, 0), (9, 0), (11, 0)]);
    let mut sum = found.none();
    sum.add(&found);
    sum.add(&found);
    assert_eq!(all(&sum), [(7, 4), (9, 4), (11, 2)]);
}
