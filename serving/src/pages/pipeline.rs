//! What happens between the log and the answers: positions and lag, batch runs, what could not be taken, what was compared.

use std::collections::BTreeSet;

use askama::Template;
use axum::response::Response;
use jiff::Timestamp;
use serde_json::Value;
use stores::dead_letters::OTHER_KINDS;

use super::ask::{Answer, ApiClient, ApiError, path};
use super::differences::Differences;
use super::live::logged;
use super::overview::{drift, lag, or_least, title};
use super::parts::{Frame, Tools, answered, rendered};
use super::query::Query;
use super::shown::{self, Moment, number, percent, took};
use super::{api, no_number};
use crate::http::Path;

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
struct PipelinePage {
    frame: Frame,
    shown: Answer<api::Overview>,
    client: ApiClient,
}

impl PipelinePage {
    /// How to ask for all runs of a source, also older ones.
    fn all_runs(&self, source: &api::SourceShown) -> Tools {
        let of_source = [("source", Some(source.source.name()))];
        self.client.tools(&path(RUNS, &of_source), true)
    }
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

pub(super) async fn page(client: ApiClient) -> Response {
    let page = PipelinePage {
        frame: Frame::new("Pipeline", "pipeline", &client.caller).following_all(),
        shown: client.get(OVERVIEW).await,
        client,
    };
    answered(&page, page.shown.as_ref().err())
}

#[derive(Debug, Template)]
#[template(path = "run.html")]
struct RunPage {
    frame: Frame,
    source: String,
    epoch: String,
    run: Answer<api::RunShown>,
    tools: Tools,
}

/// The offsets below which a run covers every event.
fn cuts(run: &api::RunShown) -> String {
    let cuts = run.cuts.iter().map(|cut| number(*cut));
    cuts.collect::<Vec<_>>().join(" · ")
}

#[derive(Debug)]
struct Stage {
    name: String,
    took: String,
    part: String,
    percent: String,
}

/// The stages of a run, in the order in which they follow each other.
fn stages(run: &api::RunShown) -> Vec<Stage> {
    const ORDER: [&str; 8] = [
        "seal", "archive", "snapshot", "compute", "check", "publish", "drift", "drop",
    ];
    let told = run.report.as_ref();
    let told = told.and_then(|report| report.get("seconds")?.as_object());
    let mut stages: Vec<(&str, f64)> = told
        .into_iter()
        .flatten()
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
    fn all(run: &api::RunShown) -> Vec<Self> {
        let views = told(run, "views").as_array();
        views.into_iter().flatten().map(Self::of).collect()
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

pub(super) async fn run(
    client: ApiClient,
    Path((source, epoch)): Path<(String, String)>,
) -> Response {
    if crate::http::integer(&epoch).is_none() {
        return no_number(&client, "runs", &epoch);
    }
    let asked = path(&format!("{RUNS}/{epoch}"), &[("source", Some(&source))]);
    let frame = Frame::new(format!("Run {epoch}"), "pipeline", &client.caller);
    let page = RunPage {
        frame: match logged(&source) {
            Some(source) => frame.following(source.name()),
            None => frame,
        },
        run: client.get(&asked).await,
        tools: client.tools(&asked, false),
        source,
        epoch,
    };
    answered(&page, page.run.as_ref().err())
}

/// A page that may tell what a form did, or why it did nothing.
fn told_page(
    page: &impl Template,
    done: Option<&Answer<String>>,
    error: Option<&ApiError>,
) -> Response {
    match done {
        Some(Err(refused)) => rendered(refused.status(), page),
        Some(Ok(_)) | None => answered(page, error),
    }
}

#[derive(Debug, Template)]
#[template(path = "dead_letters.html")]
struct LettersPage {
    frame: Frame,
    /// Whether who looks may try letters again.
    may_replay: bool,
    /// What became of letters that were just tried again.
    done: Option<Answer<String>>,
    query: Query,
    counts: Answer<api::LetterCounts>,
    counts_tools: Tools,
    page: Answer<api::LettersPage>,
    tools: Tools,
}

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

pub(super) async fn dead_letters(
    client: &ApiClient,
    query: Query,
    done: Option<Answer<String>>,
) -> Response {
    let parameters = ["source", "reason"].map(|name| (name, query.get(name)));
    let mut with_cursor = parameters.to_vec();
    with_cursor.extend([("cursor", query.get("cursor")), ("limit", Some("20"))]);
    let page_path = path(LETTERS, &with_cursor);
    let counts_path = format!("{LETTERS}/counts");
    let (counts, page) = tokio::join!(
        client.get::<api::LetterCounts>(&counts_path),
        client.get::<api::LettersPage>(&page_path)
    );
    let page = LettersPage {
        frame: Frame::new("Dead letters", "pipeline", &client.caller).following_all(),
        may_replay: client.caller.may_administer(),
        done,
        counts_tools: client.tools(&counts_path, false),
        tools: client.tools(&path(LETTERS, &parameters), true),
        query,
        counts,
        page,
    };
    told_page(&page, page.done.as_ref(), page.page.as_ref().err())
}

#[derive(Debug, Template)]
#[template(path = "reconciliations.html")]
struct ReconciliationsPage {
    frame: Frame,
    /// What was just approved.
    done: Option<Answer<String>>,
    query: Query,
    page: Answer<api::Reconciliations>,
    may_approve: bool,
    tools: Tools,
}

impl ReconciliationsPage {
    fn rows<'a>(&self, page: &'a api::Reconciliations) -> Vec<ReconciliationRow<'a>> {
        let mut seen = BTreeSet::new();
        let row = |one| ReconciliationRow::of(one, self.may_approve, &mut seen);
        page.reconciliations.iter().map(row).collect()
    }
}

#[derive(Debug)]
struct ReconciliationRow<'a> {
    one: &'a api::ReconciliationShown,
    what: String,
    outcome: String,
    class: &'static str,
    why: Option<&'a str>,
    /// The comparison's number, where who looks may approve what it found.
    to_approve: Option<u64>,
}

/// What a schedule can put right once somebody has approved it.
const TO_APPROVE: [&str; 2] = ["differs", "held_back"];

impl<'a> ReconciliationRow<'a> {
    /// A row; `seen` are the schedules with views of which newer comparisons are above.
    fn of(
        one: &'a api::ReconciliationShown,
        may_approve: bool,
        seen: &mut BTreeSet<(&'a str, &'a str)>,
    ) -> Self {
        let told = |name: &str| one.comparison.get(name).and_then(Value::as_str);
        let of = told("schedule").zip(told("view"));
        let is_newest = of.is_some_and(|of| seen.insert(of));
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
            one,
            what,
            outcome,
            class,
            why: one.unknown.as_deref().or_else(|| told("held_back")),
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

pub(super) async fn reconciliations(
    client: &ApiClient,
    query: Query,
    done: Option<Answer<String>>,
) -> Response {
    let asked = path(RECONCILIATIONS, &[("cursor", query.get("cursor"))]);
    let page = ReconciliationsPage {
        frame: Frame::new("Reconciliations", "pipeline", &client.caller).following_all(),
        done,
        query,
        page: client.get(&asked).await,
        may_approve: client.caller.may_administer(),
        tools: client.tools(RECONCILIATIONS, true),
    };
    told_page(&page, page.done.as_ref(), page.page.as_ref().err())
}
