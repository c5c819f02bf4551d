//! What happens between the log and the answers: positions and lag, batch runs, what could not be taken, what was compared.

use std::collections::BTreeSet;

use askama::Template;
use jiff::Timestamp;
use serde_json::Value;
use stores::dead_letters::OTHER_KINDS;

use super::api;
use super::ask::{Answer, Asker, Trouble, path};
use super::differences::Differences;
use super::live::logged;
use super::overview::{drift, lag, title};
use super::parts::{Frame, Here, Part, Tools, TroubleShown, about};
use super::query::Query;
use super::shown::{Moment, number, percent, took};

const OVERVIEW: &str = "/api/v1/overview";
const RUNS: &str = "/api/v1/batch/runs";
const LETTERS: &str = "/api/v1/dead-letters";
/// Where letters are shown.
pub(crate) const LETTERS_PAGE: &str = "/pipeline/dead-letters";
/// Where comparisons are shown.
pub(crate) const RECONCILIATIONS_PAGE: &str = "/pipeline/reconciliations";
const RECONCILIATIONS: &str = "/api/v1/reconciliations";

fn or_dash<T: Into<i128>>(of: Option<T>) -> String {
    of.map_or_else(|| "–".to_owned(), number)
}

/// A count, which may be the least that it can be.
fn or_least(count: Option<u64>, is_least: bool) -> String {
    let least = if is_least { "≥ " } else { "" };
    count.map_or_else(
        || "–".to_owned(),
        |count| format!("{least}{}", number(count)),
    )
}

/// A run, as a row of a table.
#[derive(Debug)]
struct RunRow {
    link: String,
    epoch: String,
    state: String,
    /// good, bad or nothing.
    class: &'static str,
    why: Option<String>,
    started: Moment,
    took: String,
    read: String,
    written: String,
    skipped: String,
    drift: String,
}

impl RunRow {
    fn of(run: &api::RunShown) -> Self {
        let class = match run.state.as_str() {
            "complete" => "good",
            "abandoned" => "bad",
            _ if run.reason.is_some() => "bad",
            _ => "",
        };
        Self {
            link: format!("/pipeline/runs/{}/{}", run.source.name(), run.epoch),
            epoch: number(run.epoch),
            state: run.state.clone(),
            class,
            why: run.reason.clone(),
            started: Moment::utc(&run.started_at),
            took: run.seconds.map_or_else(|| "–".to_owned(), took),
            read: or_dash(run.rows_read.as_u64()),
            written: or_dash(run.rows_written.as_u64()),
            skipped: or_dash(run.rows_skipped.as_u64()),
            drift: drift(&run.drift).0,
        }
    }
}

#[derive(Debug, Template)]
#[template(path = "pipeline.html")]
pub(crate) struct PipelinePage {
    frame: Frame,
    shown: Part<Shown>,
    tools: Tools,
}

about!(PipelinePage, shown);

#[derive(Debug)]
struct Shown {
    now: Moment,
    sources: Vec<SourceShown>,
}

#[derive(Debug)]
struct SourceShown {
    name: &'static str,
    title: &'static str,
    summary: String,
    partitions: Vec<PartitionRow>,
    runs: Vec<RunRow>,
    /// All runs, also older ones.
    all_runs: Tools,
    views: Vec<(String, u64)>,
}

#[derive(Debug)]
struct PartitionRow {
    partition: usize,
    from: String,
    to: String,
    counted: String,
    lag: String,
    epoch: String,
    /// When its live state began.
    since: Option<Moment>,
    state: &'static str,
}

impl PartitionRow {
    fn of(one: &api::PartitionShown) -> Self {
        Self {
            partition: one.partition,
            from: number(one.log_start),
            to: number(one.log_end),
            counted: or_dash(one.next_offset),
            lag: or_dash(one.lag),
            epoch: or_dash(one.epoch),
            since: one
                .generation
                .and_then(|began_ms| i64::try_from(began_ms).ok())
                .and_then(|began_ms| Timestamp::from_millisecond(began_ms).ok())
                .map(|began| Moment::utc(&began.to_string())),
            state: match (one.next_offset, one.replaying) {
                (None, _) => "none yet",
                (Some(_), Some(true)) => "catching up",
                _ => "whole",
            },
        }
    }
}

pub(crate) async fn page(asker: &Asker, here: &Here) -> PipelinePage {
    let answer = asker.get::<api::Overview>(OVERVIEW).await;
    let shown = answer.map_err(TroubleShown::of).map(|overview| {
        let sources = overview
            .sources
            .into_iter()
            .filter(|source| !source.partitions.is_empty());
        let sources = sources.map(|source| SourceShown {
            title: title(source.source.name()),
            summary: format!("{} not counted yet", lag(&source.partitions).0),
            partitions: source.partitions.iter().map(PartitionRow::of).collect(),
            runs: source.runs.iter().map(RunRow::of).collect(),
            all_runs: here.tools(
                &path(RUNS, &[("source", Some(source.source.name()))]),
                true,
                &asker.caller,
            ),
            views: source.views.into_iter().collect(),
            name: source.source.name(),
        });
        Shown {
            now: Moment::utc(&overview.now),
            sources: sources.collect(),
        }
    });
    PipelinePage {
        frame: Frame::new("Pipeline", "pipeline", &asker.caller).following_all(),
        shown,
        tools: here.tools(OVERVIEW, false, &asker.caller),
    }
}

#[derive(Debug, Template)]
#[template(path = "run.html")]
pub(crate) struct RunPage {
    frame: Frame,
    source: String,
    epoch: String,
    run: Part<RunShown>,
}

about!(RunPage, run);

#[derive(Debug)]
struct RunShown {
    row: RunRow,
    to_do: Option<String>,
    stages: Vec<Stage>,
    cuts: String,
    drifted: Vec<DriftRow>,
    differences: Option<Differences>,
    report: String,
    tools: Tools,
}

#[derive(Debug)]
struct Stage {
    name: String,
    took: String,
    part: String,
    percent: String,
}

/// The stages of a run, in the order in which they follow each other.
fn stages(report: Option<&Value>) -> Vec<Stage> {
    const ORDER: [&str; 8] = [
        "seal", "archive", "snapshot", "compute", "check", "publish", "drift", "drop",
    ];
    let told = report
        .and_then(|report| report.get("seconds"))
        .and_then(Value::as_object);
    let Some(told) = told else {
        return Vec::new();
    };
    let mut stages: Vec<(&str, f64)> = told
        .iter()
        .filter_map(|(name, seconds)| Some((name.as_str(), seconds.as_f64()?)))
        .collect();
    stages.sort_by_key(|(name, _)| {
        ORDER
            .iter()
            .position(|of| of == name)
            .unwrap_or(ORDER.len())
    });
    let all: f64 = stages.iter().map(|(_, seconds)| seconds).sum();
    let stage = |(name, seconds): (&str, f64)| {
        let part = if all > 0.0 { seconds / all } else { 0.0 };
        Stage {
            name: name.to_owned(),
            took: took(seconds),
            part: format!("{part:.4}"),
            percent: percent(part),
        }
    };
    stages.into_iter().map(stage).collect()
}

/// How far live state of a view had drifted.
#[derive(Debug)]
struct DriftRow {
    job: String,
    keys: String,
    total: String,
    why: String,
}

impl DriftRow {
    fn all(views: &Value) -> Vec<Self> {
        views
            .as_array()
            .into_iter()
            .flatten()
            .map(Self::of)
            .collect()
    }

    fn of(one: &Value) -> Self {
        let is_least = one.get("is_lower_bound") == Some(&Value::Bool(true));
        let count = |name: &str| or_least(one.get(name).and_then(Value::as_u64), is_least);
        let text = |name: &str| one.get(name).and_then(Value::as_str);
        let causes = one.get("causes").and_then(Value::as_object);
        let causes = causes.into_iter().flatten().map(|(cause, part)| {
            let part = part.as_u64().map(number).unwrap_or_default();
            format!("{} {part}", cause.replace('_', " "))
        });
        let causes = causes.collect::<Vec<_>>().join(", ");
        Self {
            job: text("job").unwrap_or_default().to_owned(),
            keys: count("keys"),
            total: count("total"),
            why: text("unknown").map_or(causes, str::to_owned),
        }
    }
}

/// What a run told of its drift.
fn told<'a>(run: &'a api::RunShown, what: &str) -> &'a Value {
    const NOTHING: &Value = &Value::Null;
    let drift = run.report.as_ref().and_then(|report| report.get("drift"));
    drift.and_then(|drift| drift.get(what)).unwrap_or(NOTHING)
}

pub(crate) async fn run(asker: &Asker, here: &Here, (source, epoch): (&str, &str)) -> RunPage {
    let asked = path(&format!("{RUNS}/{epoch}"), &[("source", Some(source))]);
    let run = asker.get::<api::RunShown>(&asked).await;
    let run = run.map_err(TroubleShown::of).map(|run| RunShown {
        row: RunRow::of(&run),
        to_do: run.to_do.clone(),
        stages: stages(run.report.as_ref()),
        cuts: run
            .cuts
            .iter()
            .map(|cut| number(*cut))
            .collect::<Vec<_>>()
            .join(" · "),
        drifted: DriftRow::all(told(&run, "views")),
        differences: Differences::of(told(&run, "worst")),
        report: run
            .report
            .as_ref()
            .and_then(|report| serde_json::to_string_pretty(report).ok())
            .unwrap_or_default(),
        tools: here.tools(&asked, false, &asker.caller),
    });
    let frame = Frame::new(format!("Run {epoch}"), "pipeline", &asker.caller);
    RunPage {
        frame: match logged(source) {
            Some(source) => frame.following(source.name()),
            None => frame,
        },
        source: source.to_owned(),
        epoch: epoch.to_owned(),
        run,
    }
}

#[derive(Debug, Template)]
#[template(path = "dead_letters.html")]
pub(crate) struct LettersPage {
    frame: Frame,
    /// Whether who looks may try letters again.
    may_replay: bool,
    /// What became of letters that were just tried again.
    done: Option<Part<String>>,
    reason: Option<String>,
    counts: Part<CountsShown>,
    page: Part<LettersShown>,
}

about!(LettersPage, page);

#[derive(Debug)]
struct CountsShown {
    letters: String,
    complete: bool,
    rows: Vec<KindRow>,
    tools: Tools,
}

#[derive(Debug)]
struct KindRow {
    kind: String,
    link: String,
    source: &'static str,
    letters: String,
    last: Moment,
    /// Whether letters can be asked for by it.
    is_one: bool,
}

#[derive(Debug)]
struct LettersShown {
    rows: Vec<LetterRow>,
    more: Option<String>,
    tools: Tools,
}

#[derive(Debug)]
struct LetterRow {
    id: String,
    source: &'static str,
    reason: String,
    origin: String,
    at: Moment,
    bytes: String,
    raw: String,
}

/// Tries letters again: the one that a form names, or those of a source and a reason.
pub(crate) async fn replayed(asker: &Asker, form: &Query) -> Answer<String> {
    let fields = ["id", "source", "reason"];
    let is_there = |field: &str| form.get(field).is_some();
    let is_said = is_there("id") || (is_there("source") && is_there("reason"));
    if !is_said {
        // By the API nothing stands for all.
        let detail = "The form does not say which letters: use a button of the page.";
        return Err(Trouble::own(400, "Nothing was tried again", detail));
    }
    let asked = path(
        &format!("{LETTERS}/replay"),
        &fields.map(|field| (field, form.get(field))),
    );
    let done = asker.post::<api::LettersReplayed>(&asked).await?;
    let mut text = format!(
        "{} taken, {} still can't be.",
        number(done.accepted),
        number(done.still_bad)
    );
    for (count, why) in [
        (
            done.superseded,
            "left out, since a row with the same id and version is stored by now",
        ),
        (
            done.erased,
            "left out: they are of athletes who were erased",
        ),
        (done.broken, "records of the topic are no dead letters"),
    ] {
        if count > 0 {
            text.push_str(&format!(" {} {why}.", number(count)));
        }
    }
    if let Some(first) = done.first {
        text.push_str(&format!(" The first that can't be: {first}"));
    }
    Ok(text)
}

pub(crate) async fn dead_letters(
    asker: &Asker,
    here: &Here,
    query: &Query,
    done: Option<Answer<String>>,
) -> LettersPage {
    let parameters = [
        ("source", query.get("source")),
        ("reason", query.get("reason")),
    ];
    let mut with_cursor = parameters.to_vec();
    with_cursor.extend([("cursor", query.get("cursor")), ("limit", Some("20"))]);
    let page_path = path(LETTERS, &with_cursor);
    let counts_path = format!("{LETTERS}/counts");
    let (counts, page) = tokio::join!(
        asker.get::<api::LetterCounts>(&counts_path),
        asker.get::<api::LettersPage>(&page_path)
    );
    let counts = counts.map_err(TroubleShown::of).map(|counts| CountsShown {
        letters: number(counts.letters),
        complete: counts.complete,
        tools: here.tools(&counts_path, false, &asker.caller),
        rows: counts
            .counts
            .into_iter()
            .map(|one| KindRow {
                link: path(
                    LETTERS_PAGE,
                    &[
                        ("source", Some(one.source.name())),
                        ("reason", Some(&one.kind)),
                    ],
                ),
                is_one: !one.kind.trim().is_empty() && one.kind != OTHER_KINDS,
                kind: one.kind,
                source: one.source.name(),
                letters: number(one.letters),
                last: Moment::utc(&one.last_at),
            })
            .collect(),
    });
    let page = page.map_err(TroubleShown::of).map(|page| LettersShown {
        more: page
            .cursor
            .as_deref()
            .map(|next| query.with(LETTERS_PAGE, &[("cursor", Some(next))])),
        tools: here.tools(&path(LETTERS, &parameters), true, &asker.caller),
        rows: page
            .dead_letters
            .into_iter()
            .map(|letter| LetterRow {
                id: letter.id,
                source: letter.source.name(),
                reason: letter.reason,
                origin: letter.origin,
                at: Moment::utc(&letter.at),
                bytes: number(letter.raw_bytes),
                raw: match letter.raw {
                    api::LetterBytes::Text(text) | api::LetterBytes::Hex(text) => text,
                },
            })
            .collect(),
    });
    LettersPage {
        frame: Frame::new("Dead letters", "pipeline", &asker.caller).following_all(),
        may_replay: asker.caller.may_administer(),
        done: done.map(|done| done.map_err(TroubleShown::of)),
        reason: query.get("reason").map(str::to_owned),
        counts,
        page,
    }
}

#[derive(Debug, Template)]
#[template(path = "reconciliations.html")]
pub(crate) struct ReconciliationsPage {
    frame: Frame,
    /// What was just approved.
    done: Option<Part<String>>,
    page: Part<ReconciliationsShown>,
}

about!(ReconciliationsPage, page);

#[derive(Debug)]
struct ReconciliationsShown {
    rows: Vec<ReconciliationRow>,
    more: Option<String>,
    tools: Tools,
}

#[derive(Debug)]
struct ReconciliationRow {
    at: Moment,
    what: String,
    source: &'static str,
    epoch: String,
    keys: String,
    total: String,
    outcome: String,
    class: &'static str,
    why: Option<String>,
    differences: Option<Differences>,
    /// Who has approved it.
    approved: Option<String>,
    /// The comparison's number, where who looks may approve what it found.
    to_approve: Option<u64>,
}

/// What a schedule can put right once somebody has approved it.
const TO_APPROVE: [&str; 2] = ["differs", "held_back"];

impl ReconciliationRow {
    /// A row; `seen` are the schedules with views of which newer comparisons are above.
    fn of(one: &api::ReconciliationShown, seen: &mut BTreeSet<(String, String)>) -> Self {
        let told = |name: &str| one.comparison.get(name).and_then(Value::as_str);
        let of = told("schedule").zip(told("view"));
        let is_newest =
            of.is_some_and(|(schedule, view)| seen.insert((schedule.to_owned(), view.to_owned())));
        let is_open = told("outcome").is_some_and(|outcome| TO_APPROVE.contains(&outcome));
        let number = one.comparison.get("number").and_then(Value::as_u64);
        let to_approve = number.filter(|_| is_newest && is_open && one.approval.is_none());
        Self {
            approved: one.approval.as_ref().map(|approval| approval.by.clone()),
            to_approve,
            ..Self::of_any(one)
        }
    }

    fn of_any(one: &api::ReconciliationShown) -> Self {
        let told = |name: &str| one.comparison.get(name).and_then(Value::as_str);
        let outcome = told("outcome").map_or_else(
            || match (one.total, one.keys) {
                (None, _) => "unknown".to_owned(),
                (Some(0), 0) => "right".to_owned(),
                _ => "differs".to_owned(),
            },
            |outcome| outcome.replace('_', " "),
        );
        let class = match outcome.as_str() {
            "right" | "put right" => "good",
            "applying" | "unknown" => "",
            _ => "bad",
        };
        let what = match (one.kind.as_str(), told("view")) {
            ("batch-run", _) => "drift of a batch run".to_owned(),
            (_, Some(view)) => match told("expected") {
                Some(expected) => format!("{view} against {expected}"),
                None => view.to_owned(),
            },
            _ => "comparison".to_owned(),
        };
        Self {
            at: Moment::utc(&one.at),
            what,
            source: one.source.name(),
            epoch: number(one.epoch),
            keys: or_least(Some(one.keys), one.is_lower_bound),
            total: or_least(one.total, one.is_lower_bound),
            outcome,
            class,
            why: one
                .unknown
                .clone()
                .or_else(|| told("held_back").map(str::to_owned)),
            differences: Differences::of(&one.worst),
            approved: None,
            to_approve: None,
        }
    }
}

/// Approves what the comparison found that a form names.
pub(crate) async fn approved(asker: &Asker, form: &Query) -> Answer<String> {
    let fields = ["source", "number", "reason"];
    let asked = path(
        &format!("{RECONCILIATIONS}/approve"),
        &fields.map(|field| (field, form.get(field))),
    );
    let done = asker.post::<api::ApprovalShown>(&asked).await?;
    Ok(format!(
        "Approved: {} puts right up to {} of {} the next time that schedules are carried out.",
        done.schedule,
        number(done.total),
        done.view
    ))
}

pub(crate) async fn reconciliations(
    asker: &Asker,
    here: &Here,
    query: &Query,
    done: Option<Answer<String>>,
) -> ReconciliationsPage {
    let asked = path(RECONCILIATIONS, &[("cursor", query.get("cursor"))]);
    let page = asker.get::<api::Reconciliations>(&asked).await;
    let page = page
        .map_err(TroubleShown::of)
        .map(|page| ReconciliationsShown {
            more: page
                .cursor
                .as_deref()
                .map(|next| query.with(RECONCILIATIONS_PAGE, &[("cursor", Some(next))])),
            tools: here.tools(RECONCILIATIONS, true, &asker.caller),
            rows: rows(&page.reconciliations, asker.caller.may_administer()),
        });
    ReconciliationsPage {
        frame: Frame::new("Reconciliations", "pipeline", &asker.caller).following_all(),
        done: done.map(|done| done.map_err(TroubleShown::of)),
        page,
    }
}

fn rows(all: &[api::ReconciliationShown], may_approve: bool) -> Vec<ReconciliationRow> {
    let mut seen = BTreeSet::new();
    let rows = all.iter().map(|one| ReconciliationRow::of(one, &mut seen));
    let mut rows: Vec<ReconciliationRow> = rows.collect();
    for row in rows.iter_mut().filter(|_| !may_approve) {
        row.to_approve = None;
    }
    rows
}
