//! `check`: tests that each store can be read and written, and that the stores agree.

use std::io::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use schemas::seam::needs_rebuild;
use schemas::source::{Source, SourceKind};
use serde::Serialize;
use stores::Server;
use stores::log::{FetchLimit, LOST_REMEDY, Span, verify_log_identity};
use stores::views::PartitionQuery;

use super::Context;
use crate::installation::Installation;

/// Minimum free space; less is a fault.
const SPARE_BYTES_MIN: u64 = 1024 * 1024 * 1024;
const PROBES_PER_PARTITION: i64 = 16;
const PROBE_LIMIT: FetchLimit = FetchLimit {
    records: 100,
    bytes: 4 * 1024 * 1024,
};

/// Result of one check.
#[derive(Debug, Serialize)]
struct CheckResult {
    #[serde(rename = "what")]
    subject: String,
    ok: bool,
    /// The check passed, but a change is recommended.
    warning: bool,
    #[serde(rename = "says")]
    message: String,
}

/// Results of all checks.
#[derive(Debug, Default, Serialize)]
struct CheckResults {
    ok: bool,
    checks: Vec<CheckResult>,
}

impl CheckResults {
    fn add(&mut self, subject: impl Into<String>, result: anyhow::Result<String>) {
        self.checks.push(CheckResult {
            subject: subject.into(),
            ok: result.is_ok(),
            warning: false,
            message: result.unwrap_or_else(|error| format!("{error:#}")),
        });
    }

    fn add_warning(&mut self, subject: impl Into<String>, message: String) {
        self.checks.push(CheckResult {
            subject: subject.into(),
            ok: true,
            warning: true,
            message,
        });
    }
}

/// Runs the command.
pub(super) async fn run(context: &Context) -> anyhow::Result<()> {
    let options = context.settings().stores_options();
    let folder = options.folder();
    let mut results = CheckResults::default();
    if options.has_embedded() {
        results.add("data folder", check_folder_writable(&folder));
        if let Some(message) = describe_wide_permissions(&options.data_dir, &folder) {
            results.add_warning("data folder's permissions", message);
        }
        results.add("spare disk", check_free_space(&folder));
    }
    let mut are_servers_ok = true;
    for server in options.servers()? {
        let result = check_server(&*server).await;
        are_servers_ok &= result.is_ok();
        results.add(server.name(), result);
    }
    // A faulty server would only make the checks of its stores fail, too.
    if are_servers_ok {
        match Installation::open_existing(context.settings()).await {
            Ok(installation) => check_stores(&installation, &mut results).await,
            Err(error) => results.add("stores", Err(error)),
        }
    }
    results.ok = results.checks.iter().all(|check| check.ok);
    context.output().print_result(&results, |results| {
        results
            .checks
            .iter()
            .map(|check| {
                let mark = match (check.ok, check.warning) {
                    (true, false) => "ok   ",
                    (true, true) => "WARN ",
                    (false, _) => "WRONG",
                };
                format!("{mark}  {}: {}\n", check.subject, check.message)
            })
            .collect()
    })?;
    let failed: Vec<&str> = results
        .checks
        .iter()
        .filter(|check| !check.ok)
        .map(|check| check.subject.as_str())
        .collect();
    anyhow::ensure!(failed.is_empty(), "failed checks: {}", failed.join(", "));
    Ok(())
}

async fn check_stores(installation: &Installation, results: &mut CheckResults) {
    for source in Source::ALL {
        let topic = source.dead_letter_topic();
        results.add(format!("log {topic}"), check_log(installation, topic).await);
    }
    for source in Source::LOGGED {
        let topic = source.topic();
        results.add(format!("log {topic}"), check_log(installation, topic).await);
        results.add(
            format!("live {source}"),
            check_live_state(installation, source).await,
        );
        results.add(
            format!("views {source}"),
            check_views(installation, source).await,
        );
    }
    results.add("archive", check_archive(installation).await);
    results.add("entity store", check_entity_store(installation).await);
    for source in Source::LOGGED {
        if source.kind() == SourceKind::Events {
            let result = check_archived_events(installation, source).await;
            results.add(format!("archive {source}"), result);
        }
    }
}

/// Checks the configuration of a server.
async fn check_server(server: &dyn Server) -> anyhow::Result<String> {
    let diagnostics = server.diagnostics().await?;
    anyhow::ensure!(diagnostics.is_empty(), "{}", diagnostics.join("; "));
    Ok("answers, and is set up correctly".to_owned())
}

/// Writes a file to the folder and reads it back.
fn check_folder_writable(folder: &Path) -> anyhow::Result<String> {
    anyhow::ensure!(
        folder.is_dir() || !folder.exists(),
        "{} is not a folder; name another with --data-dir",
        folder.display()
    );
    anyhow::ensure!(
        folder.is_dir(),
        "{} does not exist; name another with --data-dir, or run `backstitch ingest` first",
        folder.display()
    );
    let probe = || {
        let mut file = tempfile::NamedTempFile::new_in(folder)?;
        file.write_all(b"probe")?;
        file.as_file().sync_all()?;
        std::fs::read(file.path())
    };
    let bytes = probe().map_err(|error| {
        anyhow::anyhow!(
            "{} is not writable: {error}; change its permissions, or name another with --data-dir",
            folder.display()
        )
    })?;
    anyhow::ensure!(
        bytes == b"probe",
        "{} returns other bytes than were written",
        folder.display()
    );
    for entry in std::fs::read_dir(folder)?.flatten() {
        let path = entry.path();
        if path.extension().is_some_and(|extension| extension == "db") {
            std::fs::OpenOptions::new()
                .append(true)
                .open(&path)
                .map_err(|error| {
                    anyhow::anyhow!(
                        "{} is not writable: {error}; change its permissions",
                        path.display()
                    )
                })?;
        }
    }
    Ok(format!("{} is writable", folder.display()))
}

/// Returns a warning if other users of this machine can read a folder in the data folder.
fn describe_wide_permissions(data_dir: &Path, folder: &Path) -> Option<String> {
    let mode = |path: &Path| Some(std::fs::metadata(path).ok()?.permissions().mode() & 0o777);
    let is_shared = |path: &Path| mode(path).is_some_and(|mode| mode & 0o077 != 0);
    let folder_mode = mode(folder).filter(|_| is_shared(data_dir) && is_shared(folder))?;
    Some(format!(
        "{} has the mode {folder_mode:o}: other users of this machine can read events, keys' digests and the list of erasures; \
         run `chmod -R go= {}`",
        folder.display(),
        folder.display()
    ))
}

fn check_free_space(folder: &Path) -> anyhow::Result<String> {
    let file_system = rustix::fs::statvfs(folder)?;
    let bytes = file_system.f_bavail.saturating_mul(file_system.f_frsize);
    let mebibytes = bytes / (1024 * 1024);
    anyhow::ensure!(
        bytes >= SPARE_BYTES_MIN,
        "only {mebibytes} MiB are free; free at least 1 GiB: a batch run writes a new result before it deletes the old one"
    );
    Ok(format!("{mebibytes} MiB are free"))
}

/// Reads samples of each partition; the store verifies their checksums.
async fn check_log(installation: &Installation, topic: &str) -> anyhow::Result<String> {
    let log = &installation.stores().log;
    let spans = log.spans(topic).await?;
    let mut records = 0;
    for (partition, Span { start, end }) in (0..).zip(spans.iter().copied()) {
        anyhow::ensure!(
            start <= end,
            "partition {partition} begins at {start} and ends at {end}"
        );
        records += end - start;
        let step = ((end - start) / PROBES_PER_PARTITION).max(1);
        let mut next = start;
        while next < end {
            let fetched = log.fetch(topic, partition, next, PROBE_LIMIT).await?;
            anyhow::ensure!(
                fetched.next_offset > next,
                "partition {partition} has no records at offset {next}, but ends at {end}"
            );
            next = fetched.next_offset.max(next + step);
        }
        if start < end {
            log.fetch(topic, partition, end - 1, PROBE_LIMIT).await?;
        }
    }
    Ok(format!("{} partitions, {records} records", spans.len()))
}

/// Checks that partition states match the run records and the log.
async fn check_live_state(installation: &Installation, source: Source) -> anyhow::Result<String> {
    let stores = installation.stores();
    let spans = stores.log.spans(source.topic()).await?;
    let partitions = u32::try_from(spans.len())?;
    // The order matters: partition states before runs, as readers do.
    let states = stores.live.partition_states(source, 0..partitions).await?;
    let runs = stores.views.runs(source).await?.runs;
    let newest = runs.newest_complete();
    let mut lag = 0;
    let mut missing = 0;
    for ((partition, number), (state, span)) in (0..).zip(0..).zip(states.iter().zip(&spans)) {
        let Some(state) = state else {
            missing += 1;
            let cut = runs.cut(newest, partition).map_or(0, |cut| cut.next_offset);
            lag += span.end.saturating_sub(cut).max(0);
            continue;
        };
        if let Some(last) = state.position.last {
            let identity = verify_log_identity(&*stores.log, source.topic(), number, last).await?;
            identity.map_err(|error| {
                anyhow::anyhow!(
                    "the live state of partition {partition} belongs to another log: {error}. {LOST_REMEDY}"
                )
            })?;
        }
        anyhow::ensure!(
            !needs_rebuild(state, partition, &runs),
            "the live state of partition {partition} does not match the newest batch run; start the speed layer, which rebuilds it"
        );
        let next = state.position.next_offset;
        anyhow::ensure!(
            next <= span.end,
            "the live state of partition {partition} is at offset {next}, but the log ends at {}: the log was lost or recreated. {LOST_REMEDY}",
            span.end
        );
        anyhow::ensure!(
            next >= span.start,
            "the live state of partition {partition} is at offset {next}, but the log begins at {}: records in between are deleted",
            span.start
        );
        lag += span.end - next;
    }
    Ok(format!(
        "{} partitions, {missing} without live state, {lag} events behind the log",
        partitions
    ))
}

/// Reads every table, and checks that the log contains the cuts of all runs.
async fn check_views(installation: &Installation, source: Source) -> anyhow::Result<String> {
    let stores = installation.stores();
    let run_records = stores.views.runs(source).await?;
    let spans = stores.log.spans(source.topic()).await?;
    anyhow::ensure!(
        spans.len() >= run_records.runs.partition_count(),
        "a run has cuts in {} partitions, but the log has {}: the log was lost. {LOST_REMEDY}",
        run_records.runs.partition_count(),
        spans.len()
    );
    for run in run_records.runs.iter() {
        for (partition, (cut, span)) in run.cuts.iter().zip(&spans).enumerate() {
            anyhow::ensure!(
                cut.next_offset <= span.end,
                "run {} was cut at offset {} of partition {partition}, but the log ends at {}: the log was lost or recreated. {LOST_REMEDY}",
                run.epoch,
                cut.next_offset,
                span.end
            );
        }
    }
    let catalog = installation.load_catalog()?;
    let mut views = 0;
    for job in catalog.jobs().iter().filter(|job| job.source() == source) {
        let empty_query = PartitionQuery {
            partition: vec![0; 8],
            range: (Vec::new(), None),
        };
        stores.views.rows(job.view(), &[empty_query]).await?;
        views += 1;
    }
    let boards = catalog.boards().iter();
    for job in boards.filter(|job| job.source() == source) {
        stores.views.heads(job.view(), &[Vec::new()]).await?;
        views += 1;
    }
    Ok(format!(
        "{views} views, newest complete run {}",
        run_records.runs.newest_complete()
    ))
}

/// Reads the entity store, and counts pending notifications.
async fn check_entity_store(installation: &Installation) -> anyhow::Result<String> {
    let entities = &installation.stores().entities;
    entities.applications(None, 1).await?;
    let mut pending = 0;
    for source in Source::LOGGED {
        pending += entities.outbox_status(source).await?.notifications;
    }
    Ok(match pending {
        0 => "readable, every change is in the log".to_owned(),
        _ => format!(
            "readable, {pending} changes wait for publication; `backstitch speed` publishes them"
        ),
    })
}

/// Lists the archive, and writes, reads and deletes a file.
async fn check_archive(installation: &Installation) -> anyhow::Result<String> {
    let archive = &installation.stores().archive;
    let objects = archive.list("").await?.len();
    let path = format!("check/{}", uuid::Uuid::new_v4());
    archive.put(&path, "probe".into()).await?;
    let read = archive.get(&path).await?;
    archive.delete(&path).await?;
    anyhow::ensure!(
        read.is_some_and(|bytes| bytes == "probe"),
        "a written file cannot be read back"
    );
    Ok(format!("{objects} files, writable"))
}

/// Checks that the archive of a source is complete and belongs to this log.
async fn check_archived_events(
    installation: &Installation,
    source: Source,
) -> anyhow::Result<String> {
    let batch = installation.create_batch(&installation.create_engine()?)?;
    let (files, events) = batch.check_archive(source).await?;
    Ok(format!("{files} files of {events} events"))
}
