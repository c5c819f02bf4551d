//! An athlete is erased, and nothing brings them back: not the same lines, a replay, dead letters, a new run, an old copy, or
//! what an app writes by its own SQL. What is left is what a plain sort of all others' rows gives.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use batch::{EraseRequest, Receipt, RunRequest};
use bytes::Bytes;
use jiff::civil::date;
use schemas::dead_letter::DeadLetter;
use schemas::entities::{Group, parse};
use schemas::source::Source;
use serde_json::{Value, json};
use stores::erasures::{Attribution, Person, PersonKind, Suppressions};
use stores::intake::{IntakeReport, ReprocessedIds, append_dead_letters};
use stores::names::NamedKind;
use tests::process::{command, done, run};
use tests::standings::{Asked, Truth};
use tests::world::{NOW_MS, Served, World};
use tokio_util::sync::CancellationToken;

use super::board_cache::fill;
use super::erasure::{erase_all, files_with, found, letters, searched};

/// The athlete who is erased, an id that nothing else looks like.
const GONE: i64 = 7_316_171_926_443_017_251;
/// Another, who has nothing in common with that one, also where a log is packed.
const STAYS: i64 = 4_850_092_177_336_041_189;
const OTHERS: i64 = 12;
const SEGMENTS: i64 = 3;
/// How long a run waits for the speed layer, which is there.
const SPEED_WAIT_MS: u64 = 5_000;
const SOURCES: [Source; 2] = [Source::Efforts, Source::Authorizations];

const fn athlete(id: i64) -> Person {
    let kind = PersonKind::Athlete;
    Person { kind, id }
}

fn everybody() -> Vec<i64> {
    [GONE, STAYS].into_iter().chain(1..=OTHERS).collect()
}

/// An effort of an athlete on each segment; the one who is erased is always first, the one who stays second.
fn efforts(round: i64) -> Vec<String> {
    let mut lines = Vec::new();
    for (place, athlete) in (0..).zip(everybody()) {
        for segment in 1..=SEGMENTS {
            let id = round * 1_000 + segment * 100 + place;
            let effort = json!({
                "id": id, "segment_id": segment, "athlete_id": athlete, "activity_id": id * 10,
                "elapsed_time": 100 + place - 20 * i64::from(athlete == GONE) - round,
                "started_at": format!("2026-02-{:02}T10:00:00Z", 1 + round),
            });
            lines.push(effort.to_string());
        }
    }
    lines
}

/// All other lines, by source.
fn others() -> Vec<(Source, Vec<String>)> {
    let applications = (1..=2).map(|id| {
        let room = OTHERS + 2;
        json!({"id": id, "name": "Ride", "owner": 1, "athlete_capacity": room})
    });
    let of = |line: fn(i64) -> Value| -> Vec<String> {
        everybody()
            .into_iter()
            .map(|id| line(id).to_string())
            .collect()
    };
    let connected = everybody().into_iter().enumerate().map(|(n, athlete)| {
        json!({
            "id": 1 + n, "application_id": 1, "athlete_id": athlete,
            "created_at": "2026-01-01T00:00:00Z",
        })
    });
    vec![
        (
            Source::Applications,
            applications.map(|line| line.to_string()).collect(),
        ),
        (
            Source::Athletes,
            of(|id| json!({"id": id, "gender": "F", "name": "A", "birth_year": 1990})),
        ),
        (
            Source::Clubs,
            of(|id| json!({"club_id": 5, "athlete_id": id})),
        ),
        (
            Source::Follows,
            of(
                |id| json!({"follower_id": if id == GONE { STAYS } else { GONE }, "followed_id": id}),
            ),
        ),
        (
            Source::Authorizations,
            connected.map(|line| line.to_string()).collect(),
        ),
    ]
}

/// What others' lines give.
fn truth(rounds: i64) -> Truth {
    let mut truth = Truth::default();
    let efforts = (1..=rounds).map(|round| (Source::Efforts, efforts(round)));
    let lines = others().into_iter().chain(efforts);
    for (source, lines) in lines.filter(|(source, _)| *source != Source::Applications) {
        for line in lines
            .iter()
            .filter(|line| !line.contains(&GONE.to_string()))
        {
            assert!(truth.take(source.name(), line), "{line}");
        }
    }
    truth
}

async fn caught_up(world: &World) {
    for source in SOURCES {
        world.catch_up_on(source).await;
    }
}

async fn published(world: &World, request: &RunRequest) {
    for source in SOURCES {
        world.run_on(source, request).await.expect("a run");
    }
}

/// A line that can't be taken and names the athlete, and one that names somebody else.
async fn set_aside(world: &World) {
    let letter = |source: Source, origin: &str, raw: String| DeadLetter {
        source: source.name().to_owned(),
        reason: "not JSON".to_owned(),
        origin: origin.to_owned(),
        at_ms: NOW_MS,
        raw: raw.into_bytes(),
    };
    let log = &*world.stores.log;
    for (source, field) in [
        (Source::Efforts, "athlete_id"),
        (Source::Athletes, "id"),
        (Source::Follows, "followed_id"),
    ] {
        let letters = [
            letter(source, "f:1", format!("athlete={GONE}")),
            letter(source, "f:2", json!({(field): GONE}).to_string()),
            letter(source, "f:3", json!({(field): STAYS}).to_string()),
        ];
        log.ensure_topic(source.dead_letter_topic(), 1)
            .await
            .expect("a topic");
        let appended = append_dead_letters(log, source, &letters, NOW_MS).await;
        appended.expect("appending");
    }
}

/// Rows that were counted and published, on two days, with more that only live state has, and dead letters.
async fn settled(world: &World) {
    for (source, lines) in others() {
        world.ingest_into(source, &lines).await;
    }
    world.ingest_into(Source::Efforts, &efforts(1)).await;
    caught_up(world).await;
    published(world, &RunRequest::default()).await;
    world.clock.set_ms(NOW_MS + 86_400_000);
    world.ingest_into(Source::Efforts, &efforts(2)).await;
    caught_up(world).await;
    published(world, &RunRequest::default()).await;
    world.ingest_into(Source::Efforts, &efforts(3)).await;
    caught_up(world).await;
    set_aside(world).await;
}

async fn erased(world: &World, request: &EraseRequest) -> Receipt {
    let mut erased = all_erased(world, &[athlete(GONE)], request).await;
    erased.pop().expect("a receipt")
}

/// Erases while the speed layer counts.
async fn all_erased(world: &World, people: &[Person], request: &EraseRequest) -> Vec<Receipt> {
    let end = CancellationToken::new();
    let efforts = world.speed_of(Source::Efforts).await;
    let authorizations = world.speed_of(Source::Authorizations).await;
    let counting = async {
        let (one, other) = tokio::join!(
            efforts.run(false, end.clone()),
            authorizations.run(false, end.clone())
        );
        one.expect("counting efforts");
        other.expect("counting authorizations");
    };
    let erasing = async {
        let erased = erase_all(world, people, request).await;
        end.cancel();
        erased
    };
    tokio::join!(Box::pin(erasing), Box::pin(counting)).0
}

/// Where somebody is found now.
async fn places(world: &World, id: i64) -> Vec<String> {
    let found = world.eraser().verify(&[athlete(id)]).await;
    let found = found.expect("a search").into_iter();
    let places = found.flat_map(|(_, found)| found);
    places
        .map(|one| format!("{} {}: {}", one.place, one.at, one.found))
        .collect()
}

fn asked(segment: i64, board: &str, window: &str) -> Asked {
    Asked {
        segment,
        board: board.to_owned(),
        window: window.to_owned(),
        date: date(2026, 2, 2),
        club: None,
        following: None,
    }
}

/// All boards are those of the others.
async fn others_stand(served: &Served, truth: &Truth) {
    for segment in 1..=SEGMENTS {
        for (board, window) in [("overall", "all"), ("gender:F", "all"), ("overall", "year")] {
            let asked = asked(segment, board, window);
            let in_club = Asked {
                club: Some(5),
                ..asked.clone()
            };
            for asked in [asked, in_club] {
                let path = format!(
                    "/api/v1/boards/segments/{segment}?{}&limit=100",
                    asked.query()
                );
                let answer = served.client.ask(&path).await;
                assert_eq!(answer["entries"], json!(truth.board(&asked)), "{path}");
                assert_eq!(answer["provenance"]["complete"], true, "{path}: {answer}");
            }
        }
        let path = format!("/api/v1/segments/{segment}/counts");
        let counts = served.client.ask(&path).await;
        let (efforts, athletes) = truth.counts(segment);
        assert_eq!(
            (&counts["efforts"], &counts["athletes"]),
            (&json!(efforts), &json!(athletes))
        );
    }
    let answer = served
        .client
        .ask("/api/v1/boards/applications/1?limit=1")
        .await;
    assert_eq!(answer["total"], truth.connected(1), "{answer}");
    let one = served.client.ask("/api/v1/applications/1").await;
    assert_eq!(one["connected_athletes"], truth.connected(1), "{one}");
    let path = format!("/api/v1/athletes/{GONE}/achievements");
    let achieved = served.client.ask(&path).await;
    assert_eq!(achieved["achievements"], json!([]), "{achieved}");
}

/// The athlete is nowhere, and everybody else stands where they should.
async fn gone(world: &World, served: &Served, truth: &Truth) {
    assert_eq!(places(world, GONE).await, Vec::<String>::new());
    others_stand(served, truth).await;
    world
        .stores
        .data_folder
        .truncate_wals()
        .await
        .expect("empty logs");
    assert_eq!(files_with(world.path(), GONE), Vec::<String>::new());
}

/// All files of the archive, as they are now.
async fn copied(world: &World) -> Vec<(String, Bytes)> {
    let archive = &world.stores.archive;
    let mut copy = Vec::new();
    for folder in ["snapshots", "results"] {
        for path in archive.list(folder).await.expect("the archive") {
            let bytes = archive.get(&path).await.expect("a file").expect("a file");
            copy.push((path, bytes));
        }
    }
    copy
}

/// The same lines once more: those of the athlete are left out.
async fn again(world: &World) {
    let lines = others().into_iter().chain([(Source::Efforts, efforts(3))]);
    for (source, lines) in lines {
        let taken = world.ingest_into(source, &lines).await;
        let of_gone = lines.iter().filter(|line| line.contains(&GONE.to_string()));
        let of_gone = of_gone.count() as u64;
        assert_eq!(taken.erased, of_gone, "{source}");
        assert_eq!(
            taken.accepted + taken.erased,
            lines.len() as u64,
            "{source}"
        );
        assert_eq!(taken.rejected, [], "{source}");
    }
}

async fn scene(mut world: World) {
    world.batch_options.speed_wait_ms = SPEED_WAIT_MS;
    settled(&world).await;
    let served = world.serve().await;
    let mut held = vec![
        "canonical rows",
        "log",
        "live state",
        "views",
        "snapshots",
        "results",
        "achievements",
        "dead letters",
    ];
    if world.stores.live.board_cache().is_some() {
        fill(&world, &served.client, "/api/v1/boards/segments/1?limit=5").await;
        held.push("cached boards");
    }
    let found: BTreeSet<String> = places(&world, GONE).await.into_iter().collect();
    for place in held {
        let is_found = found.iter().any(|one| one.starts_with(place));
        assert!(is_found, "{place} is not among {found:?}");
    }
    let copy = copied(&world).await;
    let truth = truth(3);
    let receipt = erased(&world, &EraseRequest::default()).await;
    assert!(
        receipt.is_clean() && receipt.finished_at_ms.is_some(),
        "{receipt:#?}"
    );
    let text = serde_json::to_string(&receipt).expect("JSON");
    assert!(!text.contains(&GONE.to_string()), "{text}");
    gone(&world, &served, &truth).await;
    assert!(!places(&world, STAYS).await.is_empty());
    // The place that got free is anybody's but the athlete's.
    let (status, answer) = connect(&served, GONE).await;
    assert!(
        status == 409 && answer.contains("athlete-erased"),
        "{answer}"
    );

    // Everything once more: a full run, the same lines, lost live state.
    let full = RunRequest {
        full: true,
        ..RunRequest::default()
    };
    published(&world, &full).await;
    gone(&world, &served, &truth).await;
    again(&world).await;
    caught_up(&world).await;
    gone(&world, &served, &truth).await;
    world.lose_live();
    caught_up(&world).await;
    published(&world, &full).await;
    gone(&world, &served, &truth).await;

    // Old files are put back, and rows by somebody who does not know of the list.
    for (path, bytes) in copy {
        world
            .stores
            .archive
            .put(&path, bytes)
            .await
            .expect("a file");
    }
    assert!(!places(&world, GONE).await.is_empty());
    published(&world, &full).await;
    gone(&world, &served, &truth).await;
    served.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_brings_an_athlete_back() {
    Box::pin(scene(World::new().await)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_brings_an_athlete_back_on_servers() {
    Box::pin(scene(World::on_servers().await)).await;
}

/// Cut off anywhere, it goes on under the same number when it is run again; nobody else's place is ever wrong.
/// Who is erased is not found by name, and keeps nobody else from it.
async fn names_are_found(world: &World) {
    let canon = &*world.stores.entities;
    let names = (1..=5).map(|id| json!({"id": id, "name": format!("Lee {id}")}).to_string());
    let lines: Vec<String> = names.collect();
    world.ingest_into(Source::Athletes, &lines).await;
    let erased = Suppressions::new(Arc::clone(&world.stores.erasures));
    for id in [1, 2, 3] {
        let person = Person {
            kind: PersonKind::Athlete,
            id,
        };
        let begun = erased.begin(person, &Attribution::default(), NOW_MS).await;
        begun.expect("an erasure");
    }
    for (limit, expected) in [(1, &[4][..]), (2, &[4, 5]), (9, &[4, 5])] {
        let found = canon
            .find_names(NamedKind::Athlete, "LEE", limit)
            .await
            .expect("names");
        let found: Vec<i64> = found.into_iter().map(|(id, _)| id).collect();
        assert_eq!(found, expected);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_is_erased_is_not_found_by_name() {
    names_are_found(&World::new().await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_is_erased_is_not_found_by_name_on_servers() {
    names_are_found(&World::on_servers().await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_athletes_erasure_that_is_cut_off_is_gone_on_with() {
    let mut world = World::new().await;
    world.batch_options.speed_wait_ms = SPEED_WAIT_MS;
    settled(&world).await;
    let served = world.serve().await;
    for wait_ms in [5, 60, 150, 300, 600, 1_000] {
        let request = EraseRequest::default();
        let work = Box::pin(erased(&world, &request));
        let cut = tokio::time::timeout(Duration::from_millis(wait_ms), work).await;
        if let Ok(receipt) = cut {
            assert!(receipt.is_clean(), "{receipt:#?}");
            break;
        }
    }
    let list = Suppressions::new(Arc::clone(&world.stores.erasures));
    let all = list.all().await.expect("erasures");
    let finished = all.iter().filter(|one| one.finished_at_ms.is_some());
    let finished = finished.count() as u64;
    let receipt = erased(&world, &EraseRequest::default()).await;
    assert_eq!(receipt.number, 1 + finished);
    assert!(receipt.is_clean(), "{receipt:#?}");
    gone(&world, &served, &truth(3)).await;
    served.end().await;
}

/// What somebody else wrote into the tables is not shown, and goes when its group is counted.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rows_that_an_app_writes_are_not_read() {
    let mut world = World::new().await;
    world.batch_options.speed_wait_ms = SPEED_WAIT_MS;
    settled(&world).await;
    erased(&world, &EraseRequest::default()).await;
    // Another process, which has no list.
    let folder = stores::embedded::DataFolder::open(world.path()).expect("a folder");
    let plain = folder.entities().await.expect("the rows");
    let mut groups = BTreeSet::new();
    for (source, lines) in [
        (Source::Efforts, efforts(4)),
        (Source::Authorizations, others().pop().expect("lines").1),
    ] {
        let rows = lines.iter().filter(|line| line.contains(&GONE.to_string()));
        let rows = rows.map(|line| parse(source, line.as_bytes()).expect("a row"));
        let rows: Vec<_> = rows.collect();
        let applied = stores::entities::EntityWrite::apply(&plain, &rows, NOW_MS).await;
        assert!(!applied.expect("applying").notifications.is_empty());
        groups.insert(source);
    }
    let before = places(&world, GONE).await;
    assert!(
        before
            .iter()
            .any(|one| one.starts_with("canonical rows efforts")),
        "{before:?}"
    );
    let served = world.serve().await;
    // The speed layer tells what waits, and counts it.
    caught_up(&world).await;
    others_stand(&served, &truth(3)).await;
    let after = places(&world, GONE).await;
    assert!(
        !after
            .iter()
            .any(|one| one.starts_with("canonical rows efforts")),
        "{after:?}"
    );
    assert!(
        !after
            .iter()
            .any(|one| one.starts_with("canonical rows authorizations"))
    );
    let receipt = erased(&world, &EraseRequest::default()).await;
    assert!(receipt.number == 2 && receipt.is_clean(), "{receipt:#?}");
    gone(&world, &served, &truth(3)).await;
    served.end().await;
}

/// Each of several has a receipt with what was found of them alone; a listener of the same id is somebody else.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn several_athletes_are_erased_each_by_themselves() {
    let mut world = World::new().await;
    world.batch_options.speed_wait_ms = SPEED_WAIT_MS;
    settled(&world).await;
    let kind = PersonKind::Listener;
    let people = [
        athlete(GONE),
        athlete(STAYS),
        Person { kind, id: GONE },
        athlete(77),
    ];
    let before = searched(&world, &people).await;
    assert!(before[0].len() > 5 && before[1].len() > 5, "{before:#?}");
    assert_ne!(before[0], before[1], "one follows everybody");
    assert!(before[2..].iter().all(Vec::is_empty), "{before:#?}");
    let receipts = all_erased(&world, &people, &EraseRequest::default()).await;
    for ((person, receipt), before) in people.iter().zip(&receipts).zip(&before) {
        assert_eq!(receipt.kind, person.kind);
        let found = found(receipt);
        for one in before {
            let wanted = (&*one.place, &*one.at);
            let there = found.iter().find(|(place, at, _)| (*place, *at) == wanted);
            // While it is erased what tells of that comes into the log.
            let is_enough = there.is_some_and(|(.., found)| *found >= one.found);
            assert!(is_enough, "{one:?} of {receipt:#?}");
        }
        let had: u64 = found.iter().map(|(.., found)| found).sum();
        assert_eq!(had > 0, !before.is_empty(), "{receipt:#?}");
    }
    let left = searched(&world, &people).await;
    assert!(left.iter().all(Vec::is_empty), "{left:#?}");
}

/// Two who write letters once more at once, of sources that have no runs, or none yet.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_erasures_of_athletes_at_once_double_no_letter() {
    const OF: [Source; 2] = [Source::Clubs, Source::Efforts];
    const LETTERS: usize = 300;
    let world = World::new().await;
    let log = &*world.stores.log;
    for source in OF {
        let topic = source.dead_letter_topic();
        log.ensure_topic(topic, 1).await.expect("a topic");
        let of = |n: usize| DeadLetter {
            source: source.name().to_owned(),
            reason: "a field is missing".to_owned(),
            origin: format!("f:{n}"),
            at_ms: NOW_MS,
            raw: format!(r#"{{"athlete_id":{}}}"#, [GONE, STAYS, 3][n % 3]).into_bytes(),
        };
        let new: Vec<DeadLetter> = (0..LETTERS).map(of).collect();
        let appended = append_dead_letters(log, source, &new, NOW_MS).await;
        appended.expect("appending");
    }
    let request = EraseRequest::default();
    let (one, other) = ([athlete(GONE)], [athlete(STAYS)]);
    let (one, other) = tokio::join!(
        Box::pin(erase_all(&world, &one, &request)),
        Box::pin(erase_all(&world, &other, &request)),
    );
    assert!(!found(&one[0]).is_empty() && !found(&other[0]).is_empty());
    for source in OF {
        let letters = letters(&world, source).await;
        let left = letters.iter().filter(|(_, raw)| !raw.is_empty());
        assert_eq!((letters.len(), left.count()), (LETTERS, LETTERS / 3));
    }
}

/// Where good lines came from that were set aside all the same.
const LATE: &str = "late.jsonl:";

/// Takes the good letters of a source again, and the marks that are left of them.
async fn replayed(world: &World, source: Source) -> IntakeReport {
    let mut letters = letters(world, source).await;
    letters.retain(|(origin, _)| origin.starts_with(LATE));
    assert!(!letters.is_empty(), "{source}");
    let lines = (1..).zip(letters.iter().map(|(_, raw)| raw.as_slice()));
    let intake = world.intake(source).await;
    let (schemas, mut retaken) = (&*world.stores.schemas, ReprocessedIds::default());
    let again = intake
        .check_dead_letters(lines, &mut retaken, schemas)
        .await;
    let taken = intake.reprocess(again.expect("looking at it")).await;
    taken.expect("taking it again")
}

/// Good lines of the athlete, by source: with them the athlete would be back.
fn good_lines() -> Vec<(Source, Vec<String>)> {
    let all = others().into_iter().chain([(Source::Efforts, efforts(4))]);
    let of_gone = all.map(|(source, mut lines)| {
        lines.retain(|line| line.contains(&GONE.to_string()));
        (source, lines)
    });
    of_gone.filter(|(_, lines)| !lines.is_empty()).collect()
}

/// Sets them aside, as if they could not be taken.
async fn set_good_aside(world: &World) {
    let log = &*world.stores.log;
    for (source, lines) in good_lines() {
        let topic = source.dead_letter_topic();
        log.ensure_topic(topic, 1).await.expect("a topic");
        let letters = (1..).zip(lines).map(|(n, line)| DeadLetter {
            source: source.name().to_owned(),
            reason: "it was too late".to_owned(),
            origin: format!("{LATE}{n}"),
            at_ms: NOW_MS,
            raw: line.into_bytes(),
        });
        let letters: Vec<DeadLetter> = letters.collect();
        let appended = append_dead_letters(log, source, &letters, NOW_MS).await;
        appended.expect("appending");
    }
}

/// Neither the marks that are left of dead letters, nor letters that come back from a copy, bring anything back.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dead_letters_that_are_taken_again_bring_no_athlete_back() {
    let mut world = World::new().await;
    world.batch_options.speed_wait_ms = SPEED_WAIT_MS;
    settled(&world).await;
    set_good_aside(&world).await;
    let served = world.serve().await;
    let receipt = erased(&world, &EraseRequest::default()).await;
    assert!(receipt.is_clean(), "{receipt:#?}");
    for (source, _) in good_lines() {
        let taken = replayed(&world, source).await;
        assert_eq!((taken.accepted, taken.erased), (0, 0), "{source}");
    }
    caught_up(&world).await;
    gone(&world, &served, &truth(3)).await;

    set_good_aside(&world).await;
    for (source, lines) in good_lines() {
        let taken = replayed(&world, source).await;
        let erased = lines.len() as u64;
        assert_eq!((taken.accepted, taken.erased), (0, erased), "{source}");
    }
    for source in SOURCES {
        let told = Group {
            key: 1,
            member: GONE,
        };
        let told = told.notification(source);
        let intake = world.intake(source).await;
        let again = std::iter::once((1, told.as_slice()));
        let again = intake.check_notifications(again, &*world.stores.schemas);
        let again = again.await.expect("looking at it");
        let taken = intake.reprocess(again).await.expect("taking it again");
        assert_eq!((taken.accepted, taken.erased), (0, 1), "{source}");
    }
    caught_up(&world).await;
    published(&world, &RunRequest::default()).await;
    others_stand(&served, &truth(3)).await;
    let left = places(&world, GONE).await;
    let only_letters = left.iter().all(|one| one.starts_with("dead letters"));
    assert!(only_letters && !left.is_empty(), "{left:?}");
    let receipt = erased(&world, &EraseRequest::default()).await;
    assert!(receipt.number == 2 && receipt.is_clean(), "{receipt:#?}");
    gone(&world, &served, &truth(3)).await;
    served.end().await;
}

/// Asks for a place in an application for an athlete.
async fn connect(served: &Served, id: i64) -> (u16, String) {
    let client = served.client.clone();
    let body = json!({"athlete_id": id}).to_string();
    let path = "/api/v1/applications/1/authorizations";
    let asked = tokio::task::spawn_blocking(move || client.post(path, body.as_bytes()));
    asked.await.expect("asking")
}

/// The place of who was erased is the next one's, and there is one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_next_one_has_the_place_that_got_free() {
    let mut world = World::new().await;
    world.batch_options.speed_wait_ms = SPEED_WAIT_MS;
    settled(&world).await;
    let served = world.serve().await;
    let room = OTHERS + 2;
    let (status, answer) = connect(&served, 901).await;
    assert!(
        status == 403 && answer.contains("capacity-exceeded"),
        "{answer}"
    );
    let receipt = erased(&world, &EraseRequest::default()).await;
    assert!(receipt.is_clean(), "{receipt:#?}");
    let one = served.client.ask("/api/v1/applications/1").await;
    assert_eq!(one["connected_athletes"], room - 1, "{one}");
    let (status, answer) = connect(&served, GONE).await;
    assert_eq!(status, 409, "{answer}");
    let (status, answer) = connect(&served, 902).await;
    assert_eq!(status, 201, "{answer}");
    let (status, answer) = connect(&served, 903).await;
    assert!(
        status == 403 && answer.contains("capacity-exceeded"),
        "{answer}"
    );
    caught_up(&world).await;
    published(&world, &RunRequest::default()).await;
    let one = served.client.ask("/api/v1/applications/1").await;
    assert_eq!(one["connected_athletes"], room, "{one}");
    let path = "/api/v1/boards/applications/1?limit=1";
    let board = served.client.ask(path).await;
    assert_eq!(board["total"], room, "{board}");
    assert_eq!(places(&world, GONE).await, Vec::<String>::new());
    served.end().await;
}

/// By the command: found, erased by processes that are killed, and then found no more.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_command_erases_an_athlete() {
    let folder = tempfile::tempdir().expect("a folder");
    let data = folder.path();
    let input = data.join("lines.jsonl");
    let of_efforts = [(Source::Efforts, efforts(1)), (Source::Efforts, efforts(2))];
    for (source, lines) in others().into_iter().chain(of_efforts) {
        std::fs::write(&input, lines.join("\n")).expect("a file");
        done(
            data,
            &["ingest", source.name(), &input.display().to_string()],
        );
    }
    std::fs::remove_file(&input).expect("the file");
    let caught_up = || {
        for source in SOURCES {
            done(
                data,
                &["speed", "--source", source.name(), "--until-caught-up"],
            );
        }
    };
    caught_up();
    done(data, &["batch", "run"]);
    let id = GONE.to_string();
    let verify = || run(data, &["erase", "--athlete", &id, "--verify"]);
    assert_eq!(verify().status.code(), Some(3));
    for wait_ms in [150, 400, 900] {
        let mut erasing = command(data, &["erase", "--athlete", &id]);
        let mut erasing = erasing.spawn().expect("a process");
        tokio::time::sleep(Duration::from_millis(wait_ms)).await;
        // It may have come to its end by now.
        drop(erasing.kill());
        erasing.wait().expect("its end");
    }
    // What waits for the speed layer is left, and the receipt says so.
    drop(run(data, &["erase", "--athlete", &id]));
    caught_up();
    let args = ["erase", "--athlete", &id, "--by", "desk", "--json"];
    let receipts: Value = serde_json::from_str(&done(data, &args)).expect("JSON");
    assert!(receipts[0]["finished_at_ms"].is_i64(), "{receipts}");
    let searched = verify();
    assert!(searched.status.success(), "{searched:?}");
    let all = done(data, &["erase", "--list"]);
    assert!(all.contains("athlete") && !all.contains(&id), "{all}");
    assert_eq!(files_with(data, GONE), Vec::<String>::new());
}
