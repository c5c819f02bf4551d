//! What bytes and texts of strangers meet first: each function takes any, and ends the test where something does not hold.
//!
//! They are called with kept cases and with what is made of them (`tests/it/hostile.rs`).

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use batch::RunRequest;
use jobs::Catalog;
use schemas::avro::{Writers, schema_ids};
use schemas::entities::{self, Miss, Notifications, parse_notification};
use schemas::key::{KeyKind, KeyShape, KeyValue};
use schemas::plays::{Decoder, Line, check_line, check_records};
use schemas::source::{Source, SourceKind};
use serving::Serving;
use tempfile::TempDir;
use tokio::runtime::Runtime;
use tokio::time::timeout;
use xxhash_rust::xxh3::xxh3_64;

use crate::world::World;

/// What stands between the two files of a definition.
pub const BETWEEN_FILES: &str = "\n-- query.sql\n";
/// How long anything may take.
const ANSWER_MAX: Duration = Duration::from_secs(60);
/// A cursor with what it holds, as it stands there.
const OPEN_CURSOR: &str = "cursor=~";
/// What has a second page.
const PAGED: [&str; 4] = [
    "/api/v1/stats/plays/breakdown?owner_id=1&by=track&limit=1",
    "/api/v1/applications?limit=1",
    "/api/v1/batch/runs?source=plays&limit=1",
    "/api/v1/dead-letters?source=plays&limit=1",
];
/// Goes on until who asked goes away.
const ENDLESS: &str = "/live";

const PLAYS: &str = include_str!("../../schemas/avro/plays.avsc");
const EFFORTS: &str = include_str!("../../schemas/avro/efforts.avsc");
const AUTHORIZATIONS: &str = include_str!("../../schemas/avro/authorizations.avsc");

static CATALOG: LazyLock<Catalog> =
    LazyLock::new(|| Catalog::built_in().expect("the built-in views"));

/// An installation that answers.
struct Answering {
    runtime: Runtime,
    serving: Serving,
    _world: World,
}

static ANSWERING: LazyLock<Answering> = LazyLock::new(|| {
    let runtime = Runtime::new().expect("a runtime");
    let (world, serving) = runtime.block_on(async {
        let world = World::new().await;
        filled(&world).await;
        let serving = world.serving();
        (world, serving)
    });
    Answering {
        runtime,
        serving,
        _world: world,
    }
});

/// A folder that an installation with runs has left.
static LEFT: LazyLock<TempDir> = LazyLock::new(|| {
    let folder = tempfile::tempdir().expect("a folder");
    let runtime = Runtime::new().expect("a runtime");
    runtime.block_on(async {
        let world = World::open(folder.path()).await;
        filled(&world).await;
    });
    folder
});

/// Some plays, a run over the first of them, and newer ones.
async fn filled(world: &World) {
    let play = |number: i64| {
        format!(
            r#"{{"event_id":"e{number}","track_id":{},"owner_id":{},"listener_id":{number},"kind":"play","country":"DE","at":"2026-03-0{}T10:00:00Z"}}"#,
            number % 7,
            number % 3,
            1 + number % 9
        )
    };
    let applications = (1..4).map(|id| format!(r#"{{"id":{id},"name":"A","owner":1}}"#));
    let applications: Vec<String> = applications.collect();
    world.ingest_into(Source::Applications, &applications).await;
    for (events, is_covered) in [(0..40, true), (40..60, true), (60..70, false)] {
        let mut lines: Vec<String> = events.map(play).collect();
        lines.push("no play".to_owned());
        world.ingest(&lines).await;
        world.catch_up().await;
        if is_covered {
            world.run(&RunRequest::default()).await.expect("a run");
        }
    }
}

/// The schemas of these records: of each id the same.
fn writers(record: &[u8], schema: &str) -> Writers {
    let mut writers = Writers::default();
    for id in schema_ids([record]) {
        writers.insert(id, Ok(Arc::from(schema)));
    }
    writers
}

/// Records of any source, as lines and as Avro: taken whole or with a reason, in each way of reading them alike.
pub fn records(bytes: &[u8]) {
    let line = Line {
        offset: 0,
        logged_at_ms: 0,
        bytes,
    };
    let owner = check_line(bytes);
    let decoded = Decoder::new(0).decode([line]).expect("a batch");
    assert_eq!(decoded.events.num_rows(), usize::from(owner.is_ok()));
    assert_eq!(decoded.rejected.len(), usize::from(owner.is_err()));

    let plays = writers(bytes, PLAYS);
    let checked = check_records([bytes], &plays).expect("schemas are known");
    let decoded = Decoder::new(0).decode_records([line], &plays);
    let decoded = decoded.expect("schemas are known");
    assert_eq!(decoded.events.num_rows(), usize::from(checked[0].is_ok()));
    if bytes.first() != Some(&0) {
        assert_eq!(checked[0], owner);
    }

    for source in Source::ALL {
        if source.kind() == SourceKind::Entities {
            drop(entities::parse(source, bytes));
        }
    }
    for (source, schema) in [
        (Source::Efforts, EFFORTS),
        (Source::Authorizations, AUTHORIZATIONS),
    ] {
        let writers = writers(bytes, schema);
        let read = Notifications::read(source, [bytes], &writers).expect("schemas are known");
        let group = read.group(0, bytes);
        if bytes.first() != Some(&0) {
            assert_eq!(group, parse_notification(source, bytes));
        }
        drop(Miss::read(source, bytes));
    }
}

/// Keys of rows, of each view's shape: each that can be read is the one that its values make.
pub fn keys(bytes: &[u8]) {
    for job in CATALOG.jobs() {
        let shape: &KeyShape = job.row();
        let values = shape.decode_values(bytes);
        assert_eq!(shape.is_key(bytes), values.is_ok(), "{}", job.name());
        assert_eq!(
            shape.decode([bytes].into_iter()).is_ok(),
            values.is_ok(),
            "{}",
            job.name()
        );
        if let Ok(values) = values {
            let made = shape.encode_values(&values);
            assert_eq!(made.as_deref(), Ok(bytes), "{}", job.name());
        }
    }
}

/// Definitions of views, as `job.toml` and `query.sql` with [`BETWEEN_FILES`] between them: a fault names its file.
pub fn definitions(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    let (definition, sql) = text.split_once(BETWEEN_FILES).unwrap_or((&text, ""));
    let root = tempfile::tempdir().expect("a folder");
    let folder = root.path().join("strange");
    fs::create_dir(&folder).expect("a folder");
    fs::write(folder.join("job.toml"), definition).expect("a file");
    fs::write(folder.join("query.sql"), sql).expect("a file");
    if let Err(error) = Catalog::read(root.path()) {
        let said = error.to_string();
        assert!(said.contains("strange"), "{said}");
    }
}

/// Paths with what is asked, cursors too: none is a fault of ours, and what is wrong is said as JSON.
///
/// # Panics
/// If an answer is one of a fault, or does not come.
pub fn questions(bytes: &[u8]) {
    let path = with_cursor(&String::from_utf8_lossy(bytes));
    if path.starts_with(ENDLESS) {
        return;
    }
    let Answering {
        runtime, serving, ..
    } = &*ANSWERING;
    let answer = runtime.block_on(async { timeout(ANSWER_MAX, serving.get(&path)).await });
    // What is no path does not get as far.
    let Ok((status, body)) = answer.expect("an answer in time") else {
        return;
    };
    assert!(status < 500, "{path}: {status} {body}");
    if status >= 400 && path.starts_with("/api/") {
        let problem: serde_json::Value = serde_json::from_str(&body).expect("a problem");
        assert_eq!(problem["status"], status, "{path}: {body}");
    }
}

/// A path whose open cursor is closed, as the API gives them.
fn with_cursor(path: &str) -> String {
    match path.split_once(OPEN_CURSOR) {
        None => path.to_owned(),
        Some((before, inside)) => format!("{before}cursor={}", URL_SAFE_NO_PAD.encode(inside)),
    }
}

/// Paths with open cursors, each of a second page.
///
/// # Panics
/// If there is no second page.
#[must_use]
pub fn open_cursors() -> Vec<String> {
    let Answering {
        runtime, serving, ..
    } = &*ANSWERING;
    let open = |path: &&str| {
        let answer = runtime.block_on(serving.get(path));
        let (_, body) = answer.expect("an answer");
        let page: serde_json::Value = serde_json::from_str(&body).expect("a page");
        let cursor = page["cursor"].as_str();
        let cursor = cursor.unwrap_or_else(|| panic!("{path}: {body}"));
        let inside = URL_SAFE_NO_PAD.decode(cursor).expect("a cursor");
        format!("{path}&{OPEN_CURSOR}{}", String::from_utf8_lossy(&inside))
    };
    PAGED.iter().map(open).collect()
}

/// Keys of rows of each view.
#[must_use]
pub fn made_keys() -> Vec<Vec<u8>> {
    let jobs = CATALOG.jobs().iter();
    let made = jobs.filter_map(|job| {
        let columns = job.row().0.iter();
        let values = columns.map(|column| match column.kind {
            KeyKind::Int => KeyValue::Int(-7),
            KeyKind::Text => KeyValue::Text("D\u{e9}".to_owned()),
            KeyKind::Time => KeyValue::Time(1_772_359_200),
            KeyKind::Instant => KeyValue::Instant(1_772_359_200_000_001),
        });
        job.row().encode_values(&values.collect::<Vec<_>>()).ok()
    });
    made.collect()
}

/// How many manifests there are to be replaced.
#[must_use]
pub fn manifest_count() -> usize {
    manifests(LEFT.path()).len()
}

/// What one of the manifests says.
///
/// # Panics
/// If it can't be read.
#[must_use]
pub fn manifest(index: usize) -> Vec<u8> {
    let all = manifests(LEFT.path());
    let bytes = fs::read(&all[index]).expect("a manifest");
    let body = bytes.split(|byte| *byte == b'\n').next();
    body.unwrap_or_default().to_vec()
}

/// One of the manifests of an installation, by the first byte, says what the others are, under a right checksum: the next run comes to
/// its end, well or with an error.
///
/// # Panics
/// If it does not come to its end.
pub fn replaced_manifest(bytes: &[u8]) {
    let Some((which, body)) = bytes.split_first() else {
        return;
    };
    let folder = tempfile::tempdir().expect("a folder");
    crate::folder::copy(LEFT.path(), folder.path());
    let all = manifests(folder.path());
    let path = &all[usize::from(*which) % all.len()];
    let mut file = body.to_vec();
    let checksum = format!("\n{{\"xxh3\":\"{:016x}\"}}\n", xxh3_64(body));
    file.extend_from_slice(checksum.as_bytes());
    fs::write(path, file).expect("a manifest");
    let runtime = Runtime::new().expect("a runtime");
    runtime.block_on(async {
        let world = World::open(folder.path()).await;
        let run = timeout(ANSWER_MAX, world.run(&RunRequest::default())).await;
        drop(run.expect("it comes to its end"));
    });
}

/// The manifests of an installation, in an order that does not change.
fn manifests(folder: &Path) -> Vec<PathBuf> {
    let all = crate::folder::files(&folder.join("archive")).into_iter();
    let found = all.filter(|path| fs::read(path).is_ok_and(|bytes| has_checksum(&bytes)));
    found.collect()
}

fn has_checksum(bytes: &[u8]) -> bool {
    let mut lines = bytes.split(|byte| *byte == b'\n').skip(1);
    lines
        .next()
        .is_some_and(|line| line.starts_with(b"{\"xxh3\":"))
}
