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

/// Less free space than this is a fault.
const SPARE_BYTES_MIN: u64 = 1024 * 1024 * 1024;
/// Reads per partition of the log.
const PROBES: i64 = 16;
const PROBE: FetchLimit = FetchLimit {
    records: 100,
    bytes: 4 * 1024 * 1024,
};

/// Result of one check.
#[derive(Debug, Serialize)]
struct Finding {
    what: String,
    ok: bool,
    /// The check passed, but a change is recommended.
    warning: bool,
    says: String,
}

/// Results of all checks.
#[derive(Debug, Default, Serialize)]
struct Findings {
    ok: bool,
    checks: Vec<Finding>,
}

impl Findings {
    fn note(&mut self, what: impl Into<String>, found: anyhow::Result<String>) {
        self.checks.push(Finding {
            what: what.into(),
            ok: found.is_ok(),
            warning: false,
            says: found.unwrap_or_else(|error| format!("{error:#}")),
        });
    }

    fn warn(&mut self, what: impl Into<String>, says: String) {
        self.checks.push(Finding {
            what: what.into(),
            ok: true,
            warning: true,
            says,
        });
    }
}

/// Runs the command.
pub(super) async fn run(context: &Context) -> anyhow::Result<()> {
    let options = context.settings().stores();
    let folder = options.folder();
    let mut findings = Findings::default();
    if options.has_embedded() {
        findings.note("data folder", can_write(&folder));
        if let Some(says) = readable_by_others(&options.data_dir, &folder) {
            findings.warn("data folder's permissions", says);
        }
        findings.note("spare disk", free_space(&folder));
    }
    let mut are_servers_ok = true;
    for server in options.servers()? {
        let found = server_check(&*server).await;
        are_servers_ok &= found.is_ok();
        findings.note(server.name(), found);
    }
    // A faulty server would only make the checks of its stores fail, too.
    if are_servers_ok {
        match Installation::open_existing(context.settings()).await {
            Ok(installation) => stores(&installation, &mut findings).await,
            Err(error) => findings.note("stores", Err(error)),
        }
    }
    findings.ok = findings.checks.iter().all(|check| check.ok);
    context.output().result(&findings, |findings| {
        findings
            .checks
            .iter()
            .map(|check| {
                let mark = match (check.ok, check.warning) {
                    (true, false) => "ok   ",
                    (true, true) => "WARN ",
                    (false, _) => "WRONG",
                };
                format!("{mark}  {}: {}\n", check.what, check.says)
            })
            .collect()
    })?;
    let wrong: Vec<&str> = findings
        .checks
        .iter()
        .filter(|check| !check.ok)
        .map(|check| check.what.as_str())
        .collect();
    anyhow::ensure!(wrong.is_empty(), "failed checks: {}", wrong.join(", "));
    Ok(())
}

async fn stores(installation: &Installation, findings: &mut Findings) {
    for source in Source::ALL {
        let topic = source.dead_letter_topic();
        findings.note(format!("log {topic}"), log(installation, topic).await);
    }
    for source in Source::LOGGED {
        let topic = source.topic();
        findings.note(format!("log {topic}"), log(installation, topic).await);
        findings.note(format!("live {source}"), live(installation, source).await);
        findings.note(format!("views {source}"), views(installation, source).await);
    }
    findings.note("archive", archive(installation).await);
    findings.note("entity store", entities(installation).await);
    for source in Source::LOGGED {
        if source.kind() == SourceKind::Events {
            let found = archived_events(installation, source).await;
            findings.note(format!("archive {source}"), found);
        }
    }
}

/// Checks the configuration of a server.
async fn server_check(server: &dyn Server) -> anyhow::Result<String> {
    let diagnostics = server.diagnostics().await?;
    anyhow::ensure!(diagnostics.is_empty(), "{}", diagnostics.join("; "));
    Ok("answers, and is set up correctly".to_owned())
}

/// Writes a file to the folder and reads it back.
fn can_write(folder: &Path) -> anyhow::Result<String> {
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
    let read = probe().map_err(|error| {
        anyhow::anyhow!(
            "{} is not writable: {error}; change its permissions, or name another with --data-dir",
            folder.display()
        )
    })?;
    anyhow::ensure!(
        read == b"probe",
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
fn readable_by_others(data_dir: &Path, folder: &Path) -> Option<String> {
    let mode = |path: &Path| Some(std::fs::metadata(path).ok()?.permissions().mode() & 0o777);
    let is_wide = |path: &Path| mode(path).is_some_and(|mode| mode & 0o077 != 0);
    let wide = mode(folder).filter(|_| is_wide(data_dir) && is_wide(folder))?;
    Some(format!(
        "{} has the mode {wide:o}: other users of this machine can read events, keys' digests and the list of erasures; \
         run `chmod -R go= {}`",
        folder.display(),
        folder.display()
    ))
}

fn free_space(folder: &Path) -> anyhow::Result<String> {
    let found = rustix::fs::statvfs(folder)?;
    let bytes = found.f_bavail.saturating_mul(found.f_frsize);
    let mebibytes = bytes / (1024 * 1024);
    anyhow::ensure!(
        bytes >= SPARE_BYTES_MIN,
        "only {mebibytes} MiB are free; free at least 1 GiB: a batch run writes a new result before it deletes the old one"
    );
    Ok(format!("{mebibytes} MiB are free"))
}

/// Reads samples of each partition; the store verifies their checksums.
async fn log(installation: &Installation, topic: &str) -> anyhow::Result<String> {
    let log = &installation.stores().log;
    let spans = log.spans(topic).await?;
    let mut records = 0;
    for (partition, Span { start, end }) in (0..).zip(spans.iter().copied()) {
        anyhow::ensure!(
            start <= end,
            "partition {partition} begins at {start} and ends at {end}"
        );
        records += end - start;
        let step = ((end - start) / PROBES).max(1);
        let mut next = start;
        while next < end {
            let fetched = log.fetch(topic, partition, next, PROBE).await?;
            anyhow::ensure!(
                fetched.next_offset > next,
                "partition {partition} has no records at offset {next}, but ends at {end}"
            );
            next = fetched.next_offset.max(next + step);
        }
        if start < end {
            log.fetch(topic, partition, end - 1, PROBE).await?;
        }
    }
    Ok(format!("{} partitions, {records} records", spans.len()))
}

/// Checks that partition states match the run records and the log.
async fn live(installation: &Installation, source: Source) -> anyhow::Result<String> {
    let stores = installation.stores();
    let spans = stores.log.spans(source.topic()).await?;
    let partitions = u32::try_from(spans.len())?;
    // The order matters: partition states before runs, as readers do.
    let slots = stores.live.partition_states(source, 0..partitions).await?;
    let runs = stores.views.runs(source).await?.runs;
    let newest = runs.newest();
    let mut behind = 0;
    let mut missing = 0;
    for ((partition, number), (slot, span)) in (0..).zip(0..).zip(slots.iter().zip(&spans)) {
        let Some(slot) = slot else {
            missing += 1;
            let cut = runs.cut(newest, partition).map_or(0, |cut| cut.next_offset);
            behind += span.end.saturating_sub(cut).max(0);
            continue;
        };
        if let Some(last) = slot.position.last {
            let known = verify_log_identity(&*stores.log, source.topic(), number, last).await?;
            known.map_err(|other| {
                anyhow::anyhow!(
                    "the live state of partition {partition} belongs to another log: {other}. {LOST_REMEDY}"
                )
            })?;
        }
        anyhow::ensure!(
            !needs_rebuild(slot, partition, &runs),
            "the live state of partition {partition} does not match the newest batch run; start the speed layer, which rebuilds it"
        );
        let next = slot.position.next_offset;
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
        behind += span.end - next;
    }
    Ok(format!(
        "{} partitions, {missing} without live state, {behind} events behind the log",
        partitions
    ))
}

/// Reads every table, and checks that the log contains the cuts of all runs.
async fn views(installation: &Installation, source: Source) -> anyhow::Result<String> {
    let stores = installation.stores();
    let seen = stores.views.runs(source).await?;
    let spans = stores.log.spans(source.topic()).await?;
    anyhow::ensure!(
        spans.len() >= seen.runs.partitions(),
        "a run has cuts in {} partitions, but the log has {}: the log was lost. {LOST_REMEDY}",
        seen.runs.partitions(),
        spans.len()
    );
    for run in seen.runs.iter() {
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
    let catalog = installation.catalog()?;
    let mut views = 0;
    for job in catalog.jobs().iter().filter(|job| job.source() == source) {
        let nothing = PartitionQuery {
            partition: vec![0; 8],
            range: (Vec::new(), None),
        };
        stores.views.rows(job.view(), &[nothing]).await?;
        views += 1;
    }
    let boards = catalog.boards().iter();
    for job in boards.filter(|job| job.source() == source) {
        stores.views.heads(job.view(), &[Vec::new()]).await?;
        views += 1;
    }
    Ok(format!(
        "{views} views, newest complete run {}",
        seen.runs.newest()
    ))
}

/// Reads the entity store, and counts pending notifications.
async fn entities(installation: &Installation) -> anyhow::Result<String> {
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
async fn archive(installation: &Installation) -> anyhow::Result<String> {
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
async fn archived_events(installation: &Installation, source: Source) -> anyhow::Result<String> {
    let batch = installation.batch(&installation.engine()?)?;
    let (files, events) = batch.check_archive(source).await?;
    Ok(format!("{files} files of {events} events"))
}
