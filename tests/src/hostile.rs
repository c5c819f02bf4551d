//! Checks of the functions that read untrusted bytes and texts: each check accepts any input and
//! panics if a property does not hold.
//!
//! Inputs are stored cases, random mutations of them (`tests/it/hostile.rs`), and mutations by a
//! coverage-guided fuzzer (`fuzz/`).

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use batch::RunRequest;
use jobs::Catalog;
use schemas::avro::{WriterSchemas, schema_ids};
use schemas::entities::{self, CacheMiss, Notifications, parse_notification};
use schemas::key::{KeyKind, KeyShape, KeyValue};
use schemas::plays::{Decoder, Line, check_line, check_records};
use schemas::source::{Source, SourceKind};
use serving::Serving;
use tokio::runtime::Runtime;
use tokio::time::timeout;
use xxhash_rust::xxh3::xxh3_64;

use crate::world::World;

/// An entry point for untrusted input.
#[derive(Debug, Clone, Copy)]
pub struct InputCheck {
    /// Checks any bytes.
    pub check: fn(&[u8]),
    /// Returns its stored cases.
    pub cases: fn() -> Vec<Vec<u8>>,
}

/// Records of any source, as JSON lines and as Avro.
pub const RECORDS: InputCheck = InputCheck {
    check: records,
    cases: record_cases,
};
/// Row keys of each view's shape.
pub const KEYS: InputCheck = InputCheck {
    check: keys,
    cases: key_cases,
};
/// View definitions: `job.toml` and `query.sql`.
pub const DEFINITIONS: InputCheck = InputCheck {
    check: definitions,
    cases: definition_cases,
};
/// Paths of the API and the pages with query strings, including cursors.
pub const QUESTIONS: InputCheck = InputCheck {
    check: questions,
    cases: question_cases,
};
/// Manifests of an installation; the first byte selects the manifest.
pub const MANIFESTS: InputCheck = InputCheck {
    check: manifests,
    cases: manifest_cases,
};

/// Returns the fuzzer's folder if a fuzzer runs.
fn fuzz_folder() -> Option<PathBuf> {
    env::var_os("BACKSTITCH_FUZZ_FOLDER").map(PathBuf::from)
}

impl InputCheck {
    /// Writes each stored case into a file in the folder `kept` of `BACKSTITCH_FUZZ_FOLDER`; does
    /// nothing if the variable is not set.
    ///
    /// # Panics
    /// If a file cannot be written.
    pub fn write_cases(&self) {
        let Some(folder) = fuzz_folder() else {
            return;
        };
        for (number, case) in (self.cases)().iter().enumerate() {
            let path = folder.join("kept").join(number.to_string());
            fs::write(path, case).expect("a file");
        }
    }
}

/// Separator between the two files of a definition.
const BETWEEN_FILES: &str = "\n-- query.sql\n";
/// Maximum time for any check.
const CHECK_TIMEOUT: Duration = Duration::from_secs(60);
/// A cursor with its contents in plain text.
const OPEN_CURSOR: &str = "cursor=~";
/// Paths that have a second page.
const PAGED: [&str; 6] = [
    "/api/v1/stats/plays/breakdown?owner_id=1&by=track&limit=1",
    "/api/v1/applications?limit=1",
    "/api/v1/boards/applications/1?limit=1",
    "/api/v1/batch/runs?source=plays&limit=1",
    "/api/v1/dead-letters?source=plays&limit=1",
    "/api/v1/reconciliations?limit=1",
];
/// A stream that continues until the client disconnects.
const ENDLESS: &str = "/live";

const PLAYS: &str = include_str!("../../schemas/avro/plays.avsc");
const EFFORTS: &str = include_str!("../../schemas/avro/efforts.avsc");
const AUTHORIZATIONS: &str = include_str!("../../schemas/avro/authorizations.avsc");

static CATALOG: LazyLock<Catalog> =
    LazyLock::new(|| Catalog::built_in().expect("the built-in views"));

/// A running installation.
struct RunningService {
    runtime: Runtime,
    serving: Serving,
    _world: World,
}

static SERVICE: LazyLock<RunningService> = LazyLock::new(|| {
    let runtime = Runtime::new().expect("a runtime");
    let (world, serving) = runtime.block_on(async {
        let world = World::new().await;
        ingest_and_run(&world).await;
        let serving = world.serving();
        (world, serving)
    });
    RunningService {
        runtime,
        serving,
        _world: world,
    }
});

/// The data folder of an installation with runs. The file names in its manifests are random, so a
/// fuzzer keeps using the folder that it has.
static INSTALLATION_FOLDER: LazyLock<PathBuf> = LazyLock::new(|| {
    let cached = fuzz_folder().map(|folder| folder.join("installation"));
    if let Some(cached) = cached.as_ref().filter(|cached| cached.exists()) {
        return cached.clone();
    }
    let created = tempfile::tempdir().expect("a folder").keep();
    let runtime = Runtime::new().expect("a runtime");
    runtime.block_on(async {
        let world = World::open(&created).await;
        ingest_and_run(&world).await;
        drop(world);
        crate::folder::wait_until_closed(&created).await;
    });
    let Some(cached) = cached else { return created };
    let new = cached.with_extension("new");
    crate::folder::copy(&created, &new);
    fs::rename(new, &cached).expect("a folder");
    cached
});

/// Ingests plays, runs a batch over them, and ingests newer ones.
async fn ingest_and_run(world: &World) {
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
    let authorizations = (1..4).map(|id| {
        format!(
            r#"{{"id":{id},"application_id":1,"athlete_id":{id},"created_at":"2026-03-01T10:00:00Z"}}"#
        )
    });
    let authorizations: Vec<String> = authorizations.collect();
    world
        .ingest_into(Source::Authorizations, &authorizations)
        .await;
    world.catch_up_on(Source::Authorizations).await;
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

/// Resolves every schema id to the schema of these records.
fn writers(record: &[u8], schema: &str) -> WriterSchemas {
    let mut writers = WriterSchemas::default();
    for id in schema_ids([record]) {
        writers.insert(id, Ok(Arc::from(schema)));
    }
    writers
}

/// A record is accepted or rejected with a reason, identically in each way of reading it.
fn records(bytes: &[u8]) {
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
        drop(CacheMiss::decode(source, bytes));
    }
}

/// Every key that can be decoded equals the encoding of its values.
fn keys(bytes: &[u8]) {
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
            let encoded = shape.encode_values(&values);
            assert_eq!(encoded.as_deref(), Ok(bytes), "{}", job.name());
        }
    }
}

/// Both files with [`BETWEEN_FILES`] between them: an error names its file.
fn definitions(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    let (definition, sql) = text.split_once(BETWEEN_FILES).unwrap_or((&text, ""));
    let root = tempfile::tempdir().expect("a folder");
    let folder = root.path().join("strange");
    fs::create_dir(&folder).expect("a folder");
    fs::write(folder.join("job.toml"), definition).expect("a file");
    fs::write(folder.join("query.sql"), sql).expect("a file");
    if let Err(error) = Catalog::read(root.path()) {
        let message = error.to_string();
        assert!(message.contains("strange"), "{message}");
    }
}

/// No answer is an internal error, and every error is JSON.
fn questions(bytes: &[u8]) {
    let path = with_cursor(&String::from_utf8_lossy(bytes));
    if path.starts_with(ENDLESS) {
        return;
    }
    let RunningService {
        runtime, serving, ..
    } = &*SERVICE;
    let response = runtime.block_on(async { timeout(CHECK_TIMEOUT, serving.get(&path)).await });
    // An invalid path does not reach the service.
    let Ok((status, body)) = response.expect("an answer in time") else {
        return;
    };
    assert!(status < 500, "{path}: {status} {body}");
    if status >= 400 && path.starts_with("/api/") {
        let problem: serde_json::Value = serde_json::from_str(&body).expect("a problem");
        assert_eq!(problem["status"], status, "{path}: {body}");
    }
}

/// Encodes the plain cursor of a path as the API does.
fn with_cursor(path: &str) -> String {
    match path.split_once(OPEN_CURSOR) {
        None => path.to_owned(),
        Some((before, text)) => format!("{before}cursor={}", URL_SAFE_NO_PAD.encode(text)),
    }
}

/// Returns paths with plain cursors, each of a second page.
fn open_cursors() -> impl Iterator<Item = String> {
    let RunningService {
        runtime, serving, ..
    } = &*SERVICE;
    let open = |path: &&str| {
        let response = runtime.block_on(serving.get(path));
        let (_, body) = response.expect("an answer");
        let page: serde_json::Value = serde_json::from_str(&body).expect("a page");
        let cursor = page["cursor"].as_str();
        let cursor = cursor.unwrap_or_else(|| panic!("{path}: {body}"));
        let text = URL_SAFE_NO_PAD.decode(cursor).expect("a cursor");
        format!("{path}&{OPEN_CURSOR}{}", String::from_utf8_lossy(&text))
    };
    PAGED.iter().map(open)
}

/// Returns the lines of a file of cases.
fn lines(cases: &str) -> impl Iterator<Item = Vec<u8>> {
    cases.lines().map(|line| line.as_bytes().to_vec())
}

fn record_cases() -> Vec<Vec<u8>> {
    let hex = include_str!("../hostile/cases/records.hex").lines();
    lines(include_str!("../hostile/cases/records.txt"))
        .chain(hex.map(from_hex))
        .collect()
}

/// Decodes bytes from two hexadecimal digits each.
fn from_hex(line: &str) -> Vec<u8> {
    let index = (0..line.len()).step_by(2);
    let bytes = index.map(|index| u8::from_str_radix(&line[index..index + 2], 16));
    bytes.collect::<Result<_, _>>().expect("digits")
}

fn question_cases() -> Vec<Vec<u8>> {
    let cursors = open_cursors().map(String::into_bytes);
    lines(include_str!("../hostile/cases/questions.txt"))
        .chain(cursors)
        .collect()
}

/// Returns the built-in definitions, but without a base view: the check has none and would refuse
/// them.
fn definition_cases() -> Vec<Vec<u8>> {
    let views = Path::new(env!("CARGO_MANIFEST_DIR")).join("../jobs/views");
    let views = fs::read_dir(views).expect("the views").flatten();
    let text = |path: PathBuf| fs::read_to_string(path).expect("a file");
    let cases = views.map(|view| {
        let definition = text(view.path().join("job.toml"));
        let lines = definition.lines().filter(|line| !line.starts_with("over"));
        let definition = lines.collect::<Vec<_>>().join("\n");
        let sql = text(view.path().join("query.sql"));
        [definition.as_str(), BETWEEN_FILES, &sql]
            .concat()
            .into_bytes()
    });
    cases.collect()
}

/// Returns row keys of each view.
fn key_cases() -> Vec<Vec<u8>> {
    let jobs = CATALOG.jobs().iter();
    let encoded = jobs.filter_map(|job| {
        let columns = job.row().0.iter();
        let values = columns.map(|column| match column.kind {
            KeyKind::Int => KeyValue::Int(-7),
            KeyKind::Text => KeyValue::Text("D\u{e9}".to_owned()),
            KeyKind::Time => KeyValue::Time(1_772_359_200),
            KeyKind::Instant => KeyValue::Instant(1_772_359_200_000_001),
        });
        job.row().encode_values(&values.collect::<Vec<_>>()).ok()
    });
    encoded.collect()
}

/// Returns the contents of each manifest, after the byte that selects it.
fn manifest_cases() -> Vec<Vec<u8>> {
    let files = manifest_files(&INSTALLATION_FOLDER);
    assert!(files.len() > 3, "{files:?}");
    let case = |(selector, path): (u8, PathBuf)| {
        let bytes = fs::read(path).expect("a manifest");
        let body = bytes.split(|byte| *byte == b'\n').next();
        [&[selector], body.unwrap_or_default()].concat()
    };
    (0..).zip(files).map(case).collect()
}

/// Replaces one manifest of an installation, with a valid checksum. The next run ends with a report
/// or an error.
fn manifests(bytes: &[u8]) {
    let Some((selector, body)) = bytes.split_first() else {
        return;
    };
    let folder = tempfile::tempdir().expect("a folder");
    crate::folder::copy(&INSTALLATION_FOLDER, folder.path());
    let files = manifest_files(folder.path());
    let path = &files[usize::from(*selector) % files.len()];
    let mut file = body.to_vec();
    let checksum = format!("\n{{\"xxh3\":\"{:016x}\"}}\n", xxh3_64(body));
    file.extend_from_slice(checksum.as_bytes());
    fs::write(path, file).expect("a manifest");
    let runtime = Runtime::new().expect("a runtime");
    runtime.block_on(async {
        let world = World::open(folder.path()).await;
        let run = timeout(CHECK_TIMEOUT, world.run(&RunRequest::default())).await;
        drop(run.expect("it ends"));
    });
}

/// Returns the manifests of an installation in a fixed order.
fn manifest_files(folder: &Path) -> Vec<PathBuf> {
    let files = crate::folder::files(&folder.join("archive")).into_iter();
    let manifests = files.filter(|path| fs::read(path).is_ok_and(|bytes| has_checksum(&bytes)));
    manifests.collect()
}

fn has_checksum(bytes: &[u8]) -> bool {
    let mut lines = bytes.split(|byte| *byte == b'\n').skip(1);
    lines
        .next()
        .is_some_and(|line| line.starts_with(b"{\"xxh3\":"))
}
