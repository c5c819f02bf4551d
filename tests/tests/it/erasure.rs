//! Somebody is erased, and nothing brings them back: not the log, a replay, dead letters, an old copy of the
//! archive, or a worker that did not know.

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
use tests::process::{command, done, run};
use tests::world::{NOW_MS, Served, World};
use tokio_util::sync::CancellationToken;

use super::restore::{rows_of, write};

/// The listener who is erased, an id that nothing else looks like.
const GONE: i64 = 7_316_171_926_443_017_251;
const STAYS: i64 = 7_316_171_926_443_017_252;

fn play(event: usize, listener: Option<i64>) -> String {
    let fields = json!({
        "track_id": 1 + event % 3, "owner_id": 7 + event % 2, "listener_id": listener, "country": "DE",
        "at": format!("2026-02-{:02}T11:00:00Z", 1 + event % 20),
    });
    tests::plays::play(format!("e{event}"), fields)
}

/// Plays of both listeners and of nobody.
fn plays(from: usize, count: usize) -> Vec<String> {
    let of = |event| [Some(GONE), Some(STAYS), None][event % 3];
    (from..from + count)
        .map(|event| play(event, of(event)))
        .collect()
}

const fn listener(id: i64) -> Person {
    let kind = PersonKind::Listener;
    Person { kind, id }
}

async fn erase(world: &World, request: &EraseRequest) -> Receipt {
    let mut erased = erase_all(world, &[listener(GONE)], request).await;
    erased.pop().expect("a receipt")
}

/// Erases people by one command.
pub(crate) async fn erase_all(
    world: &World,
    people: &[Person],
    request: &EraseRequest,
) -> Vec<Receipt> {
    let (eraser, stop) = (world.eraser(), CancellationToken::new());
    let erased = Box::pin(eraser.erase(people, request, &(), &stop)).await;
    erased.expect("an erasure")
}

/// Where somebody is found now.
async fn places(world: &World, id: i64) -> Vec<String> {
    let found = world
        .eraser()
        .verify(&[listener(id)])
        .await
        .expect("a search");
    let places = found.into_iter().flat_map(|(_, found)| found);
    places
        .map(|one| format!("{}: {}", one.place, one.found))
        .collect()
}

async fn ask(served: &Served, path: &str) -> Value {
    let (client, path) = (served.client.clone(), format!("/api/v1/stats/plays/{path}"));
    let asked = tokio::task::spawn_blocking(move || client.json(&path));
    asked.await.expect("an answer")
}

/// What must stay as it is: totals of owners and tracks.
async fn totals(served: &Served) -> Vec<Value> {
    let mut totals = Vec::new();
    for of in [
        "owner_id=7",
        "owner_id=8",
        "track_id=1",
        "track_id=2&country=DE",
    ] {
        let answer = ask(served, &format!("total?{of}&period=all")).await;
        totals.push(answer["count"].clone());
    }
    totals
}

async fn of_listener(served: &Served, id: i64) -> i64 {
    let path = format!("total?owner_id=7&listener_id={id}&period=all");
    let answer = ask(served, &path).await;
    answer["count"].as_i64().expect("a count")
}

/// The letters of a source, each as where it came from and what is left of it.
pub(crate) async fn letters(world: &World, source: Source) -> Vec<(String, Vec<u8>)> {
    let (log, topic) = (&world.stores.log, source.dead_letter_topic());
    let mut letters = Vec::new();
    let spans = log.spans(topic).await.expect("the log");
    for (partition, span) in (0..).zip(spans) {
        let mut next = span.start;
        while next < span.end {
            let limit = FetchLimit {
                records: 10_000,
                bytes: 1 << 24,
            };
            let fetched = log.fetch(topic, partition, next, limit).await;
            let fetched = fetched.expect("letters");
            next = fetched.next_offset;
            for value in fetched.records.values.iter().flatten() {
                let letter: DeadLetter = serde_json::from_slice(value).expect("a letter");
                letters.push((letter.origin, letter.raw));
            }
        }
    }
    letters.sort_unstable();
    letters
}

/// What a receipt says was found, and that nothing is left.
pub(crate) fn found(receipt: &Receipt) -> Vec<(&str, &str, u64)> {
    assert!(
        receipt.is_clean() && receipt.finished_at_ms.is_some(),
        "{receipt:#?}"
    );
    let places = receipt.places.iter();
    places
        .map(|one| (&*one.place, &*one.at, one.found))
        .collect()
}

/// Searches for people at once, and answers what would be found of each who is searched for alone.
pub(crate) async fn searched(world: &World, people: &[Person]) -> Vec<Vec<Finding>> {
    let eraser = world.eraser();
    let together = eraser.verify(people).await.expect("a search");
    for (one, together) in people.iter().zip(&together) {
        let alone = eraser.verify(&[*one]).await.expect("a search");
        assert_eq!(alone, std::slice::from_ref(together));
    }
    together.into_iter().map(|(_, found)| found).collect()
}

/// Files in which the id stands in digits, or as a key, the log, Parquet or a column of SQLite has it.
pub(crate) fn files_with(folder: &Path, id: i64) -> Vec<String> {
    let key = (id.cast_unsigned() ^ (1 << 63)).to_be_bytes();
    let forms = [
        id.to_string().into_bytes(),
        key.to_vec(),
        id.to_le_bytes().to_vec(),
        id.to_be_bytes().to_vec(),
    ];
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).expect("a folder") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            found.extend(files_with(&path, id));
            continue;
        }
        let Ok(bytes) = std::fs::read(&path) else {
            continue;
        };
        let has = |form: &Vec<u8>| bytes.windows(form.len()).any(|one| one == &form[..]);
        if forms.iter().any(has) {
            found.push(path.display().to_string());
        }
    }
    found
}

/// A line that can't be taken and names the listener, and one that names nobody.
async fn set_aside(world: &World) {
    let letter = |origin: &str, raw: String| DeadLetter {
        source: "plays".to_owned(),
        reason: "not JSON".to_owned(),
        origin: origin.to_owned(),
        at_ms: NOW_MS,
        raw: raw.into_bytes(),
    };
    let letters = [
        letter("f:1", format!("listener_id={GONE}")),
        letter("f:2", play(900, Some(GONE))),
        letter("f:3", play(901, Some(STAYS))),
        letter("f:4", "nobody".to_owned()),
    ];
    let appended = append_dead_letters(&*world.stores.log, Source::Plays, &letters, NOW_MS).await;
    appended.expect("appending");
}

/// Plays that were counted, archived and published, with more that only live state has, a backfill, and dead
/// letters.
async fn settled(world: &World) {
    world.ingest(&plays(0, 90)).await;
    world.catch_up().await;
    world.run(&RunRequest::default()).await.expect("a run");
    world.backfill(&plays(300, 30)).await;
    world.ingest(&plays(90, 30)).await;
    world.catch_up().await;
    world.run(&RunRequest::default()).await.expect("a run");
    world.ingest(&plays(120, 30)).await;
    world.catch_up().await;
    set_aside(world).await;
}

/// All files of the archive, as they are now.
async fn copied(world: &World) -> Vec<(String, bytes::Bytes)> {
    let archive = &world.stores.archive;
    let mut copy = Vec::new();
    for path in archive.list("archive/plays").await.expect("the archive") {
        let bytes = archive.get(&path).await.expect("a file").expect("a file");
        copy.push((path, bytes));
    }
    copy
}

async fn scene(world: World) {
    settled(&world).await;
    let served = world.serve().await;
    let before = totals(&served).await;
    assert!(of_listener(&served, GONE).await > 0);
    let found = places(&world, GONE).await;
    for place in [
        "log",
        "live state",
        "views",
        "archive",
        "results",
        "dead letters",
    ] {
        let is_found = found.iter().any(|one| one.starts_with(place));
        assert!(is_found, "{place} is not among {found:?}");
    }
    let others = places(&world, STAYS).await;
    let copy = copied(&world).await;
    if world.namespace().is_none() {
        assert!(!files_with(world.path(), GONE).is_empty());
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
            .contains(&GONE.to_string())
    );
    gone(&world, &served, &before).await;
    assert!(!places(&world, STAYS).await.is_empty(), "{others:?}");
    assert!(of_listener(&served, STAYS).await > 0);

    // Everything from the beginning, once more from all that comes: lines, letters, lost live state.
    full(&world).await;
    gone(&world, &served, &before).await;
    world.ingest(&plays(0, 150)).await;
    world
        .append_raw(0, &[play(999, Some(GONE)).as_bytes()])
        .await;
    world.lose_live();
    world.catch_up().await;
    assert_eq!(of_listener(&served, GONE).await, 0);
    let receipt = erase(&world, &EraseRequest::default()).await;
    assert!(receipt.number == 2 && receipt.is_clean(), "{receipt:#?}");
    let counted = totals(&served).await;
    gone(&world, &served, &counted).await;

    // The archive comes back from a copy that was made before.
    for (path, bytes) in &copy {
        world
            .stores
            .archive
            .put(path, bytes.clone())
            .await
            .expect("a file");
    }
    full(&world).await;
    gone(&world, &served, &counted).await;
    served.end().await;
}

async fn full(world: &World) {
    let request = RunRequest {
        full: true,
        ..RunRequest::default()
    };
    world.run(&request).await.expect("a run");
}

/// The listener is nowhere, and nothing else has changed.
async fn gone(world: &World, served: &Served, before: &[Value]) {
    assert_eq!(places(world, GONE).await, Vec::<String>::new());
    assert_eq!(of_listener(served, GONE).await, 0);
    assert_eq!(totals(served).await, before);
    world
        .stores
        .data_folder
        .truncate_wals()
        .await
        .expect("empty logs");
    assert_eq!(files_with(world.path(), GONE), Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_brings_a_listener_back() {
    scene(World::new().await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_brings_a_listener_back_on_servers() {
    scene(World::on_servers().await).await;
}

/// Cut off anywhere, it goes on under the same number when it is run again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_erasure_that_is_cut_off_is_gone_on_with() {
    let world = World::new().await;
    settled(&world).await;
    let served = world.serve().await;
    let before = totals(&served).await;
    for wait_ms in [5, 60, 150, 300, 500, 700, 900, 1_200] {
        let request = EraseRequest::default();
        let stop = CancellationToken::new();
        let eraser = world.eraser();
        let people = [listener(GONE)];
        let work = eraser.erase(&people, &request, &(), &stop);
        let cut = tokio::time::timeout(Duration::from_millis(wait_ms), Box::pin(work)).await;
        assert_eq!(totals(&served).await, before, "after {wait_ms} ms");
        if let Ok(done) = cut {
            let receipt = done.expect("an erasure").pop().expect("a receipt");
            assert!(receipt.is_clean(), "{receipt:#?}");
            break;
        }
    }
    world.catch_up().await;
    let list = Suppressions::new(Arc::clone(&world.stores.erasures));
    let all = list.all().await.expect("erasures");
    let receipt = erase(&world, &EraseRequest::default()).await;
    let finished = all
        .iter()
        .filter(|one| one.finished_at_ms.is_some())
        .count() as u64;
    assert_eq!(receipt.number, 1 + finished);
    assert!(receipt.is_clean(), "{receipt:#?}");
    gone(&world, &served, &before).await;
    served.end().await;
}

/// Who wants the log to stay is told, and what comes of it is still without the listener.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_log_may_be_kept() {
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
    assert_eq!(places(&world, GONE).await, ["log: 20"]);
    world.lose_live();
    world.catch_up().await;
    full(&world).await;
    assert_eq!(places(&world, GONE).await, ["log: 20"]);
}

/// A row that somebody changed by hand hides nobody, and ends no search: whose id may stand in it is found.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rows_that_cannot_be_read_hide_nobody() {
    let world = World::new().await;
    world.ingest(&plays(0, 9)).await;
    world.catch_up().await;
    world.run(&RunRequest::default()).await.expect("a run");
    let job = world
        .catalog
        .job("plays_track_day_listener")
        .expect("the job");
    let table = job.view();
    let page = rows_of(&world, table).await;
    let id = (GONE.cast_unsigned() ^ (1 << 63)).to_be_bytes();
    let (part, row) = (page.partitions.value(0), &[b"x", &id[..], b"yz"].concat());
    let rows = NewRows {
        partitions: BinaryArray::from_iter_values([part]),
        rows: BinaryArray::from_iter_values([row]),
        counts: Int64Array::from(vec![1]),
    };
    let in_views = async |id| -> Vec<u64> {
        let found = &searched(&world, &[listener(id)]).await[0];
        let found = found.iter().filter(|one| one.at == table);
        found.map(|one| one.found).collect()
    };
    let (of_gone, of_other) = (in_views(GONE).await, in_views(STAYS).await);
    write(&world, table, &rows).await;
    assert_eq!(in_views(GONE).await, [of_gone[0] + 1]);
    assert_eq!(in_views(STAYS).await, of_other);
    assert!(!found(&erase(&world, &EraseRequest::default()).await).is_empty());
    assert_eq!(in_views(GONE).await, Vec::<u64>::new());
    let left = searched(&world, &[listener(GONE)]).await;
    assert!(left[0].is_empty(), "{left:#?}");
}

/// Each of several has a receipt with what was found of them alone; whom nobody knows has one too.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn several_are_found_and_erased_each_by_themselves() {
    let world = World::new().await;
    settled(&world).await;
    let more: Vec<String> = (500..505).map(|event| play(event, Some(STAYS))).collect();
    world.ingest(&more).await;
    let people = [GONE, STAYS, 3].map(listener);
    let before = searched(&world, &people).await;
    let in_log = |found: &[Finding]| {
        let log = found.iter().find(|one| one.place == "log");
        log.map_or(0, |one| one.found)
    };
    // Every third of 150 plays, and five more.
    assert_eq!(
        before.iter().map(|one| in_log(one)).collect::<Vec<_>>(),
        [50, 55, 0]
    );
    assert!(before[2].is_empty(), "{before:#?}");
    // What was not counted yet would stay in the log.
    world.catch_up().await;
    let before = searched(&world, &people).await;
    assert_eq!(in_log(&before[1]), 55);
    let receipts = erase_all(&world, &people, &EraseRequest::default()).await;
    assert_eq!(receipts.len(), people.len());
    let places_of = |found: &[(&str, &str, u64)]| -> Vec<(String, String)> {
        let places = found.iter();
        places
            .map(|(place, at, _)| ((*place).to_owned(), (*at).to_owned()))
            .collect()
    };
    let all_places = places_of(&found(&receipts[0]));
    for ((number, receipt), before) in (1..).zip(&receipts).zip(&before) {
        assert_eq!(receipt.number, number);
        let found = found(receipt);
        assert_eq!(places_of(&found), all_places, "each place, also where 0");
        let found = found.into_iter().filter(|(.., found)| *found > 0);
        let before = before.iter().map(|one| (&*one.place, &*one.at, one.found));
        assert_eq!(found.collect::<Vec<_>>(), before.collect::<Vec<_>>());
    }
    let left = searched(&world, &people).await;
    assert!(left.iter().all(Vec::is_empty), "{left:#?}");
}

/// Two who erase at once, each somebody else, who is found; answers the numbers of their erasures.
async fn erase_at_once(world: &World) -> [u64; 2] {
    let request = EraseRequest::default();
    let (one, other) = ([listener(GONE)], [listener(STAYS)]);
    let (one, other) = tokio::join!(
        Box::pin(erase_all(world, &one, &request)),
        Box::pin(erase_all(world, &other, &request)),
    );
    assert!(!found(&one[0]).is_empty() && !found(&other[0]).is_empty());
    [one[0].number, other[0].number]
}

/// Two who erase at once, of a source that has a log and runs: both come to their end.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_erasures_at_once_both_end() {
    let world = World::new().await;
    settled(&world).await;
    let served = world.serve().await;
    let before = totals(&served).await;
    let origins = |letters: Vec<(String, Vec<u8>)>| -> Vec<String> {
        letters.into_iter().map(|(origin, _)| origin).collect()
    };
    let noted = origins(letters(&world, Source::Plays).await);
    let numbers = erase_at_once(&world).await;
    assert_ne!(numbers[0], numbers[1]);
    assert_eq!(origins(letters(&world, Source::Plays).await), noted);
    assert_eq!(places(&world, STAYS).await, Vec::<String>::new());
    assert_eq!(of_listener(&served, STAYS).await, 0);
    gone(&world, &served, &before).await;
    served.end().await;
}

/// Two who write letters once more at once, whom no run keeps apart.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_erasures_at_once_double_no_letter() {
    const LETTERS: usize = 300;
    let world = World::new().await;
    let log = &*world.stores.log;
    let topic = Source::Plays.dead_letter_topic();
    log.ensure_topic(topic, 1).await.expect("a topic");
    for round in 1..=4 {
        let of = |n: usize| DeadLetter {
            source: "plays".to_owned(),
            reason: "not JSON".to_owned(),
            origin: format!("f{round}:{n}"),
            at_ms: NOW_MS,
            raw: format!("listener_id={}", [GONE, STAYS, 3][n % 3]).into_bytes(),
        };
        let new: Vec<DeadLetter> = (0..LETTERS).map(of).collect();
        let appended = append_dead_letters(log, Source::Plays, &new, NOW_MS).await;
        appended.expect("appending");
        erase_at_once(&world).await;
        let letters = letters(&world, Source::Plays).await;
        let left = letters.iter().filter(|(_, raw)| !raw.is_empty());
        assert_eq!(
            (letters.len(), left.count()),
            (round * LETTERS, round * LETTERS / 3)
        );
    }
}

/// By the command: found, erased by processes that are killed, and then found no more.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_command_goes_on_where_it_was_killed() {
    let folder = tempfile::tempdir().expect("a folder");
    let data = folder.path();
    let input = data.join("plays.jsonl");
    std::fs::write(&input, plays(0, 3_000).join("\n")).expect("a file");
    done(data, &["ingest", "plays", &input.display().to_string()]);
    std::fs::remove_file(&input).expect("the file");
    done(data, &["speed", "--source", "plays", "--until-caught-up"]);
    done(data, &["batch", "run"]);
    let id = GONE.to_string();
    let verify = || run(data, &["erase", "--listener", &id, "--verify"]);
    assert_eq!(verify().status.code(), Some(3));
    for wait_ms in [150, 400, 800, 1_200, 1_600] {
        let mut erasing = command(data, &["erase", "--listener", &id]);
        let mut erasing = erasing.spawn().expect("a process");
        tokio::time::sleep(Duration::from_millis(wait_ms)).await;
        // It may have come to its end by now.
        drop(erasing.kill());
        erasing.wait().expect("its end");
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
    let receipts: Value = serde_json::from_str(&done(data, &args)).expect("JSON");
    assert!(receipts[0]["finished_at_ms"].is_i64(), "{receipts}");
    let left = receipts[0]["places"].as_array().expect("places");
    assert!(left.iter().all(|place| place["left"] == 0), "{receipts}");
    let searched = verify();
    assert!(searched.status.success(), "{searched:?}");
    let all = done(data, &["erase", "--list"]);
    assert!(all.contains("listener") && !all.contains(&id), "{all}");
    assert_eq!(files_with(data, GONE), Vec::<String>::new());
    assert_eq!(run(data, &["erase"]).status.code(), Some(2));
}
