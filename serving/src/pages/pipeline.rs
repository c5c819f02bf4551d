//! What happens between the log and the answers: positions and lag, batch runs, what could not be taken, what was compared.

use std::collections::BTreeSet;

use askama::Template;
use jiff::Timestamp;
use serde_json::Value;
use stores::dead_letters::OTHER_KINDS;

use super::api;
use super::ask::{Answer, ApiClient, ApiError, path};
use super::differences::Differences;
use super::live::logged;
use super::overview::{drift, lag, or_least, title};
use super::parts::{Frame, Tools, about};
use super::query::Query;
use super::shown::{self, Moment, number, percent, took};

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

/// The class of a run's state: good, bad or none.
fn class(run: &api::RunShown) -> &'static str {
    match run.state.as_str() {
        "complete" => "good",
        "abandoned" => "bad",
        _ if run.reason.is_some() => "bad",
        _ => "",
    }
}

/// How long a run took.
fn run_time(run: &api::RunShown) -> String {
    run.seconds.map_or_else(|| "–".to_owned(), took)
}

#[derive(Debug, Template)]
#[template(path = "pipeline.html")]
pub(crate) struct PipelinePage {
    frame: Frame,
    shown: Answer<Shown>,
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
    partitions: Vec<api::PartitionShown>,
    runs: Vec<api::RunShown>,
    /// All runs, also older ones.
    all_runs: Tools,
    views: Vec<(String, u64)>,
}

/// When the live state of a partition began.
fn began(one: &api::PartitionShown) -> Option<Moment> {
    let began_ms = i64::try_from(one.generation?).ok()?;
    let began = Timestamp::from_millisecond(began_ms).ok()?;
    Some(Moment::utc(&began.to_string()))
}

/// The state of a partition's live state.
const fn state(one: &api::PartitionShown) -> &'static str {
    match (one.next_offset, one.replaying) {
        (None, _) => "none yet",
        (Some(_), Some(true)) => "catching up",
        _ => "whole",
    }
}

pub(crate) async fn page(client: &ApiClient) -> PipelinePage {
    let answer = client.get::<api::Overview>(OVERVIEW).await;
    let shown = answer.map(|overview| {
        let sources = overview
            .sources
            .into_iter()
            .filter(|source| !source.partitions.is_empty());
        let sources = sources.map(|source| SourceShown {
            title: title(source.source.name()),
            summary: format!("{} not counted yet", lag(&source.partitions).0),
            partitions: source.partitions,
            runs: source.runs,
            all_runs: client.tools(&path(RUNS, &[("source", Some(source.source.name()))]), true),
            views: source.views.into_iter().collect(),
            name: source.source.name(),
        });
        Shown {
            now: Moment::utc(&overview.now),
            sources: sources.collect(),
        }
    });
    PipelinePage {
        frame: Frame::new("Pipeline", "pipeline", &client.caller).following_all(),
        shown,
        tools: client.tools(OVERVIEW, false),
    }
}

#[derive(Debug, Template)]
#[template(path = "run.html")]
pub(crate) struct RunPage {
    frame: Frame,
    source: String,
    epoch: String,
    run: Answer<RunShown>,
}

about!(RunPage, run);

#[derive(Debug)]
struct RunShown {
    told: api::RunShown,
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

pub(crate) async fn run(client: &ApiClient, (source, epoch): (&str, &str)) -> RunPage {
    let asked = path(&format!("{RUNS}/{epoch}"), &[("source", Some(source))]);
    let run = client.get::<api::RunShown>(&asked).await;
    let run = run.map(|run| RunShown {
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
        tools: client.tools(&asked, false),
        told: run,
    });
    let frame = Frame::new(format!("Run {epoch}"), "pipeline", &client.caller);
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
    done: Option<Answer<String>>,
    reason: Option<String>,
    counts: Answer<api::LetterCounts>,
    counts_tools: Tools,
    page: Answer<api::LettersPage>,
    more: Option<String>,
    tools: Tools,
}

about!(LettersPage, page);

/// The page of the dead letters of a kind.
fn page_of_kind(kind: &api::LetterKind) -> String {
    let source = ("source", Some(kind.source.name()));
    path(LETTERS_PAGE, &[source, ("reason", Some(&kind.kind))])
}

/// Whether dead letters can be asked for by the kind.
fn is_searchable(kind: &api::LetterKind) -> bool {
    !kind.kind.trim().is_empty() && kind.kind != OTHER_KINDS
}

/// Tries letters again: the one that a form names, or those of a source and a reason.
pub(crate) async fn replayed(client: &ApiClient, form: &Query) -> Answer<String> {
    let fields = ["id", "source", "reason"];
    let is_there = |field: &str| form.get(field).is_some();
    let is_said = is_there("id") || (is_there("source") && is_there("reason"));
    if !is_said {
        // By the API nothing stands for all.
        let detail = "The form does not say which letters: use a button of the page.";
        return Err(ApiError::own(400, "Nothing was tried again", detail));
    }
    let asked = path(
        &format!("{LETTERS}/replay"),
        &fields.map(|field| (field, form.get(field))),
    );
    let done = client.post::<api::LettersReplayed>(&asked).await?;
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
    client: &ApiClient,
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
        client.get::<api::LetterCounts>(&counts_path),
        client.get::<api::LettersPage>(&page_path)
    );
    let next = page.as_ref().ok().and_then(|page| page.cursor.as_deref());
    LettersPage {
        frame: Frame::new("Dead letters", "pipeline", &client.caller).following_all(),
        may_replay: client.caller.may_administer(),
        done,
        reason: query.get("reason").map(str::to_owned),
        counts_tools: client.tools(&counts_path, false),
        more: next.map(|next| query.at(LETTERS_PAGE, next)),
        tools: client.tools(&path(LETTERS, &parameters), true),
        counts,
        page,
    }
}

#[derive(Debug, Template)]
#[template(path = "reconciliations.html")]
pub(crate) struct ReconciliationsPage {
    frame: Frame,
    /// What was just approved.
    done: Option<Answer<String>>,
    page: Answer<ReconciliationsShown>,
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
    fn of(
        one: &api::ReconciliationShown,
        may_approve: bool,
        seen: &mut BTreeSet<(String, String)>,
    ) -> Self {
        let told = |name: &str| one.comparison.get(name).and_then(Value::as_str);
        let of = told("schedule").zip(told("view"));
        let is_newest =
            of.is_some_and(|(schedule, view)| seen.insert((schedule.to_owned(), view.to_owned())));
        let is_open = told("outcome").is_some_and(|outcome| TO_APPROVE.contains(&outcome));
        let can_approve = may_approve && is_newest && is_open && one.approval.is_none();
        let compared = one.comparison.get("number").and_then(Value::as_u64);
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
            approved: one.approval.as_ref().map(|approval| approval.by.clone()),
            to_approve: compared.filter(|_| can_approve),
        }
    }
}

/// Approves what the comparison found that a form names.
pub(crate) async fn approved(client: &ApiClient, form: &Query) -> Answer<String> {
    let fields = ["source", "number", "reason"];
    let asked = path(
        &format!("{RECONCILIATIONS}/approve"),
        &fields.map(|field| (field, form.get(field))),
    );
    let done = client.post::<api::ApprovalShown>(&asked).await?;
    Ok(format!(
        "Approved: {} puts right up to {} of {} the next time that schedules are carried out.",
        done.schedule,
        number(done.total),
        done.view
    ))
}

pub(crate) async fn reconciliations(
    client: &ApiClient,
    query: &Query,
    done: Option<Answer<String>>,
) -> ReconciliationsPage {
    let asked = path(RECONCILIATIONS, &[("cursor", query.get("cursor"))]);
    let (may_approve, mut seen) = (client.caller.may_administer(), BTreeSet::new());
    let page = client.get::<api::Reconciliations>(&asked).await;
    let page = page.map(|page| ReconciliationsShown {
        more: page
            .cursor
            .as_deref()
            .map(|next| query.at(RECONCILIATIONS_PAGE, next)),
        tools: client.tools(RECONCILIATIONS, true),
        rows: page
            .reconciliations
            .iter()
            .map(|one| ReconciliationRow::of(one, may_approve, &mut seen))
            .collect(),
    });
    ReconciliationsPage {
        frame: Frame::new("Reconciliations", "pipeline", &client.caller).following_all(),
        done,
        page,
    }
}
