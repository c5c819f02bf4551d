//! A listener is erased and stays erased, despite the log, a replay, dead letters, an old copy of
//! the archive, and a worker that did not know.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use arrow::array::{BinaryArray, Int64Array};
use batch::{EraseRequest, Finding, Receipt, RunRequest};
use schemas::dead_letter::DeadLetter;
use schemas::source::Source;
use serde_json::{Value, json};
use stores::erasures::{Person, PersonKind, Suppressions};
use stores::intake::append_dead_letters;
use stores::log::FetchLimit;
use stores::views::NewRows;
use tests::process::{command, run, run_ok};
use tests::world::{NOW_MS, Served, World};
use tokio_util::sync::CancellationToken;

use super::restore::{scan_view, write_rows};

/// The id of the erased listener, which resembles no other number.
const ERASED: i64 = 7_316_171_926_443_017_251;
const OTHER: i64 = 7_316_171_926_443_017_252;

fn play(event: usize, listener: Option<i64>) -> String {
    let fields = json!({
        "track_id": 1 + event % 3, "owner_id": 7 + event % 2, "listener_id": listener, "country": "DE",
        "at": format!("2026-02-{:02}T11:00:00Z", 1 + event % 20),
    });
    tests::plays::play(format!("e{event}"), fields)
}

/// Plays of both listeners and of anonymous ones.
fn plays(from: usize, count: usize) -> Vec<String> {
    let listener_of = |event| [Some(ERASED), Some(OTHER), None][event % 3];
    (from..from + count)
        .map(|event| play(event, listener_of(event)))
        .collect()
}

const fn listener(id: i64) -> Person {
    let kind = PersonKind::Listener;
    Person { kind, id }
}

async fn erase(world: &World, request: &EraseRequest) -> Receipt {
    let mut erased = erase_all(world, &[listener(ERASED)], request).await;
    erased.pop().expect("a receipt")
}

/// Erases people with one request.
pub(crate) async fn erase_all(
    world: &World,
    people: &[Person],
    request: &EraseRequest,
) -> Vec<Receipt> {
    let (eraser, stop) = (world.eraser(), CancellationToken::new());
    let erased = Box::pin(eraser.erase(people, request, &(), &stop)).await;
    erased.expect("an erasure")
}

/// The places that contain the id of a person.
async fn places_with(world: &World, id: i64) -> Vec<String> {
    let findings = world
        .eraser()
        .verify(&[listener(id)])
        .await
        .expect("a search");
    let places = findings.into_iter().flat_map(|(_, findings)| findings);
    places
        .map(|finding| format!("{}: {}", finding.place, finding.found))
        .collect()
}

async fn fetch_stats(served: &Served, path: &str) -> Value {
    let (client, path) = (served.client.clone(), format!("/api/v1/stats/plays/{path}"));
    let answered = tokio::task::spawn_blocking(move || client.get_json(&path));
    answered.await.expect("an answer")
}

/// Totals of owners and tracks, which must not change.
async fn owner_and_track_totals(served: &Served) -> Vec<Value> {
    let mut totals = Vec::new();
    for filter in [
        "owner_id=7",
        "owner_id=8",
        "track_id=1",
        "track_id=2&country=DE",
    ] {
        let answer = fetch_stats(served, &format!("total?{filter}&period=all")).await;
        totals.push(answer["count"].clone());
    }
    totals
}

async fn listener_total(served: &Served, id: i64) -> i64 {
    let path = format!("total?owner_id=7&listener_id={id}&period=all");
    let answer = fetch_stats(served, &path).await;
    answer["count"].as_i64().expect("a count")
}

/// The dead letters of a source: origin and remaining raw bytes.
pub(crate) async fn dead_letters(world: &World, source: Source) -> Vec<(String, Vec<u8>)> {
    let (log, topic) = (&world.stores.log, source.dead_letter_topic());
    let mut dead_letters = Vec::new();
    let spans = log.spans(topic).await.expect("the log");
    for (partition, span) in (0..).zip(spans) {
        let mut next = span.start;
        while next < span.end {
            let limit = FetchLimit {
                records: 10_000,
                bytes: 1 << 24,
            };
            let fetched = log.fetch(topic, partition, next, limit).await;
            let fetched = fetched.expect("dead letters");
            next = fetched.next_offset;
            for value in fetched.records.values.iter().flatten() {
                let dead_letter: DeadLetter = serde_json::from_slice(value).expect("a dead letter");
                dead_letters.push((dead_letter.origin, dead_letter.raw));
            }
        }
    }
    dead_letters.sort_unstable();
    dead_letters
}

/// The findings of a receipt; checks that nothing is left.
pub(crate) fn findings(receipt: &Receipt) -> Vec<(&str, &str, u64)> {
    assert!(
        receipt.is_clean() && receipt.finished_at_ms.is_some(),
        "{receipt:#?}"
    );
    let places = receipt.places.iter();
    places
        .map(|receipt_entry| {
            (
                &*receipt_entry.place,
                &*receipt_entry.at,
                receipt_entry.found,
            )
        })
        .collect()
}

/// Searches for several people at once, and returns the findings of separate searches.
pub(crate) async fn search_all(world: &World, people: &[Person]) -> Vec<Vec<Finding>> {
    let eraser = world.eraser();
    let together = eraser.verify(people).await.expect("a search");
    for (person, together) in people.iter().zip(&together) {
        let alone = eraser.verify(&[*person]).await.expect("a search");
        assert_eq!(alone, std::slice::from_ref(together));
    }
    together.into_iter().map(|(_, findings)| findings).collect()
}

/// Files that contain the id in digits, or in the encodings of keys, the log, Parquet or SQLite
/// columns.
pub(crate) fn files_with(folder: &Path, id: i64) -> Vec<String> {
    let key = (id.cast_unsigned() ^ (1 << 63)).to_be_bytes();
    let forms = [
        id.to_string().into_bytes(),
        key.to_vec(),
        id.to_le_bytes().to_vec(),
        id.to_be_bytes().to_vec(),
    ];
    let mut files = Vec::new();
    for entry in std::fs::read_dir(folder).expect("a folder") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            files.extend(files_with(&path, id));
            continue;
        }
        let Ok(bytes) = std::fs::read(&path) else {
            continue;
        };
        let has = |form: &Vec<u8>| bytes.windows(form.len()).any(|window| window == &form[..]);
        if forms.iter().any(has) {
            files.push(path.display().to_string());
        }
    }
    files
}

/// Ingests two invalid lines: one names the listener and one does not.
async fn dead_letter_lines(world: &World) {
    let new_dead_letter = |origin: &str, raw: String| DeadLetter {
        source: "plays".to_owned(),
        reason: "not JSON".to_owned(),
        origin: origin.to_owned(),
        at_ms: NOW_MS,
        raw: raw.into_bytes(),
    };
    let dead_letters = [
        new_dead_letter("f:1", format!("listener_id={ERASED}")),
        new_dead_letter("f:2", play(900, Some(ERASED))),
        new_dead_letter("f:3", play(901, Some(OTHER))),
        new_dead_letter("f:4", "nobody".to_owned()),
    ];
    let appended =
        append_dead_letters(&*world.stores.log, Source::Plays, &dead_letters, NOW_MS).await;
    appended.expect("appending");
}

/// Plays that were counted, archived and published, more plays in live state only, a backfill, and
/// dead letters.
async fn prepare(world: &World) {
    world.ingest(&plays(0, 90)).await;
    world.catch_up().await;
    world.run(&RunRequest::default()).await.expect("a run");
    world.backfill(&plays(300, 30)).await;
    world.ingest(&plays(90, 30)).await;
    world.catch_up().await;
    world.run(&RunRequest::default()).await.expect("a run");
    world.ingest(&plays(120, 30)).await;
    world.catch_up().await;
    dead_letter_lines(world).await;
}

/// A copy of all files of the archive.
async fn copy_archive(world: &World) -> Vec<(String, bytes::Bytes)> {
    let archive = &world.stores.archive;
    let mut copy = Vec::new();
    for path in archive.list("archive/plays").await.expect("the archive") {
        let bytes = archive.get(&path).await.expect("a file").expect("a file");
        copy.push((path, bytes));
    }
    copy
}

async fn check_erasure(world: World) {
    prepare(&world).await;
    let served = world.serve().await;
    let totals = owner_and_track_totals(&served).await;
    assert!(listener_total(&served, ERASED).await > 0);
    let findings = places_with(&world, ERASED).await;
    for place in [
        "log",
        "live state",
        "views",
        "archive",
        "results",
        "dead letters",
    ] {
        let is_found = findings.iter().any(|finding| finding.starts_with(place));
        assert!(is_found, "{place} is not among {findings:?}");
    }
    let others = places_with(&world, OTHER).await;
    let copy = copy_archive(&world).await;
    if world.namespace().is_none() {
        assert!(!files_with(world.path(), ERASED).is_empty());
    }

    let receipt = erase(&world, &EraseRequest::default()).await;
    assert!(
        receipt.is_clean() && receipt.finished_at_ms.is_some(),
        "{receipt:#?}"
    );
    assert!(
        receipt
            .places
            .iter()
            .filter(|place| place.found > 0)
            .count()
            >= 6
    );
    assert!(
        !serde_json::to_string(&receipt)
            .expect("JSON")
            .contains(&ERASED.to_string())
    );
    check_erased(&world, &served, &totals).await;
    assert!(!places_with(&world, OTHER).await.is_empty(), "{others:?}");
    assert!(listener_total(&served, OTHER).await > 0);

    // Reads everything again from the beginning: lines, dead letters, lost live state.
    run_full(&world).await;
    check_erased(&world, &served, &totals).await;
    world.ingest(&plays(0, 150)).await;
    world
        .append_raw(0, &[play(999, Some(ERASED)).as_bytes()])
        .await;
    world.delete_live_state();
    world.catch_up().await;
    assert_eq!(listener_total(&served, ERASED).await, 0);
    let receipt = erase(&world, &EraseRequest::default()).await;
    assert!(receipt.number == 2 && receipt.is_clean(), "{receipt:#?}");
    let current_totals = owner_and_track_totals(&served).await;
    check_erased(&world, &served, &current_totals).await;

    // The archive is restored from an earlier copy.
    for (path, bytes) in &copy {
        world
            .stores
            .archive
            .put(path, bytes.clone())
            .await
            .expect("a file");
    }
    run_full(&world).await;
    check_erased(&world, &served, &current_totals).await;
    served.end().await;
}

async fn run_full(world: &World) {
    let request = RunRequest {
        full: true,
        ..RunRequest::default()
    };
    world.run(&request).await.expect("a run");
}

/// The listener is in no place, and nothing else has changed.
async fn check_erased(world: &World, served: &Served, totals: &[Value]) {
    assert_eq!(places_with(world, ERASED).await, Vec::<String>::new());
    assert_eq!(listener_total(served, ERASED).await, 0);
    assert_eq!(owner_and_track_totals(served).await, totals);
    world
        .stores
        .data_folder
        .truncate_wals()
        .await
        .expect("empty logs");
    assert_eq!(files_with(world.path(), ERASED), Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_erased_listener_stays_erased() {
    check_erasure(World::new().await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_erased_listener_stays_erased_on_servers() {
    check_erasure(World::on_servers().await).await;
}

/// An erasure that is interrupted at any point resumes under the same number.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_interrupted_erasure_resumes() {
    let world = World::new().await;
    prepare(&world).await;
    let served = world.serve().await;
    let totals = owner_and_track_totals(&served).await;
    for wait_ms in [5, 60, 150, 300, 500, 700, 900, 1_200] {
        let request = EraseRequest::default();
        let stop = CancellationToken::new();
        let eraser = world.eraser();
        let people = [listener(ERASED)];
        let work = eraser.erase(&people, &request, &(), &stop);
        let result = tokio::time::timeout(Duration::from_millis(wait_ms), Box::pin(work)).await;
        assert_eq!(
            owner_and_track_totals(&served).await,
            totals,
            "after {wait_ms} ms"
        );
        if let Ok(receipts) = result {
            let receipt = receipts.expect("an erasure").pop().expect("a receipt");
            assert!(receipt.is_clean(), "{receipt:#?}");
            break;
        }
    }
    world.catch_up().await;
    let list = Suppressions::new(Arc::clone(&world.stores.erasures));
    let erasures = list.all().await.expect("erasures");
    let receipt = erase(&world, &EraseRequest::default()).await;
    let finished = erasures
        .iter()
        .filter(|erasure| erasure.finished_at_ms.is_some())
        .count() as u64;
    assert_eq!(receipt.number, 1 + finished);
    assert!(receipt.is_clean(), "{receipt:#?}");
    check_erased(&world, &served, &totals).await;
    served.end().await;
}

/// With the option to keep the log, the receipt says so, and results of the log still exclude the
/// listener.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_erasure_may_leave_the_log_unchanged() {
    let world = World::new().await;
    world.ingest(&plays(0, 60)).await;
    world.catch_up().await;
    let request = EraseRequest {
        keep_log: true,
        ..EraseRequest::default()
    };
    let receipt = erase(&world, &request).await;
    assert!(receipt.finished_at_ms.is_some() && receipt.is_clean());
    assert!(
        receipt.notes.iter().any(|note| note.contains("retention")),
        "{receipt:#?}"
    );
    assert_eq!(places_with(&world, ERASED).await, ["log: 20"]);
    world.delete_live_state();
    world.catch_up().await;
    run_full(&world).await;
    assert_eq!(places_with(&world, ERASED).await, ["log: 20"]);
}

/// A row that was changed by hand hides no person and stops no search: an id that it may contain is
/// reported.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unreadable_rows_hide_no_person() {
    let world = World::new().await;
    world.ingest(&plays(0, 9)).await;
    world.catch_up().await;
    world.run(&RunRequest::default()).await.expect("a run");
    let job = world
        .catalog
        .job("plays_track_day_listener")
        .expect("the job");
    let table = job.view();
    let page = scan_view(&world, table).await;
    let id = (ERASED.cast_unsigned() ^ (1 << 63)).to_be_bytes();
    let (partition, row) = (page.partitions.value(0), &[b"x", &id[..], b"yz"].concat());
    let rows = NewRows {
        partitions: BinaryArray::from_iter_values([partition]),
        rows: BinaryArray::from_iter_values([row]),
        counts: Int64Array::from(vec![1]),
    };
    let count_in_view = async |id| -> Vec<u64> {
        let findings = &search_all(&world, &[listener(id)]).await[0];
        let findings = findings.iter().filter(|finding| finding.at == table);
        findings.map(|finding| finding.found).collect()
    };
    let (of_erased, of_other) = (count_in_view(ERASED).await, count_in_view(OTHER).await);
    write_rows(&world, table, &rows).await;
    assert_eq!(count_in_view(ERASED).await, [of_erased[0] + 1]);
    assert_eq!(count_in_view(OTHER).await, of_other);
    assert!(!findings(&erase(&world, &EraseRequest::default()).await).is_empty());
    assert_eq!(count_in_view(ERASED).await, Vec::<u64>::new());
    let remaining = search_all(&world, &[listener(ERASED)]).await;
    assert!(remaining[0].is_empty(), "{remaining:#?}");
}

/// Each of several people has a receipt with their own findings; so has an unknown person.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn several_listeners_have_separate_receipts() {
    let world = World::new().await;
    prepare(&world).await;
    let lines: Vec<String> = (500..505).map(|event| play(event, Some(OTHER))).collect();
    world.ingest(&lines).await;
    let people = [ERASED, OTHER, 3].map(listener);
    let expected = search_all(&world, &people).await;
    let log_count = |findings: &[Finding]| {
        let log = findings.iter().find(|finding| finding.place == "log");
        log.map_or(0, |finding| finding.found)
    };
    // Every third of 150 plays, and five more.
    assert_eq!(
        expected
            .iter()
            .map(|findings| log_count(findings))
            .collect::<Vec<_>>(),
        [50, 55, 0]
    );
    assert!(expected[2].is_empty(), "{expected:#?}");
    // Plays that were not counted yet would stay in the log.
    world.catch_up().await;
    let expected = search_all(&world, &people).await;
    assert_eq!(log_count(&expected[1]), 55);
    let receipts = erase_all(&world, &people, &EraseRequest::default()).await;
    assert_eq!(receipts.len(), people.len());
    let places_of = |findings: &[(&str, &str, u64)]| -> Vec<(String, String)> {
        let places = findings.iter();
        places
            .map(|(place, at, _)| ((*place).to_owned(), (*at).to_owned()))
            .collect()
    };
    let all_places = places_of(&findings(&receipts[0]));
    for ((number, receipt), expected) in (1..).zip(&receipts).zip(&expected) {
        assert_eq!(receipt.number, number);
        let findings = findings(receipt);
        assert_eq!(places_of(&findings), all_places, "each place, also where 0");
        let findings = findings.into_iter().filter(|(.., count)| *count > 0);
        let expected = expected
            .iter()
            .map(|finding| (&*finding.place, &*finding.at, finding.found));
        assert_eq!(findings.collect::<Vec<_>>(), expected.collect::<Vec<_>>());
    }
    let remaining = search_all(&world, &people).await;
    assert!(remaining.iter().all(Vec::is_empty), "{remaining:#?}");
}

/// Runs two concurrent erasures of different existing people; returns their numbers.
async fn erase_concurrently(world: &World) -> [u64; 2] {
    let request = EraseRequest::default();
    let (first, second) = ([listener(ERASED)], [listener(OTHER)]);
    let (first, second) = tokio::join!(
        Box::pin(erase_all(world, &first, &request)),
        Box::pin(erase_all(world, &second, &request)),
    );
    assert!(!findings(&first[0]).is_empty() && !findings(&second[0]).is_empty());
    [first[0].number, second[0].number]
}

/// Two concurrent erasures in a source with a log and runs both complete.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_concurrent_erasures_both_complete() {
    let world = World::new().await;
    prepare(&world).await;
    let served = world.serve().await;
    let totals = owner_and_track_totals(&served).await;
    let origins = |dead_letters: Vec<(String, Vec<u8>)>| -> Vec<String> {
        dead_letters.into_iter().map(|(origin, _)| origin).collect()
    };
    let recorded = origins(dead_letters(&world, Source::Plays).await);
    let numbers = erase_concurrently(&world).await;
    assert_ne!(numbers[0], numbers[1]);
    assert_eq!(origins(dead_letters(&world, Source::Plays).await), recorded);
    assert_eq!(places_with(&world, OTHER).await, Vec::<String>::new());
    assert_eq!(listener_total(&served, OTHER).await, 0);
    check_erased(&world, &served, &totals).await;
    served.end().await;
}

/// Two concurrent erasures rewrite dead letters; no run excludes the other.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_concurrent_erasures_duplicate_no_dead_letter() {
    const DEAD_LETTERS: usize = 300;
    let world = World::new().await;
    let log = &*world.stores.log;
    let topic = Source::Plays.dead_letter_topic();
    log.ensure_topic(topic, 1).await.expect("a topic");
    for round in 1..=4 {
        let dead_letter = |n: usize| DeadLetter {
            source: "plays".to_owned(),
            reason: "not JSON".to_owned(),
            origin: format!("f{round}:{n}"),
            at_ms: NOW_MS,
            raw: format!("listener_id={}", [ERASED, OTHER, 3][n % 3]).into_bytes(),
        };
        let new: Vec<DeadLetter> = (0..DEAD_LETTERS).map(dead_letter).collect();
        let appended = append_dead_letters(log, Source::Plays, &new, NOW_MS).await;
        appended.expect("appending");
        erase_concurrently(&world).await;
        let dead_letters = dead_letters(&world, Source::Plays).await;
        let unredacted = dead_letters.iter().filter(|(_, raw)| !raw.is_empty());
        assert_eq!(
            (dead_letters.len(), unredacted.count()),
            (round * DEAD_LETTERS, round * DEAD_LETTERS / 3)
        );
    }
}

/// The command finds the listener, erases with processes that are killed, and then finds nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_command_resumes() {
    let folder = tempfile::tempdir().expect("a folder");
    let data = folder.path();
    let input = data.join("plays.jsonl");
    std::fs::write(&input, plays(0, 3_000).join("\n")).expect("a file");
    run_ok(data, &["ingest", "plays", &input.display().to_string()]);
    std::fs::remove_file(&input).expect("the file");
    run_ok(data, &["speed", "--source", "plays", "--until-caught-up"]);
    run_ok(data, &["batch", "run"]);
    let id = ERASED.to_string();
    let verify = || run(data, &["erase", "--listener", &id, "--verify"]);
    assert_eq!(verify().status.code(), Some(3));
    for wait_ms in [150, 400, 800, 1_200, 1_600] {
        let mut erasing = command(data, &["erase", "--listener", &id]);
        let mut erasing = erasing.spawn().expect("a process");
        tokio::time::sleep(Duration::from_millis(wait_ms)).await;
        // The process may have completed.
        drop(erasing.kill());
        erasing.wait().expect("the end of the process");
    }
    let args = [
        "erase",
        "--listener",
        &id,
        "--by",
        "desk",
        "--reason",
        "ticket 5",
        "--json",
    ];
    let receipts: Value = serde_json::from_str(&run_ok(data, &args)).expect("JSON");
    assert!(receipts[0]["finished_at_ms"].is_i64(), "{receipts}");
    let places = receipts[0]["places"].as_array().expect("places");
    assert!(places.iter().all(|place| place["left"] == 0), "{receipts}");
    let output = verify();
    assert!(output.status.success(), "{output:?}");
    let list = run_ok(data, &["erase", "--list"]);
    assert!(list.contains("listener") && !list.contains(&id), "{list}");
    assert_eq!(files_with(data, ERASED), Vec::<String>::new());
    assert_eq!(run(data, &["erase"]).status.code(), Some(2));
}
