//! `reconcile`: compares served values with expected ones, and repairs differences.

use std::collections::BTreeSet;

use batch::{
    Applied, Difference, Reconciled, Recorded, Restoration, RestorationKind, RestoreCause as Cause,
    RestoreOutcome, RestoreReport, RestoreRequest, When,
};
use schemas::json_value::format_timestamp_ms;
use schemas::source::Source;
use serde_json::Value;
use stores::approvals::{self, Approval, NotApproved};
use tokio_util::sync::CancellationToken;

use super::Context;
use crate::args::{CompareArgs, DecisionArgs, ReconcileArgs, ReconcileCommand};
use crate::failure::{Differs, usage};
use crate::installation::Installation;
use crate::progress::Stages;
use crate::reconciling;
use crate::settings::ReconciliationSpec;

const UNCOMPARED: &str = "some keys could not be compared, so differences among them are unknown";

/// Runs the command.
pub(super) async fn run(
    args: &ReconcileArgs,
    context: &Context,
    stop: CancellationToken,
) -> anyhow::Result<()> {
    match &args.command {
        None => match args.compare.scheduled.as_deref() {
            Some(name) => scheduled(name, context, stop).await,
            None => compare(&args.compare, context, stop).await,
        },
        Some(ReconcileCommand::List {
            source,
            comparisons: true,
            limit,
        }) => comparisons(context, *source, usize::try_from(*limit)?).await,
        Some(ReconcileCommand::List { source, .. }) => list(context, *source).await,
        Some(ReconcileCommand::Approve(decided)) => approve(context, decided).await,
        Some(ReconcileCommand::Undo(decided)) => undo(context, decided, stop).await,
    }
}

async fn compare(
    args: &CompareArgs,
    context: &Context,
    stop: CancellationToken,
) -> anyhow::Result<()> {
    let request = request(args)?;
    let installation = Installation::open_existing(context.settings()).await?;
    let catalog = installation.catalog()?;
    let known = catalog.names().find(|(name, _)| *name == request.view);
    let source = known.map_or(Source::Plays, |(_, source)| source);
    let batch = installation.batch(&installation.engine()?)?;
    let intake = installation.intake(source).await?;
    let report = batch
        .restore(&request, &intake, (&Stages::default(), &stop))
        .await
        .map_err(usage_or_failure)?;
    context.output().result(&report, text_of)?;
    let applied = report.applied.as_ref();
    let is_left = report.held_back.is_some() || applied.is_none_or(|applied| applied.damaged > 0);
    if report.differ > 0 && is_left {
        return Err(Differs::default().into());
    }
    if report.ahead > 0 || (applied.is_none() && report.live_unknown.is_some()) {
        anyhow::bail!(UNCOMPARED);
    }
    Ok(())
}

/// Runs scheduled reconciliations: those that are due, or the named one. A failed one does not stop the others.
async fn scheduled(name: &str, context: &Context, stop: CancellationToken) -> anyhow::Result<()> {
    let installation = Installation::open_existing(context.settings()).await?;
    let batch = installation.batch(&installation.engine()?)?;
    let (only, when) = match name {
        "" => (None, When::Due),
        name => (Some(name), When::Now),
    };
    let all = reconciling::scheduled(&installation, only).await?;
    let (mut done, mut failed) = (Vec::new(), None);
    for one in &all {
        let stages = Stages::default();
        match Box::pin(batch.reconcile(one, when, (&stages, &stop))).await {
            Ok(reconciled) => done.push(reconciled),
            Err(error) => {
                let error = anyhow::Error::from(error);
                failed.get_or_insert(error.context(format!("reconciliation {}", one.name)));
            }
        }
    }
    context
        .output()
        .result(&done, |done| done.iter().map(reconciled).collect())?;
    if let Some(error) = failed {
        return Err(error);
    }
    let is_any = |of: [RestoreOutcome; 2]| {
        let mut done = done.iter();
        done.any(|one| matches!(one, Reconciled::Done { outcome, .. } if of.contains(outcome)))
    };
    if is_any([RestoreOutcome::Failed, RestoreOutcome::Unknown]) {
        anyhow::bail!(UNCOMPARED);
    }
    if is_any([RestoreOutcome::Differs, RestoreOutcome::HeldBack]) {
        return Err(Differs::default().into());
    }
    Ok(())
}

fn reconciled(one: &Reconciled) -> String {
    match one {
        Reconciled::NotDue {
            schedule,
            due_at_ms,
        } => format!(
            "{schedule}: not due before {}\n",
            format_timestamp_ms(*due_at_ms)
        ),
        Reconciled::Passed { schedule, holder } => {
            format!("{schedule}: {holder} is running it\n")
        }
        Reconciled::Done {
            schedule,
            outcome,
            alerts,
            reports,
            failed,
        } => {
            let mut text = format!("{schedule}: {}", outcome.name());
            text.push_str(&match alerts {
                0 => "\n".to_owned(),
                1 => ", 1 alert\n".to_owned(),
                alerts => format!(", {alerts} alerts\n"),
            });
            text.extend(reports.iter().map(text_of));
            for (view, why) in failed {
                text.push_str(&format!("{view}: {why}\n"));
            }
            text
        }
    }
}

/// Lists comparisons, newest first.
async fn comparisons(context: &Context, source: Source, limit: usize) -> anyhow::Result<()> {
    let installation = Installation::open_existing(context.settings()).await?;
    let records = &*installation.stores().records;
    let all = stores::reconciliations::list(records, source, None, limit).await?;
    let shown = all.into_iter().map(|one| {
        let mut record = one.record;
        if let Some(record) = record.as_object_mut() {
            record.insert("number".to_owned(), one.number.into());
            record.insert("at".to_owned(), format_timestamp_ms(one.at_ms).into());
        }
        record
    });
    let shown: Vec<Value> = shown.collect();
    let none = format!("no comparisons of {source} yet");
    context.output().list(&shown, &none, compared)
}

fn compared(record: &Value) -> String {
    let field = |name: &str| shown(&record[name]);
    let mut text = format!(
        "{}  {}  {}  {} against {}: {} keys, {} differ, {} in all; by {}",
        field("number"),
        field("at"),
        field("outcome"),
        field("view"),
        field("expected"),
        field("keys"),
        field("differ"),
        field("total"),
        field("by"),
    );
    if let Some(restoration) = record["restoration"].as_u64() {
        text.push_str(&format!("; repair {restoration}"));
    }
    for why in ["reason", "held_back", "error"] {
        if let Some(why) = record[why].as_str().filter(|why| !why.is_empty()) {
            text.push_str(&format!(" ({why})"));
        }
    }
    text
}

/// An invalid request is an error of the command line.
fn usage_or_failure(error: batch::Error) -> anyhow::Error {
    match error {
        batch::Error::Request(what) => usage(what),
        error => error.into(),
    }
}

fn request(args: &CompareArgs) -> anyhow::Result<RestoreRequest> {
    let bearer = reconciling::bearer(
        args.bearer_file.as_deref().unwrap_or_default(),
        args.bearer_env.as_deref().unwrap_or_default(),
    )?;
    let spec = ReconciliationSpec {
        expected: args.expected.as_deref().unwrap_or("archive"),
        query: args.query.as_deref(),
        rename: &args.rename,
        keys: &args.keys,
        tolerance: &args.tolerance,
        set: &args.set,
        is_whole: args.whole,
        bearer: bearer.as_ref(),
    };
    let request = spec.request();
    let request = request.map_err(|(option, why)| usage(format!("--{option}: {why}")))?;
    Ok(RestoreRequest {
        view: args.view.clone().unwrap_or_default(),
        from: args.from.map(seconds_up),
        to: args.to.map(seconds_up),
        sample: args.sample,
        limit: usize::try_from(args.limit)?,
        apply: args.apply,
        apply_max: args.apply_max,
        by: args.actor.by.clone(),
        reason: args.reason.clone(),
        ..request
    })
}

/// Rounds milliseconds up to seconds: buckets begin on full seconds.
const fn seconds_up(millis: i64) -> i64 {
    -(-millis).div_euclid(1000)
}

fn text_of(report: &RestoreReport) -> String {
    let mut text = format!(
        "{} as of run {} against {}: {} keys compared in {:.2} s, {}",
        report.view,
        report.epoch,
        report.expected,
        report.keys,
        report.seconds,
        on_disk(report.disk_bytes)
    );
    text.push_str(&match report.differ {
        0 => "none differs\n".to_owned(),
        1 => format!("1 differs, by {}\n", report.total),
        differ => format!("{differ} differ, by {} in all\n", report.total),
    });
    for (cause, of) in &report.causes {
        let keys = if of.keys == 1 { "key" } else { "keys" };
        text.push_str(&format!(
            "  {} {keys}, {}: {} ({})\n",
            of.keys,
            of.total,
            cause.name(),
            why(*cause)
        ));
    }
    let is_board = report.expected == "canonical";
    text.push_str(&table(&report.differences, is_board));
    let omitted = report
        .differ
        .saturating_sub(report.differences.len() as u64);
    if omitted > 0 && !report.differences.is_empty() {
        text.push_str(&format!("  and {omitted} more (--limit shows more)\n"));
    }
    if let Some(why) = &report.live_unknown {
        text.push_str(&format!("  live state was not compared: {why}\n"));
    }
    if report.ahead > 0 {
        text.push_str(&format!(
            "  {} keys were skipped: an incomplete run has written them\n",
            report.ahead
        ));
    }
    if let Some(applied) = &report.applied {
        text.push_str(&done(applied));
    }
    if let Some(why) = &report.held_back {
        text.push_str(&format!("  nothing was repaired: {why}\n"));
    }
    for warning in &report.warnings {
        text.push_str(&format!("  warning: {warning}\n"));
    }
    text
}

/// Disk space of the comparison, if it used any.
fn on_disk(bytes: u64) -> String {
    match bytes >> 20 {
        0 => String::new(),
        mebibytes => format!("{mebibytes} MiB on disk, "),
    }
}

fn done(applied: &Applied) -> String {
    let mut text = String::new();
    for file in &applied.files {
        text.push_str(&format!("  rebuilt from the log: {file}\n"));
    }
    let deleted = "misplaced rows deleted";
    for (what, count) in [
        ("members counted again", applied.notifications),
        ("rows rewritten", applied.rows),
        (deleted, applied.deleted),
    ] {
        if count > 0 {
            text.push_str(&format!("  {what}: {count}\n"));
        }
    }
    if applied.corrections > 0
        && let Some(number) = applied.restoration
    {
        text.push_str(&format!(
            "  corrections appended: {}; `backstitch reconcile undo {number}` undoes them\n",
            applied.corrections
        ));
    }
    if let Some(run) = applied.run {
        text.push_str(&format!("  batch run {run} was published\n"));
    }
    if applied.damaged > 0 {
        text.push_str(&match applied.damaged {
            1 => "  1 key differs from its events".to_owned(),
            keys => format!("  {keys} keys differ from their events"),
        });
        text.push_str(", which corrections cannot repair; use `--expected archive --apply`\n");
    }
    if text.is_empty() {
        text.push_str("  nothing to repair\n");
    }
    text
}

/// Describes a cause.
const fn why(cause: Cause) -> &'static str {
    match cause {
        Cause::ChangedRow => "the batch row has a different count than the events",
        Cause::MissingRow => "the batch row is missing",
        Cause::ExtraRow => "no events for the batch row",
        Cause::MisplacedRow => "the batch row is in the partition of another time",
        Cause::UnreadableRow => "the key of the batch row is not valid for the view",
        Cause::LostLive => "live state counted too few events",
        Cause::Duplicate => {
            "an event was repeated after the deduplication window; the next run corrects it"
        }
        Cause::OtherPartition => {
            "an event was repeated in another partition; the next run corrects it"
        }
        Cause::Unexplained => "live state counted too many events",
        Cause::Claimed => "the served value equals all events, but another value is expected",
        Cause::ChangedLive => "live state differs from the entity store",
        Cause::NotTold => "rows of the entity store changed without a notification",
        Cause::Damaged => "batch rows of these keys are missing or damaged",
    }
}

/// Formats differences as a table: key columns, then expected and served value, and cause.
fn table(differences: &[Difference], is_board: bool) -> String {
    if differences.is_empty() {
        return String::new();
    }
    // Misplaced rows have other columns.
    let names: BTreeSet<&String> = differences.iter().flat_map(|one| one.key.keys()).collect();
    let has_bucket = !is_board && differences.iter().any(|one| one.bucket.is_some());
    let found: &[&str] = match is_board {
        true => &["expected", "served", "cause"],
        false => &[
            "expected",
            "stored",
            "live",
            "served",
            "difference",
            "cause",
        ],
    };
    let keys = names.iter().map(|name| name.as_str());
    let keys = keys.chain(has_bucket.then_some("bucket"));
    let header = keys.chain(found.iter().copied()).map(str::to_owned);
    let mut rows = vec![header.collect()];
    for one in differences {
        let keys = names.iter().map(|name| one.key.get(*name));
        let keys = keys.chain(has_bucket.then_some(one.bucket.as_ref()));
        let mut row: Vec<String> = keys.map(|key| shown(key.unwrap_or(&Value::Null))).collect();
        if is_board {
            row.push(board_row(one, one.expected_row.as_ref(), one.expected));
            row.push(board_row(one, one.served_row.as_ref(), one.served));
        } else {
            let count =
                |count: Option<i64>| count.map_or_else(|| "-".to_owned(), |n| n.to_string());
            row.push(one.expected.to_string());
            row.extend([count(one.stored), count(one.live), one.served.to_string()]);
            row.push(format!("{:+}", one.difference));
        }
        row.push(one.cause.name().to_owned());
        rows.push(row);
    }
    let rows_of_board = if is_board { 2 } else { 0 };
    in_columns(&rows, names.len() + usize::from(has_bucket) + rows_of_board)
}

/// Formats a row of a board, or the number of rows.
fn board_row(of: &Difference, row: Option<&Value>, count: i64) -> String {
    match row {
        Some(Value::Object(columns)) => {
            let there = columns.iter().filter(|(_, value)| !value.is_null());
            let pairs: Vec<String> = there
                .map(|(name, value)| format!("{name}={}", shown(value)))
                .collect();
            match pairs.is_empty() {
                true => "present".to_owned(),
                false => pairs.join(" "),
            }
        }
        _ if of.cause == Cause::Damaged => format!("{count} rows"),
        _ => "-".to_owned(),
    }
}

/// Formats rows as a table. The first `texts` columns and the last one align left.
fn in_columns(rows: &[Vec<String>], texts: usize) -> String {
    let columns = rows.first().map_or(0, Vec::len);
    let width = |column: usize| {
        let cells = rows.iter().filter_map(|row| row.get(column));
        cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let mut text = String::new();
    for row in rows {
        text.push(' ');
        for (column, (cell, width)) in row.iter().zip(&widths).enumerate() {
            let is_text = column < texts || column + 1 == columns;
            text.push_str(&match is_text {
                true => format!(" {cell:<width$} "),
                false => format!(" {cell:>width$} "),
            });
        }
        text.truncate(text.trim_end().len());
        text.push('\n');
    }
    text
}

fn shown(value: &Value) -> String {
    match value {
        Value::Null => "-".to_owned(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

async fn list(context: &Context, source: Source) -> anyhow::Result<()> {
    let installation = Installation::open_existing(context.settings()).await?;
    let batch = installation.batch(&installation.engine()?)?;
    let mut restorations = batch.restorations(source).await?;
    restorations.reverse();
    let none = format!("no repairs of {source} yet");
    context.output().list(&restorations, &none, line)
}

fn line(recorded: &Recorded) -> String {
    let one = &recorded.restoration;
    let mut text = format!(
        "{}  {}  {} {}, {} in all, {} against {}, by {}",
        one.number,
        format_timestamp_ms(one.at_ms),
        one.changes,
        match one.kind {
            RestorationKind::Corrections => "corrections",
            RestorationKind::Rows => "rows rewritten",
            RestorationKind::Notifications => "members counted again",
        },
        one.total,
        one.view,
        one.expected,
        one.by
    );
    if let Some(undone) = one.undoes {
        text.push_str(&format!(": undoes {undone}"));
    }
    if !one.reason.is_empty() {
        text.push_str(&format!(" ({})", one.reason));
    }
    if recorded.done_until.is_none() {
        text.push_str(match one.kind {
            RestorationKind::Corrections => {
                "; unfinished: the next `reconcile … --apply` resumes it"
            }
            _ if recorded.cut_off_at_ms.is_some() => {
                "; interrupted: a later comparison repaired the rest"
            }
            RestorationKind::Rows | RestorationKind::Notifications => {
                "; unfinished: it is running, or the next comparison repairs the rest"
            }
        });
    }
    text
}

async fn approve(context: &Context, decided: &DecisionArgs) -> anyhow::Result<()> {
    let (by, reason) = (&decided.actor.by, &decided.reason);
    let installation = Installation::open_existing(context.settings()).await?;
    let records = &*installation.stores().records;
    let now_ms = installation.clock().now_ms();
    let approval =
        approvals::approve(records, decided.source, decided.number, by, reason, now_ms).await?;
    let approval = match approval {
        Ok(approval) => approval,
        Err(NotApproved::UnknownComparison) => {
            return Err(usage(format!(
                "there is no comparison {} of {}; `backstitch reconcile list --comparisons` lists them",
                decided.number, decided.source
            )));
        }
        Err(NotApproved::NotApprovable(why)) => {
            return Err(usage(format!(
                "comparison {} can't be approved: {why}",
                decided.number
            )));
        }
    };
    let schedules = installation.reconciliations();
    let is_set = schedules.iter().any(|one| one.name == approval.schedule);
    context.output().result(&approval, |approval: &Approval| {
        let where_set = match is_set {
            true => "",
            // The schedule may be in the settings of another machine.
            false => "; these settings have no [[reconciliation]] with this name, so it must be in the settings of the process that runs schedules",
        };
        format!(
            "{} may repair up to {} of {}, found by comparison {}, when schedules run next (backstitch reconcile --scheduled){where_set}\n",
            approval.schedule, approval.total, approval.view, approval.number
        )
    })
}

async fn undo(
    context: &Context,
    decided: &DecisionArgs,
    stop: CancellationToken,
) -> anyhow::Result<()> {
    let installation = Installation::open_existing(context.settings()).await?;
    let batch = installation.batch(&installation.engine()?)?;
    let intake = installation.intake(decided.source).await?;
    let of = (decided.source, decided.number);
    let why = (decided.actor.by.as_str(), decided.reason.as_str());
    let done = batch
        .undo_restoration(of, why, &intake, (&Stages::default(), &stop))
        .await
        .map_err(usage_or_failure)?;
    context.output().result(&done, |done: &Restoration| {
        format!(
            "repair {} is undone by {} corrections; they are repair {}\n",
            decided.number, done.changes, done.number
        )
    })
}
