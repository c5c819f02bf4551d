//! `reconcile`: compares served values with expected ones, and repairs differences.

use std::collections::BTreeSet;

use batch::{
    Applied, Difference, ReconcileCause as Cause, ReconcileOutcome, ReconcileReport,
    ReconcileRequest, Reconciled, Recorded, Restoration, RestorationKind, When,
};
use schemas::json_value::format_timestamp_ms;
use schemas::source::Source;
use serde_json::Value;
use stores::approvals::{self, Approval, NotApproved};
use tokio_util::sync::CancellationToken;

use super::Context;
use crate::args::{CompareArgs, DecisionArgs, ReconcileArgs, ReconcileCommand};
use crate::failure::{UnrepairedDifferences, usage_error};
use crate::installation::Installation;
use crate::progress::StageBars;
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
            Some(name) => run_scheduled(name, context, stop).await,
            None => compare(&args.compare, context, stop).await,
        },
        Some(ReconcileCommand::List {
            source,
            comparisons: true,
            limit,
        }) => list_comparisons(context, *source, usize::try_from(*limit)?).await,
        Some(ReconcileCommand::List { source, .. }) => list_repairs(context, *source).await,
        Some(ReconcileCommand::Approve(args)) => approve(context, args).await,
        Some(ReconcileCommand::Undo(args)) => undo(context, args, stop).await,
    }
}

async fn compare(
    args: &CompareArgs,
    context: &Context,
    stop: CancellationToken,
) -> anyhow::Result<()> {
    let request = build_request(args)?;
    let installation = Installation::open_existing(context.settings()).await?;
    let catalog = installation.load_catalog()?;
    let view = catalog.names().find(|(name, _)| *name == request.view);
    let source = view.map_or(Source::Plays, |(_, source)| source);
    let batch = installation.create_batch(&installation.create_engine()?)?;
    let intake = installation.open_intake(source).await?;
    let report = batch
        .restore(&request, &intake, (&StageBars::default(), &stop))
        .await
        .map_err(to_command_error)?;
    context.output().print_result(&report, format_report)?;
    let applied = report.applied.as_ref();
    let has_unrepaired =
        report.held_back.is_some() || applied.is_none_or(|applied| applied.damaged > 0);
    if report.differ > 0 && has_unrepaired {
        return Err(UnrepairedDifferences::default().into());
    }
    if report.ahead > 0 || (applied.is_none() && report.live_unknown.is_some()) {
        anyhow::bail!(UNCOMPARED);
    }
    Ok(())
}

/// Runs scheduled reconciliations: those that are due, or the named one. A failed one does not stop
/// the others.
async fn run_scheduled(
    name: &str,
    context: &Context,
    stop: CancellationToken,
) -> anyhow::Result<()> {
    let installation = Installation::open_existing(context.settings()).await?;
    let batch = installation.create_batch(&installation.create_engine()?)?;
    let (only, when) = match name {
        "" => (None, When::Due),
        name => (Some(name), When::Now),
    };
    let reconciliations = reconciling::load_scheduled(&installation, only).await?;
    let (mut results, mut failure) = (Vec::new(), None);
    for scheduled in &reconciliations {
        let stages = StageBars::default();
        match Box::pin(batch.reconcile(scheduled, when, (&stages, &stop))).await {
            Ok(result) => results.push(result),
            Err(error) => {
                let error = anyhow::Error::from(error);
                failure.get_or_insert(error.context(format!("reconciliation {}", scheduled.name)));
            }
        }
    }
    context.output().print_result(&results, |results| {
        results.iter().map(format_result).collect()
    })?;
    if let Some(error) = failure {
        return Err(error);
    }
    let has_outcome = |outcomes: [ReconcileOutcome; 2]| {
        let mut results = results.iter();
        results.any(|result| {
            matches!(result, Reconciled::Done { outcome, .. } if outcomes.contains(outcome))
        })
    };
    if has_outcome([ReconcileOutcome::Failed, ReconcileOutcome::Unknown]) {
        anyhow::bail!(UNCOMPARED);
    }
    if has_outcome([ReconcileOutcome::Differs, ReconcileOutcome::HeldBack]) {
        return Err(UnrepairedDifferences::default().into());
    }
    Ok(())
}

fn format_result(result: &Reconciled) -> String {
    match result {
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
            text.extend(reports.iter().map(format_report));
            for (view, reason) in failed {
                text.push_str(&format!("{view}: {reason}\n"));
            }
            text
        }
    }
}

/// Lists comparisons, newest first.
async fn list_comparisons(context: &Context, source: Source, limit: usize) -> anyhow::Result<()> {
    let installation = Installation::open_existing(context.settings()).await?;
    let records = &*installation.stores().records;
    let comparisons = stores::reconciliations::list(records, source, None, limit).await?;
    let entries = comparisons.into_iter().map(|comparison| {
        let mut record = comparison.record;
        if let Some(record) = record.as_object_mut() {
            record.insert("number".to_owned(), comparison.number.into());
            record.insert(
                "at".to_owned(),
                format_timestamp_ms(comparison.at_ms).into(),
            );
        }
        record
    });
    let entries: Vec<Value> = entries.collect();
    let empty_text = format!("no comparisons of {source} yet");
    context
        .output()
        .print_list(&entries, &empty_text, format_comparison)
}

fn format_comparison(record: &Value) -> String {
    let field = |name: &str| format_value(&record[name]);
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
    for field in ["reason", "held_back", "error"] {
        if let Some(reason) = record[field].as_str().filter(|reason| !reason.is_empty()) {
            text.push_str(&format!(" ({reason})"));
        }
    }
    text
}

/// Converts an error; an invalid request is an error of the command line.
fn to_command_error(error: batch::Error) -> anyhow::Error {
    match error {
        batch::Error::Request(reason) => usage_error(reason),
        error => error.into(),
    }
}

fn build_request(args: &CompareArgs) -> anyhow::Result<ReconcileRequest> {
    let bearer = reconciling::read_bearer(
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
    let request = spec.parse_request();
    let request =
        request.map_err(|(option, reason)| usage_error(format!("--{option}: {reason}")))?;
    Ok(ReconcileRequest {
        view: args.view.clone().unwrap_or_default(),
        from: args.from.map(round_up_to_seconds),
        to: args.to.map(round_up_to_seconds),
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
const fn round_up_to_seconds(time_ms: i64) -> i64 {
    -(-time_ms).div_euclid(1000)
}

fn format_report(report: &ReconcileReport) -> String {
    let mut text = format!(
        "{} as of run {} against {}: {} keys compared in {:.2} s, {}",
        report.view,
        report.epoch,
        report.expected,
        report.keys,
        report.seconds,
        format_disk_use(report.disk_bytes)
    );
    text.push_str(&match report.differ {
        0 => "none differs\n".to_owned(),
        1 => format!("1 differs, by {}\n", report.total),
        differ => format!("{differ} differ, by {} in all\n", report.total),
    });
    for (cause, differences) in &report.causes {
        let keys = if differences.keys == 1 { "key" } else { "keys" };
        text.push_str(&format!(
            "  {} {keys}, {}: {} ({})\n",
            differences.keys,
            differences.total,
            cause.name(),
            describe_cause(*cause)
        ));
    }
    let is_board = report.expected == "canonical";
    text.push_str(&format_table(&report.differences, is_board));
    let omitted = report
        .differ
        .saturating_sub(report.differences.len() as u64);
    if omitted > 0 && !report.differences.is_empty() {
        text.push_str(&format!("  and {omitted} more (--limit shows more)\n"));
    }
    if let Some(reason) = &report.live_unknown {
        text.push_str(&format!("  live state was not compared: {reason}\n"));
    }
    if report.ahead > 0 {
        text.push_str(&format!(
            "  {} keys were skipped: an incomplete run has written them\n",
            report.ahead
        ));
    }
    if let Some(applied) = &report.applied {
        text.push_str(&format_repair(applied));
    }
    if let Some(reason) = &report.held_back {
        text.push_str(&format!("  nothing was repaired: {reason}\n"));
    }
    for warning in &report.warnings {
        text.push_str(&format!("  warning: {warning}\n"));
    }
    text
}

/// Formats the disk space of the comparison, if it used any.
fn format_disk_use(bytes: u64) -> String {
    match bytes >> 20 {
        0 => String::new(),
        mebibytes => format!("{mebibytes} MiB on disk, "),
    }
}

fn format_repair(applied: &Applied) -> String {
    let mut text = String::new();
    for file in &applied.files {
        text.push_str(&format!("  rebuilt from the log: {file}\n"));
    }
    for (operation, count) in [
        ("members counted again", applied.notifications),
        ("rows rewritten", applied.rows),
        ("misplaced rows deleted", applied.deleted),
    ] {
        if count > 0 {
            text.push_str(&format!("  {operation}: {count}\n"));
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
const fn describe_cause(cause: Cause) -> &'static str {
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
fn format_table(differences: &[Difference], is_board: bool) -> String {
    if differences.is_empty() {
        return String::new();
    }
    // Misplaced rows have other columns.
    let names: BTreeSet<&String> = differences
        .iter()
        .flat_map(|difference| difference.key.keys())
        .collect();
    let has_bucket = !is_board
        && differences
            .iter()
            .any(|difference| difference.bucket.is_some());
    let value_names: &[&str] = match is_board {
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
    let header = keys.chain(value_names.iter().copied()).map(str::to_owned);
    let mut rows = vec![header.collect()];
    for difference in differences {
        let keys = names.iter().map(|name| difference.key.get(*name));
        let keys = keys.chain(has_bucket.then_some(difference.bucket.as_ref()));
        let mut row: Vec<String> = keys
            .map(|key| format_value(key.unwrap_or(&Value::Null)))
            .collect();
        if is_board {
            row.push(format_board_row(
                difference,
                difference.expected_row.as_ref(),
                difference.expected,
            ));
            row.push(format_board_row(
                difference,
                difference.served_row.as_ref(),
                difference.served,
            ));
        } else {
            let count =
                |count: Option<i64>| count.map_or_else(|| "-".to_owned(), |n| n.to_string());
            row.push(difference.expected.to_string());
            row.extend([
                count(difference.stored),
                count(difference.live),
                difference.served.to_string(),
            ]);
            row.push(format!("{:+}", difference.difference));
        }
        row.push(difference.cause.name().to_owned());
        rows.push(row);
    }
    let board_columns = if is_board { 2 } else { 0 };
    align_columns(&rows, names.len() + usize::from(has_bucket) + board_columns)
}

/// Formats a row of a board, or the number of rows.
fn format_board_row(difference: &Difference, row: Option<&Value>, count: i64) -> String {
    match row {
        Some(Value::Object(columns)) => {
            let present = columns.iter().filter(|(_, value)| !value.is_null());
            let pairs: Vec<String> = present
                .map(|(name, value)| format!("{name}={}", format_value(value)))
                .collect();
            match pairs.is_empty() {
                true => "present".to_owned(),
                false => pairs.join(" "),
            }
        }
        _ if difference.cause == Cause::Damaged => format!("{count} rows"),
        _ => "-".to_owned(),
    }
}

/// Formats rows as a table. The first `text_columns` columns and the last one align left.
fn align_columns(rows: &[Vec<String>], text_columns: usize) -> String {
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
            let is_text = column < text_columns || column + 1 == columns;
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

fn format_value(value: &Value) -> String {
    match value {
        Value::Null => "-".to_owned(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

async fn list_repairs(context: &Context, source: Source) -> anyhow::Result<()> {
    let installation = Installation::open_existing(context.settings()).await?;
    let batch = installation.create_batch(&installation.create_engine()?)?;
    let mut restorations = batch.restorations(source).await?;
    restorations.reverse();
    let empty_text = format!("no repairs of {source} yet");
    context
        .output()
        .print_list(&restorations, &empty_text, format_line)
}

fn format_line(recorded: &Recorded) -> String {
    let restoration = &recorded.restoration;
    let mut text = format!(
        "{}  {}  {} {}, {} in all, {} against {}, by {}",
        restoration.number,
        format_timestamp_ms(restoration.at_ms),
        restoration.changes,
        match restoration.kind {
            RestorationKind::Corrections => "corrections",
            RestorationKind::Rows => "rows rewritten",
            RestorationKind::Notifications => "members counted again",
        },
        restoration.total,
        restoration.view,
        restoration.expected,
        restoration.by
    );
    if let Some(undone) = restoration.undoes {
        text.push_str(&format!(": undoes {undone}"));
    }
    if !restoration.reason.is_empty() {
        text.push_str(&format!(" ({})", restoration.reason));
    }
    if recorded.done_until.is_none() {
        text.push_str(match restoration.kind {
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

async fn approve(context: &Context, args: &DecisionArgs) -> anyhow::Result<()> {
    let (by, reason) = (&args.actor.by, &args.reason);
    let installation = Installation::open_existing(context.settings()).await?;
    let records = &*installation.stores().records;
    let now_ms = installation.clock().now_ms();
    let approval =
        approvals::approve(records, args.source, args.number, by, reason, now_ms).await?;
    let approval = match approval {
        Ok(approval) => approval,
        Err(NotApproved::UnknownComparison) => {
            return Err(usage_error(format!(
                "there is no comparison {} of {}; `backstitch reconcile list --comparisons` lists them",
                args.number, args.source
            )));
        }
        Err(NotApproved::NotApprovable(reason)) => {
            return Err(usage_error(format!(
                "comparison {} cannot be approved: {reason}",
                args.number
            )));
        }
    };
    let sections = installation.reconciliation_sections();
    let is_set = sections
        .iter()
        .any(|section| section.name == approval.schedule);
    context.output().print_result(&approval, |approval: &Approval| {
        let settings_note = match is_set {
            true => "",
            // The schedule may be in the settings of another machine.
            false => "; these settings have no [[reconciliation]] with this name, so it must be in the settings of the process that runs schedules",
        };
        format!(
            "{} may repair up to {} of {}, found by comparison {}, when schedules run next (backstitch reconcile --scheduled){settings_note}\n",
            approval.schedule, approval.total, approval.view, approval.number
        )
    })
}

async fn undo(
    context: &Context,
    args: &DecisionArgs,
    stop: CancellationToken,
) -> anyhow::Result<()> {
    let installation = Installation::open_existing(context.settings()).await?;
    let batch = installation.create_batch(&installation.create_engine()?)?;
    let intake = installation.open_intake(args.source).await?;
    let repair = (args.source, args.number);
    let attribution = (args.actor.by.as_str(), args.reason.as_str());
    let restoration = batch
        .undo_restoration(repair, attribution, &intake, (&StageBars::default(), &stop))
        .await
        .map_err(to_command_error)?;
    context
        .output()
        .print_result(&restoration, |restoration: &Restoration| {
            format!(
                "repair {} is undone by {} corrections; they are repair {}\n",
                args.number, restoration.changes, restoration.number
            )
        })
}
