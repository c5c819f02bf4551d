//! An athlete is erased and stays erased, despite the same lines, a replay, dead letters, a new
//! run, an old copy, and an app's own SQL. The rest equals a plain sort of all other rows.

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
use tests::expected_boards::{BoardQuery, ExpectedEntities};
use tests::process::{command, run, run_ok};
use tests::world::{NOW_MS, Served, World};
use tokio_util::sync::CancellationToken;

use super::board_cache::fill;
use super::erasure::{dead_letters, erase_all, files_with, findings, search_all};

/// The id of the erased athlete, which resembles no other number.
const ERASED: i64 = 7_316_171_926_443_017_251;
/// Another id without any bytes in common, also in a compressed log.
const OTHER: i64 = 4_850_092_177_336_041_189;
const OTHER_ATHLETES: i64 = 12;
const SEGMENTS: i64 = 3;
/// How long a run waits for the running speed layer.
const SPEED_WAIT_MS: u64 = 5_000;
const SOURCES: [Source; 2] = [Source::Efforts, Source::Authorizations];

const fn athlete(id: i64) -> Person {
    let kind = PersonKind::Athlete;
    Person { kind, id }
}

fn all_athletes() -> Vec<i64> {
    [ERASED, OTHER]
        .into_iter()
        .chain(1..=OTHER_ATHLETES)
        .collect()
}

/// Efforts of all athletes on each segment; the erased athlete is always first and the other one
/// second.
fn efforts(round: i64) -> Vec<String> {
    let mut lines = Vec::new();
    for (place, athlete) in (0..).zip(all_athletes()) {
        for segment in 1..=SEGMENTS {
            let id = round * 1_000 + segment * 100 + place;
            let effort = json!({
                "id": id, "segment_id": segment, "athlete_id": athlete, "activity_id": id * 10,
                "elapsed_time": 100 + place - 20 * i64::from(athlete == ERASED) - round,
                "started_at": format!("2026-02-{:02}T10:00:00Z", 1 + round),
            });
            lines.push(effort.to_string());
        }
    }
    lines
}

/// All other lines, by source.
fn other_lines() -> Vec<(Source, Vec<String>)> {
    let applications = (1..=2).map(|id| {
        let capacity = OTHER_ATHLETES + 2;
        json!({"id": id, "name": "Ride", "owner": 1, "athlete_capacity": capacity})
    });
    let lines_of = |line: fn(i64) -> Value| -> Vec<String> {
        all_athletes()
            .into_iter()
            .map(|id| line(id).to_string())
            .collect()
    };
    let connected = all_athletes().into_iter().enumerate().map(|(n, athlete)| {
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
            lines_of(|id| json!({"id": id, "gender": "F", "name": "A", "birth_year": 1990})),
        ),
        (
            Source::Clubs,
            lines_of(|id| json!({"club_id": 5, "athlete_id": id})),
        ),
        (
            Source::Follows,
            lines_of(
                |id| json!({"follower_id": if id == ERASED { OTHER } else { ERASED }, "followed_id": id}),
            ),
        ),
        (
            Source::Authorizations,
            connected.map(|line| line.to_string()).collect(),
        ),
    ]
}

/// The expected results of all other athletes' lines.
fn expected_state(rounds: i64) -> ExpectedEntities {
    let mut expected = ExpectedEntities::default();
    let efforts = (1..=rounds).map(|round| (Source::Efforts, efforts(round)));
    let lines = other_lines().into_iter().chain(efforts);
    for (source, lines) in lines.filter(|(source, _)| *source != Source::Applications) {
        for line in lines
            .iter()
            .filter(|line| !line.contains(&ERASED.to_string()))
        {
            assert!(expected.apply_line(source.name(), line), "{line}");
        }
    }
    expected
}

async fn catch_up(world: &World) {
    for source in SOURCES {
        world.catch_up_on(source).await;
    }
}

async fn run_batches(world: &World, request: &RunRequest) {
    for source in SOURCES {
        world.run_on(source, request).await.expect("a run");
    }
}

/// Ingests two invalid lines: one names the athlete and one names another.
async fn dead_letter_lines(world: &World) {
    let new_dead_letter = |source: Source, origin: &str, raw: String| DeadLetter {
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
        let dead_letters = [
            new_dead_letter(source, "f:1", format!("athlete={ERASED}")),
            new_dead_letter(source, "f:2", json!({(field): ERASED}).to_string()),
            new_dead_letter(source, "f:3", json!({(field): OTHER}).to_string()),
        ];
        log.ensure_topic(source.dead_letter_topic(), 1)
            .await
            .expect("a topic");
        let appended = append_dead_letters(log, source, &dead_letters, NOW_MS).await;
        appended.expect("appending");
    }
}

/// Rows that were counted and published on two days, more rows in live state only, and dead
/// letters.
async fn prepare(world: &World) {
    for (source, lines) in other_lines() {
        world.ingest_into(source, &lines).await;
    }
    world.ingest_into(Source::Efforts, &efforts(1)).await;
    catch_up(world).await;
    run_batches(world, &RunRequest::default()).await;
    world.clock.set_ms(NOW_MS + 86_400_000);
    world.ingest_into(Source::Efforts, &efforts(2)).await;
    catch_up(world).await;
    run_batches(world, &RunRequest::default()).await;
    world.ingest_into(Source::Efforts, &efforts(3)).await;
    catch_up(world).await;
    dead_letter_lines(world).await;
}

async fn erase(world: &World, request: &EraseRequest) -> Receipt {
    let mut receipts = erase_while_counting(world, &[athlete(ERASED)], request).await;
    receipts.pop().expect("a receipt")
}

/// Erases while the speed layer runs.
async fn erase_while_counting(
    world: &World,
    people: &[Person],
    request: &EraseRequest,
) -> Vec<Receipt> {
    let end = CancellationToken::new();
    let efforts = world.speed_of(Source::Efforts).await;
    let authorizations = world.speed_of(Source::Authorizations).await;
    let counting = async {
        let (counted_efforts, counted_authorizations) = tokio::join!(
            efforts.run(false, end.clone()),
            authorizations.run(false, end.clone())
        );
        counted_efforts.expect("counting efforts");
        counted_authorizations.expect("counting authorizations");
    };
    let erasing = async {
        let receipts = erase_all(world, people, request).await;
        end.cancel();
        receipts
    };
    tokio::join!(Box::pin(erasing), Box::pin(counting)).0
}

/// The places that contain the id of a person.
async fn list_places(world: &World, id: i64) -> Vec<String> {
    let findings = world.eraser().verify(&[athlete(id)]).await;
    let findings = findings.expect("a search").into_iter();
    let findings = findings.flat_map(|(_, findings)| findings);
    findings
        .map(|finding| format!("{} {}: {}", finding.place, finding.at, finding.found))
        .collect()
}

fn board_query(segment: i64, board: &str, window: &str) -> BoardQuery {
    BoardQuery {
        segment,
        board: board.to_owned(),
        window: window.to_owned(),
        date: date(2026, 2, 2),
        club: None,
        following: None,
    }
}

/// All boards equal those of the other athletes.
async fn check_others(served: &Served, expected_state: &ExpectedEntities) {
    let client = &served.client;
    for segment in 1..=SEGMENTS {
        for (board, window) in [("overall", "all"), ("gender:F", "all"), ("overall", "year")] {
            let query = board_query(segment, board, window);
            let in_club = BoardQuery {
                club: Some(5),
                ..query.clone()
            };
            for query in [query, in_club] {
                let text = query.query();
                let path = format!("/api/v1/boards/segments/{segment}?{text}&limit=100");
                let answer = client.fetch_json(&path).await;
                let expected = json!(expected_state.board(&query));
                assert_eq!(answer["entries"], expected, "{path}");
                assert_eq!(answer["provenance"]["complete"], true, "{path}: {answer}");
            }
        }
        let path = format!("/api/v1/segments/{segment}/counts");
        let counts = client.fetch_json(&path).await;
        let (efforts, athletes) = expected_state.counts(segment);
        assert_eq!(
            (&counts["efforts"], &counts["athletes"]),
            (&json!(efforts), &json!(athletes))
        );
    }
    let path = "/api/v1/boards/applications/1?limit=1";
    let answer = client.fetch_json(path).await;
    assert_eq!(answer["total"], expected_state.connected(1), "{answer}");
    let application = client.fetch_json("/api/v1/applications/1").await;
    let connected = &application["connected_athletes"];
    assert_eq!(*connected, expected_state.connected(1), "{application}");
    let path = format!("/api/v1/athletes/{ERASED}/achievements");
    let achieved = client.fetch_json(&path).await;
    assert_eq!(achieved["achievements"], json!([]), "{achieved}");
}

/// The athlete is in no place, and all others have their expected ranks.
async fn check_erased(world: &World, served: &Served, expected_state: &ExpectedEntities) {
    assert_eq!(list_places(world, ERASED).await, Vec::<String>::new());
    check_others(served, expected_state).await;
    world
        .stores
        .data_folder
        .truncate_wals()
        .await
        .expect("empty logs");
    assert_eq!(files_with(world.path(), ERASED), Vec::<String>::new());
}

/// A copy of all files of the archive.
async fn copy_archive(world: &World) -> Vec<(String, Bytes)> {
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

/// Ingests the same lines again: those of the athlete are ignored.
async fn ingest_again(world: &World) {
    let lines = other_lines()
        .into_iter()
        .chain([(Source::Efforts, efforts(3))]);
    for (source, lines) in lines {
        let ingested = world.ingest_into(source, &lines).await;
        let is_erased = |line: &&String| line.contains(&ERASED.to_string());
        let erased_count = lines.iter().filter(is_erased).count() as u64;
        assert_eq!(ingested.erased, erased_count, "{source}");
        let accepted_count = lines.len() as u64 - erased_count;
        assert_eq!(ingested.accepted, accepted_count, "{source}");
        assert_eq!(ingested.rejected, [], "{source}");
    }
}

async fn check_erasure(mut world: World) {
    world.batch_options.speed_wait_ms = SPEED_WAIT_MS;
    prepare(&world).await;
    let served = world.serve().await;
    let mut places_before = vec![
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
        places_before.push("cached boards");
    }
    let findings: BTreeSet<String> = list_places(&world, ERASED).await.into_iter().collect();
    for place in places_before {
        let is_found = findings.iter().any(|finding| finding.starts_with(place));
        assert!(is_found, "{place} is not among {findings:?}");
    }
    let copy = copy_archive(&world).await;
    let expected_state = expected_state(3);
    let receipt = erase(&world, &EraseRequest::default()).await;
    assert!(
        receipt.is_clean() && receipt.finished_at_ms.is_some(),
        "{receipt:#?}"
    );
    let text = serde_json::to_string(&receipt).expect("JSON");
    assert!(!text.contains(&ERASED.to_string()), "{text}");
    check_erased(&world, &served, &expected_state).await;
    assert!(!list_places(&world, OTHER).await.is_empty());
    // The erased athlete cannot connect again.
    let (status, answer) = connect(&served, ERASED).await;
    assert!(
        status == 409 && answer.contains("athlete-erased"),
        "{answer}"
    );

    // Everything again: a full run, the same lines, lost live state.
    let full = RunRequest {
        full: true,
        ..RunRequest::default()
    };
    run_batches(&world, &full).await;
    check_erased(&world, &served, &expected_state).await;
    ingest_again(&world).await;
    catch_up(&world).await;
    check_erased(&world, &served, &expected_state).await;
    world.delete_live_state();
    catch_up(&world).await;
    run_batches(&world, &full).await;
    check_erased(&world, &served, &expected_state).await;

    // Restores old files, and writes rows without the erasure list.
    for (path, bytes) in copy {
        world
            .stores
            .archive
            .put(&path, bytes)
            .await
            .expect("a file");
    }
    assert!(!list_places(&world, ERASED).await.is_empty());
    run_batches(&world, &full).await;
    check_erased(&world, &served, &expected_state).await;
    served.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_erased_athlete_stays_erased() {
    Box::pin(check_erasure(World::new().await)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_erased_athlete_stays_erased_on_servers() {
    Box::pin(check_erasure(World::on_servers().await)).await;
}

/// The erased athlete is not found by name, and does not keep others from being found.
async fn check_names(world: &World) {
    let entity_store = &*world.stores.entities;
    let names = (1..=5).map(|id| json!({"id": id, "name": format!("Lee {id}")}).to_string());
    let lines: Vec<String> = names.collect();
    world.ingest_into(Source::Athletes, &lines).await;
    let suppressions = Suppressions::new(Arc::clone(&world.stores.erasures));
    for id in [1, 2, 3] {
        let person = Person {
            kind: PersonKind::Athlete,
            id,
        };
        let started = suppressions
            .begin(person, &Attribution::default(), NOW_MS)
            .await;
        started.expect("an erasure");
    }
    for (limit, expected) in [(1, &[4][..]), (2, &[4, 5]), (9, &[4, 5])] {
        let findings = entity_store
            .find_names(NamedKind::Athlete, "LEE", limit)
            .await
            .expect("names");
        let ids: Vec<i64> = findings.into_iter().map(|(id, _)| id).collect();
        assert_eq!(ids, expected);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_erased_athlete_is_not_found_by_name() {
    check_names(&World::new().await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_erased_athlete_is_not_found_by_name_on_servers() {
    check_names(&World::on_servers().await).await;
}

/// The erasure resumes under the same number, and no other athlete's rank is ever wrong.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_interrupted_erasure_of_an_athlete_resumes() {
    let mut world = World::new().await;
    world.batch_options.speed_wait_ms = SPEED_WAIT_MS;
    prepare(&world).await;
    let served = world.serve().await;
    for wait_ms in [5, 60, 150, 300, 600, 1_000] {
        let request = EraseRequest::default();
        let work = Box::pin(erase(&world, &request));
        let result = tokio::time::timeout(Duration::from_millis(wait_ms), work).await;
        if let Ok(receipt) = result {
            assert!(receipt.is_clean(), "{receipt:#?}");
            break;
        }
    }
    let list = Suppressions::new(Arc::clone(&world.stores.erasures));
    let erasures = list.all().await.expect("erasures");
    let finished = erasures
        .iter()
        .filter(|erasure| erasure.finished_at_ms.is_some());
    let finished = finished.count() as u64;
    let receipt = erase(&world, &EraseRequest::default()).await;
    assert_eq!(receipt.number, 1 + finished);
    assert!(receipt.is_clean(), "{receipt:#?}");
    check_erased(&world, &served, &expected_state(3)).await;
    served.end().await;
}

/// Rows that another program writes are not shown, and disappear when their group is counted.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rows_that_an_app_writes_are_not_read() {
    let mut world = World::new().await;
    world.batch_options.speed_wait_ms = SPEED_WAIT_MS;
    prepare(&world).await;
    erase(&world, &EraseRequest::default()).await;
    // Another process, without the erasure list.
    let folder = stores::embedded::DataFolder::open(world.path()).expect("a folder");
    let unfiltered = folder.entities().await.expect("the rows");
    let mut groups = BTreeSet::new();
    for (source, lines) in [
        (Source::Efforts, efforts(4)),
        (
            Source::Authorizations,
            other_lines().pop().expect("lines").1,
        ),
    ] {
        let rows = lines
            .iter()
            .filter(|line| line.contains(&ERASED.to_string()));
        let rows = rows.map(|line| parse(source, line.as_bytes()).expect("a row"));
        let rows: Vec<_> = rows.collect();
        let applied = stores::entities::EntityWrite::apply(&unfiltered, &rows, NOW_MS).await;
        assert!(!applied.expect("applying").notifications.is_empty());
        groups.insert(source);
    }
    let before = list_places(&world, ERASED).await;
    assert!(
        before
            .iter()
            .any(|finding| finding.starts_with("canonical rows efforts")),
        "{before:?}"
    );
    let served = world.serve().await;
    // The speed layer publishes and processes the outbox.
    catch_up(&world).await;
    check_others(&served, &expected_state(3)).await;
    let after = list_places(&world, ERASED).await;
    assert!(
        !after
            .iter()
            .any(|finding| finding.starts_with("canonical rows efforts")),
        "{after:?}"
    );
    assert!(
        !after
            .iter()
            .any(|finding| finding.starts_with("canonical rows authorizations"))
    );
    let receipt = erase(&world, &EraseRequest::default()).await;
    assert!(receipt.number == 2 && receipt.is_clean(), "{receipt:#?}");
    check_erased(&world, &served, &expected_state(3)).await;
    served.end().await;
}

/// Each of several athletes has a receipt with their own findings; a listener with the same id is
/// another person.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn several_athletes_have_separate_receipts() {
    let mut world = World::new().await;
    world.batch_options.speed_wait_ms = SPEED_WAIT_MS;
    prepare(&world).await;
    let kind = PersonKind::Listener;
    let people = [
        athlete(ERASED),
        athlete(OTHER),
        Person { kind, id: ERASED },
        athlete(77),
    ];
    let expected = search_all(&world, &people).await;
    assert!(
        expected[0].len() > 5 && expected[1].len() > 5,
        "{expected:#?}"
    );
    assert_ne!(expected[0], expected[1], "one follows everybody");
    assert!(expected[2..].iter().all(Vec::is_empty), "{expected:#?}");
    let receipts = erase_while_counting(&world, &people, &EraseRequest::default()).await;
    for ((person, receipt), expected) in people.iter().zip(&receipts).zip(&expected) {
        assert_eq!(receipt.kind, person.kind);
        let findings = findings(receipt);
        for finding in expected {
            let place_and_detail = (&*finding.place, &*finding.at);
            let receipt_entry = findings
                .iter()
                .find(|(place, at, _)| (*place, *at) == place_and_detail);
            // During the erasure, its own notifications enter the log.
            let is_enough = receipt_entry.is_some_and(|(.., count)| *count >= finding.found);
            assert!(is_enough, "{finding:?} of {receipt:#?}");
        }
        let total: u64 = findings.iter().map(|(.., count)| count).sum();
        assert_eq!(total > 0, !expected.is_empty(), "{receipt:#?}");
    }
    let remaining = search_all(&world, &people).await;
    assert!(remaining.iter().all(Vec::is_empty), "{remaining:#?}");
}

/// Two concurrent erasures rewrite dead letters of sources without runs.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_concurrent_athlete_erasures_duplicate_no_dead_letter() {
    const SOURCES_OF_DEAD_LETTERS: [Source; 2] = [Source::Clubs, Source::Efforts];
    const DEAD_LETTERS: usize = 300;
    let world = World::new().await;
    let log = &*world.stores.log;
    for source in SOURCES_OF_DEAD_LETTERS {
        let topic = source.dead_letter_topic();
        log.ensure_topic(topic, 1).await.expect("a topic");
        let dead_letter = |n: usize| DeadLetter {
            source: source.name().to_owned(),
            reason: "a field is missing".to_owned(),
            origin: format!("f:{n}"),
            at_ms: NOW_MS,
            raw: format!(r#"{{"athlete_id":{}}}"#, [ERASED, OTHER, 3][n % 3]).into_bytes(),
        };
        let new: Vec<DeadLetter> = (0..DEAD_LETTERS).map(dead_letter).collect();
        let appended = append_dead_letters(log, source, &new, NOW_MS).await;
        appended.expect("appending");
    }
    let request = EraseRequest::default();
    let (first, second) = ([athlete(ERASED)], [athlete(OTHER)]);
    let (first, second) = tokio::join!(
        Box::pin(erase_all(&world, &first, &request)),
        Box::pin(erase_all(&world, &second, &request)),
    );
    assert!(!findings(&first[0]).is_empty() && !findings(&second[0]).is_empty());
    for source in SOURCES_OF_DEAD_LETTERS {
        let dead_letters = dead_letters(&world, source).await;
        let unredacted = dead_letters.iter().filter(|(_, raw)| !raw.is_empty());
        assert_eq!(
            (dead_letters.len(), unredacted.count()),
            (DEAD_LETTERS, DEAD_LETTERS / 3)
        );
    }
}

/// The origin of valid lines that were dead-lettered.
const LATE_ORIGIN: &str = "late.jsonl:";

/// Reprocesses the valid dead letters of a source and the markers that erasures left.
async fn reprocess_all(world: &World, source: Source) -> IntakeReport {
    let mut dead_letters = dead_letters(world, source).await;
    dead_letters.retain(|(origin, _)| origin.starts_with(LATE_ORIGIN));
    assert!(!dead_letters.is_empty(), "{source}");
    let lines = (1..).zip(dead_letters.iter().map(|(_, raw)| raw.as_slice()));
    let intake = world.intake(source).await;
    let (schemas, mut reprocessed) = (&*world.stores.schemas, ReprocessedIds::default());
    let checked = intake
        .check_dead_letters(lines, &mut reprocessed, schemas)
        .await;
    let ingested = intake.reprocess(checked.expect("checking it")).await;
    ingested.expect("reprocessing it")
}

/// Valid lines of the athlete, by source: ingesting them would bring the athlete back.
fn good_lines() -> Vec<(Source, Vec<String>)> {
    let lines_by_source = other_lines()
        .into_iter()
        .chain([(Source::Efforts, efforts(4))]);
    let of_erased = lines_by_source.map(|(source, mut lines)| {
        lines.retain(|line| line.contains(&ERASED.to_string()));
        (source, lines)
    });
    of_erased.filter(|(_, lines)| !lines.is_empty()).collect()
}

/// Stores them as dead letters, as if they had been rejected.
async fn dead_letter_good_lines(world: &World) {
    let log = &*world.stores.log;
    for (source, lines) in good_lines() {
        let topic = source.dead_letter_topic();
        log.ensure_topic(topic, 1).await.expect("a topic");
        let dead_letters = (1..).zip(lines).map(|(n, line)| DeadLetter {
            source: source.name().to_owned(),
            reason: "it was too late".to_owned(),
            origin: format!("{LATE_ORIGIN}{n}"),
            at_ms: NOW_MS,
            raw: line.into_bytes(),
        });
        let dead_letters: Vec<DeadLetter> = dead_letters.collect();
        let appended = append_dead_letters(log, source, &dead_letters, NOW_MS).await;
        appended.expect("appending");
    }
}

/// Neither markers in place of dead letters nor dead letters from a restored copy bring the athlete
/// back.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reprocessed_dead_letters_bring_no_athlete_back() {
    let mut world = World::new().await;
    world.batch_options.speed_wait_ms = SPEED_WAIT_MS;
    prepare(&world).await;
    dead_letter_good_lines(&world).await;
    let served = world.serve().await;
    let receipt = erase(&world, &EraseRequest::default()).await;
    assert!(receipt.is_clean(), "{receipt:#?}");
    for (source, _) in good_lines() {
        let ingested = reprocess_all(&world, source).await;
        assert_eq!((ingested.accepted, ingested.erased), (0, 0), "{source}");
    }
    catch_up(&world).await;
    check_erased(&world, &served, &expected_state(3)).await;

    dead_letter_good_lines(&world).await;
    for (source, lines) in good_lines() {
        let ingested = reprocess_all(&world, source).await;
        let erased_count = lines.len() as u64;
        assert_eq!(
            (ingested.accepted, ingested.erased),
            (0, erased_count),
            "{source}"
        );
    }
    for source in SOURCES {
        let notification = Group {
            key: 1,
            member: ERASED,
        };
        let notification = notification.notification(source);
        let intake = world.intake(source).await;
        let lines = std::iter::once((1, notification.as_slice()));
        let checked = intake.check_notifications(lines, &*world.stores.schemas);
        let checked = checked.await.expect("checking it");
        let ingested = intake.reprocess(checked).await.expect("reprocessing it");
        assert_eq!((ingested.accepted, ingested.erased), (0, 1), "{source}");
    }
    catch_up(&world).await;
    run_batches(&world, &RunRequest::default()).await;
    check_others(&served, &expected_state(3)).await;
    let findings = list_places(&world, ERASED).await;
    let only_letters = findings
        .iter()
        .all(|finding| finding.starts_with("dead letters"));
    assert!(only_letters && !findings.is_empty(), "{findings:?}");
    let receipt = erase(&world, &EraseRequest::default()).await;
    assert!(receipt.number == 2 && receipt.is_clean(), "{receipt:#?}");
    check_erased(&world, &served, &expected_state(3)).await;
    served.end().await;
}

/// Requests a connection of an athlete to an application.
async fn connect(served: &Served, id: i64) -> (u16, String) {
    let client = served.client.clone();
    let body = json!({"athlete_id": id}).to_string();
    let path = "/api/v1/applications/1/authorizations";
    let response = tokio::task::spawn_blocking(move || client.post(path, body.as_bytes()));
    response.await.expect("a response")
}

/// Exactly one other athlete can use the capacity that the erasure freed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_freed_capacity_is_available_once() {
    let mut world = World::new().await;
    world.batch_options.speed_wait_ms = SPEED_WAIT_MS;
    prepare(&world).await;
    let served = world.serve().await;
    let capacity = OTHER_ATHLETES + 2;
    let (status, answer) = connect(&served, 901).await;
    assert!(
        status == 403 && answer.contains("capacity-exceeded"),
        "{answer}"
    );
    let receipt = erase(&world, &EraseRequest::default()).await;
    assert!(receipt.is_clean(), "{receipt:#?}");
    let application = served.client.fetch_json("/api/v1/applications/1").await;
    assert_eq!(
        application["connected_athletes"],
        capacity - 1,
        "{application}"
    );
    let (status, answer) = connect(&served, ERASED).await;
    assert_eq!(status, 409, "{answer}");
    let (status, answer) = connect(&served, 902).await;
    assert_eq!(status, 201, "{answer}");
    let (status, answer) = connect(&served, 903).await;
    assert!(
        status == 403 && answer.contains("capacity-exceeded"),
        "{answer}"
    );
    catch_up(&world).await;
    run_batches(&world, &RunRequest::default()).await;
    let application = served.client.fetch_json("/api/v1/applications/1").await;
    assert_eq!(application["connected_athletes"], capacity, "{application}");
    let path = "/api/v1/boards/applications/1?limit=1";
    let board = served.client.fetch_json(path).await;
    assert_eq!(board["total"], capacity, "{board}");
    assert_eq!(list_places(&world, ERASED).await, Vec::<String>::new());
    served.end().await;
}

/// The command finds the athlete, erases with processes that are killed, and then finds nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_command_erases_an_athlete() {
    let folder = tempfile::tempdir().expect("a folder");
    let data = folder.path();
    let input = data.join("lines.jsonl");
    let of_efforts = [(Source::Efforts, efforts(1)), (Source::Efforts, efforts(2))];
    for (source, lines) in other_lines().into_iter().chain(of_efforts) {
        std::fs::write(&input, lines.join("\n")).expect("a file");
        run_ok(
            data,
            &["ingest", source.name(), &input.display().to_string()],
        );
    }
    std::fs::remove_file(&input).expect("the file");
    let catch_up = || {
        for source in SOURCES {
            run_ok(
                data,
                &["speed", "--source", source.name(), "--until-caught-up"],
            );
        }
    };
    catch_up();
    run_ok(data, &["batch", "run"]);
    let id = ERASED.to_string();
    let verify = || run(data, &["erase", "--athlete", &id, "--verify"]);
    assert_eq!(verify().status.code(), Some(3));
    for wait_ms in [150, 400, 900] {
        let mut erasing = command(data, &["erase", "--athlete", &id]);
        let mut erasing = erasing.spawn().expect("a process");
        tokio::time::sleep(Duration::from_millis(wait_ms)).await;
        // The process may have completed.
        drop(erasing.kill());
        erasing.wait().expect("the end of the process");
    }
    // Data that waits for the speed layer remains, and the receipt says so.
    drop(run(data, &["erase", "--athlete", &id]));
    catch_up();
    let args = ["erase", "--athlete", &id, "--by", "desk", "--json"];
    let receipts: Value = serde_json::from_str(&run_ok(data, &args)).expect("JSON");
    assert!(receipts[0]["finished_at_ms"].is_i64(), "{receipts}");
    let output = verify();
    assert!(output.status.success(), "{output:?}");
    let list = run_ok(data, &["erase", "--list"]);
    assert!(list.contains("athlete") && !list.contains(&id), "{list}");
    assert_eq!(files_with(data, ERASED), Vec::<String>::new());
}
