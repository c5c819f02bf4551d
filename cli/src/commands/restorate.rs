//! `restorate`: what is served beside what is expected, and putting it right.

use std::collections::BTreeSet;

use batch::{
    Applied, Difference, Reconciled, Recorded, Restoration, RestorationKind, RestoreCause as Cause,
    RestoreOutcome, RestoreReport, RestoreRequest, When,
};
use schemas::shown::moment;
use schemas::source::Source;
use serde_json::Value;
use stores::approvals::{self, Approval, NotApproved};
use tokio_util::sync::CancellationToken;

use super::Context;
use crate::args::{CompareArgs, DecideArgs, RestorateArgs, RestorateCommand};
use crate::failure::{Differs, usage};
use crate::installation::Installation;
use crate::progress::Stages;
use crate::reconciling;
use crate::settings::Words;

const UNCOMPARED: &str =
    "not everything could be compared, so it is not known whether all of it is right";

/// Runs the command.
pub(super) async fn run(
    args: &RestorateArgs,
    context: &Context,
    stop: CancellationToken,
) -> anyhow::Result<()> {
    match &args.command {
        None => match args.compare.scheduled.as_deref() {
            Some(name) => scheduled(name, context, stop).await,
            None => compare(&args.compare, context, stop).await,
        },
        Some(RestorateCommand::List {
            source,
            comparisons: true,
            limit,
        }) => comparisons(context, *source, usize::try_from(*limit)?).await,
        Some(RestorateCommand::List { source, .. }) => list(context, *source).await,
        Some(RestorateCommand::Approve(decided)) => approve(context, decided).await,
        Some(RestorateCommand::Undo(decided)) => undo(context, decided, stop).await,
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
        .map_err(told)?;
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

/// Carries scheduled reconciliations out: those that are due, or the one of a name. One that can't be told does not keep
/// the others from it.
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
        .result(&done, |done| done.iter().map(carried_out).collect())?;
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

fn carried_out(one: &Reconciled) -> String {
    match one {
        Reconciled::NotDue {
            schedule,
            due_at_ms,
        } => format!("{schedule}: not due before {}\n", moment(*due_at_ms)),
        Reconciled::Passed { schedule, holder } => {
            format!("{schedule}: somebody else carries it out: {holder}\n")
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

/// What was compared, newest first.
async fn comparisons(context: &Context, source: Source, limit: usize) -> anyhow::Result<()> {
    let installation = Installation::open_existing(context.settings()).await?;
    let records = &*installation.stores().records;
    let all = stores::reconciliations::list(records, source, None, limit).await?;
    let shown = all.into_iter().map(|one| {
        let mut record = one.record;
        if let Some(record) = record.as_object_mut() {
            record.insert("number".to_owned(), one.number.into());
            record.insert("at".to_owned(), moment(one.at_ms).into());
        }
        record
    });
    let shown: Vec<Value> = shown.collect();
    let none = format!("nothing of {source} was ever compared");
    context.output().list(&shown, &none, compared)
}

fn compared(record: &Value) -> String {
    let told = |name: &str| shown(&record[name]);
    let mut text = format!(
        "{}  {}  {}  {} against {}: {} keys, {} differ, {} in all; by {}",
        told("number"),
        told("at"),
        told("outcome"),
        told("view"),
        told("expected"),
        told("keys"),
        told("differ"),
        told("total"),
        told("by"),
    );
    if let Some(restoration) = record["restoration"].as_u64() {
        text.push_str(&format!("; restoration {restoration}"));
    }
    for why in ["reason", "held_back", "error"] {
        if let Some(why) = record[why].as_str().filter(|why| !why.is_empty()) {
            text.push_str(&format!(" ({why})"));
        }
    }
    text
}

/// What can't be asked is the command line's fault.
fn told(error: batch::Error) -> anyhow::Error {
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
    let words = Words {
        expected: args.expected.as_deref().unwrap_or("archive"),
        query: args.query.as_deref(),
        rename: &args.rename,
        keys: &args.keys,
        tolerance: &args.tolerance,
        set: &args.set,
        is_whole: args.whole,
        bearer: bearer.as_ref(),
    };
    let request = words.request();
    let request = request.map_err(|(word, why)| usage(format!("--{word}: {why}")))?;
    Ok(RestoreRequest {
        view: args.view.clone().unwrap_or_default(),
        from: args.from.map(seconds_up),
        to: args.to.map(seconds_up),
        sample: args.sample,
        limit: usize::try_from(args.limit)?,
        apply: args.apply,
        apply_max: args.apply_max,
        by: args.by.by.clone(),
        reason: args.reason.clone(),
        ..request
    })
}

/// The first full second at a moment in milliseconds, or after it: buckets begin on full seconds.
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
    let untold = report
        .differ
        .saturating_sub(report.differences.len() as u64);
    if untold > 0 && !report.differences.is_empty() {
        text.push_str(&format!("  and {untold} more (--limit shows more)\n"));
    }
    if let Some(why) = &report.live_unknown {
        text.push_str(&format!("  live state was not compared: {why}\n"));
    }
    if report.ahead > 0 {
        text.push_str(&format!(
            "  {} keys were passed over: a run that is not complete has written them\n",
            report.ahead
        ));
    }
    if let Some(applied) = &report.applied {
        text.push_str(&done(applied));
    }
    if let Some(why) = &report.held_back {
        text.push_str(&format!("  nothing was put right: {why}\n"));
    }
    for warning in &report.warnings {
        text.push_str(&format!("  warning: {warning}\n"));
    }
    text
}

/// What the comparison took on the disk, where that is worth a word.
fn on_disk(bytes: u64) -> String {
    match bytes >> 20 {
        0 => String::new(),
        mebibytes => format!("{mebibytes} MiB on the disk, "),
    }
}

fn done(applied: &Applied) -> String {
    let mut text = String::new();
    for file in &applied.files {
        text.push_str(&format!("  made anew from the log: {file}\n"));
    }
    let deleted = "rows deleted that can't be where they were";
    for (what, count) in [
        ("members that are counted again", applied.notifications),
        ("rows written anew", applied.rows),
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
            "  corrections appended: {}; `backstitch restorate undo {number}` takes them back\n",
            applied.corrections
        ));
    }
    if let Some(run) = applied.run {
        text.push_str(&format!("  run {run} was carried out\n"));
    }
    if applied.damaged > 0 {
        text.push_str(&match applied.damaged {
            1 => "  1 key is served otherwise than its events give".to_owned(),
            keys => format!("  {keys} keys are served otherwise than their events give"),
        });
        text.push_str(", which corrections do not mend: `--expected archive --apply` does\n");
    }
    if text.is_empty() {
        text.push_str("  there was nothing to put right\n");
    }
    text
}

/// What a cause means.
const fn why(cause: Cause) -> &'static str {
    match cause {
        Cause::ChangedRow => "the batch row holds another count than the events give",
        Cause::MissingRow => "events give a batch row that is not there",
        Cause::ExtraRow => "no event gives the batch row",
        Cause::MisplacedRow => "the batch row lies in the partition of another time than its own",
        Cause::UnreadableRow => "the key of the batch row is none of the view's",
        Cause::LostLive => "live state held less than there are events",
        Cause::Duplicate => "an event came again after the window; the next run ends it",
        Cause::OtherPartition => "an event came again in another partition; the next run ends it",
        Cause::Unexplained => "live state held more than there are events",
        Cause::Claimed => "what is served is what all events give, and something else is expected",
        Cause::ChangedLive => "live state holds other rows than the database gives",
        Cause::NotTold => "rows of the database were changed, and nobody was told",
        Cause::Damaged => "batch rows of these keys are missing or damaged: they can't be read",
    }
}

/// Differences in columns: those of the keys, then what was found of each.
fn table(differences: &[Difference], is_board: bool) -> String {
    if differences.is_empty() {
        return String::new();
    }
    // Rows that lie where none can lie are known by other columns.
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

/// A row of a board, or how many rows there are.
fn board_row(of: &Difference, row: Option<&Value>, count: i64) -> String {
    match row {
        Some(Value::Object(columns)) => {
            let there = columns.iter().filter(|(_, value)| !value.is_null());
            let pairs: Vec<String> = there
                .map(|(name, value)| format!("{name}={}", shown(value)))
                .collect();
            match pairs.is_empty() {
                true => "there".to_owned(),
                false => pairs.join(" "),
            }
        }
        _ if of.cause == Cause::Damaged => format!("{count} rows"),
        _ => "-".to_owned(),
    }
}

/// Rows in columns, of which the first `texts` and the last are texts.
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
    let none = format!("nothing of {source} was ever restored");
    context.output().list(&restorations, &none, line)
}

fn line(recorded: &Recorded) -> String {
    let one = &recorded.restoration;
    let mut text = format!(
        "{}  {}  {} {}, {} in all, {} against {}, by {}",
        one.number,
        moment(one.at_ms),
        one.changes,
        match one.kind {
            RestorationKind::Corrections => "corrections",
            RestorationKind::Rows => "rows written anew",
            RestorationKind::Notifications => "members counted again",
        },
        one.total,
        one.view,
        one.expected,
        one.by
    );
    if let Some(undone) = one.undoes {
        text.push_str(&format!(": takes {undone} back"));
    }
    if !one.reason.is_empty() {
        text.push_str(&format!(" ({})", one.reason));
    }
    if recorded.done_until.is_none() {
        text.push_str(match one.kind {
            RestorationKind::Corrections => {
                "; not finished, the next `restorate … --apply` goes on with it"
            }
            _ if recorded.cut_off_at_ms.is_some() => {
                "; cut off, and what was left of it a later comparison has found"
            }
            RestorationKind::Rows | RestorationKind::Notifications => {
                "; not finished: it is under way, or the next comparison finds what is left of it"
            }
        });
    }
    text
}

async fn approve(context: &Context, decided: &DecideArgs) -> anyhow::Result<()> {
    let of = (decided.source, decided.number);
    let why = (decided.by.by.as_str(), decided.reason.as_str());
    let installation = Installation::open_existing(context.settings()).await?;
    let records = &*installation.stores().records;
    let now_ms = installation.clock().now_ms();
    let approval = match approvals::approve(records, of, why, now_ms).await? {
        Ok(approval) => approval,
        Err(NotApproved::UnknownComparison) => {
            return Err(usage(format!(
                "there is no comparison {} of {}: `backstitch restorate list --comparisons` shows those there are",
                of.1, of.0
            )));
        }
        Err(NotApproved::NotApprovable(why)) => {
            return Err(usage(format!(
                "comparison {} can't be approved: {why}",
                of.1
            )));
        }
    };
    let schedules = installation.reconciliations();
    let is_set = schedules.iter().any(|one| one.name == approval.schedule);
    context.output().result(&approval, |approval: &Approval| {
        let where_set = match is_set {
            true => "",
            // Another machine may have its settings.
            false => "; these settings have no [[reconciliation]] of this name, so where they are carried out must have it",
        };
        format!(
            "{} may put right up to {} of {}, found by comparison {}: it does the next time that schedules are carried out (backstitch restorate --scheduled){where_set}\n",
            approval.schedule, approval.total, approval.view, approval.number
        )
    })
}

async fn undo(
    context: &Context,
    decided: &DecideArgs,
    stop: CancellationToken,
) -> anyhow::Result<()> {
    let of = (decided.source, decided.number);
    let why = (decided.by.by.as_str(), decided.reason.as_str());
    let installation = Installation::open_existing(context.settings()).await?;
    let batch = installation.batch(&installation.engine()?)?;
    let intake = installation.intake(of.0).await?;
    let done = batch
        .undo_restoration(of, why, &intake, (&Stages::default(), &stop))
        .await
        .map_err(told)?;
    context.output().result(&done, |done: &Restoration| {
        format!(
            "restoration {} is taken back by {} corrections; they are restoration {}\n",
            of.1, done.changes, done.number
        )
    })
}
