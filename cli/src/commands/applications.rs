//! `applications`: lists applications and manages their capacities.

mod history;

use std::collections::HashMap;
use std::fmt::Write as _;

use anyhow::{Context as _, bail};
use schemas::clock::Clock;
use schemas::entities::Application;
use schemas::json_value::format_timestamp_ms;
use serde::Serialize;
use serde_json::Value;
use stores::admin::{
    ApplicationChange, ApplicationUsage, AuditContext, AuditEntry, AuditedChange, CapacityRequest,
    CapacityRequestFilter, CapacityRequestOutcome, DecisionOutcome, EntityAdmin, INGEST,
    RequestDecision, RequestState, TEXT_BYTES_MAX, is_reserved_actor,
};
use stores::listing::{ApplicationListing, ApplicationSort, ListingPage};
use stores::recounts::RecordedCount;

use super::Context;
use crate::args::{self, ApplicationsCommand, Switch};
use crate::clock::SystemClock;
use crate::failure;
use crate::installation::Installation;

/// Recorded actor of a change without a name.
const DEFAULT_ACTOR: &str = "cli";
/// Maximum changes and requests that `show` prints.
const ENTRIES_SHOWN: usize = 10;

/// Runs the command.
pub(super) async fn run(command: ApplicationsCommand, context: &Context) -> anyhow::Result<()> {
    let by = build_audit_context(&command)?;
    let installation = Installation::open_existing(context.settings()).await?;
    let entities = &*installation.stores().entities;
    let now_ms = SystemClock.now_ms();
    match command {
        ApplicationsCommand::List {
            limit,
            search,
            owner,
            sort,
            usage_from,
        } => {
            let sort = ApplicationSort::from(sort);
            let listing = ApplicationListing {
                sort,
                is_descending: sort.is_descending(),
                search,
                owner,
                usage_from,
            };
            list(context, &installation, listing, usize::try_from(limit)?).await
        }
        ApplicationsCommand::Show { id } => show(context, &installation, id).await,
        ApplicationsCommand::History { id, from, to } => {
            history::show(context, &installation, id, from, to).await
        }
        ApplicationsCommand::Set {
            id,
            capacity,
            enforce,
            ..
        } => {
            let change = ApplicationChange {
                athlete_capacity: capacity,
                is_enforced: enforce.map(|switch| switch == Switch::On),
            };
            let changed = entities.change_application(id, change, &by, now_ms).await?;
            let changed = changed.with_context(|| unknown_application(id))?;
            let entry = build_entries(&installation, vec![changed]).await?.pop();
            let entry = entry.with_context(|| unknown_application(id))?;
            context
                .output()
                .print_result(&entry, ApplicationEntry::format_line)
        }
        ApplicationsCommand::Ask { id, capacity, .. } => {
            let outcome = entities.request_capacity(id, capacity, &by, now_ms).await?;
            let request = RequestEntry::from(expect_new_request(id, outcome)?);
            context
                .output()
                .print_result(&request, RequestEntry::format_line)
        }
        ApplicationsCommand::Requests { all, limit } => {
            list_requests(context, entities, all, usize::try_from(limit)?).await
        }
        ApplicationsCommand::Grant {
            request, capacity, ..
        } => {
            let decided =
                entities.decide_request(request, RequestDecision::Grant(capacity), &by, now_ms);
            print_decision(context, request, decided.await?)
        }
        ApplicationsCommand::Refuse { request, .. } => {
            let decided = entities.decide_request(request, RequestDecision::Refuse, &by, now_ms);
            print_decision(context, request, decided.await?)
        }
    }
}

/// Returns the new request.
///
/// # Errors
/// An outcome without a new request.
fn expect_new_request(id: i64, outcome: CapacityRequestOutcome) -> anyhow::Result<CapacityRequest> {
    match outcome {
        CapacityRequestOutcome::Created(request) => Ok(request),
        CapacityRequestOutcome::AlreadyOpen(request) => bail!(
            "application {id}: request {} for a capacity of {} is still open; grant or refuse it first",
            request.id,
            request.athlete_capacity
        ),
        CapacityRequestOutcome::AlreadySufficient { athlete_capacity } => bail!(
            "application {id}: its capacity is already {athlete_capacity}; request a higher one"
        ),
        CapacityRequestOutcome::UnknownApplication => bail!(unknown_application(id)),
    }
}

fn unknown_application(id: i64) -> String {
    format!("application {id} does not exist; ingest it as a line of applications first")
}

/// Builds the audit context of a command: actor and reason.
fn build_audit_context(command: &ApplicationsCommand) -> anyhow::Result<AuditContext> {
    let (args::ActorArgs { by }, reason) = match command {
        ApplicationsCommand::Set { actor, reason, .. }
        | ApplicationsCommand::Ask { actor, reason, .. } => (actor, reason),
        ApplicationsCommand::Grant { actor, answer, .. }
        | ApplicationsCommand::Refuse { actor, answer, .. } => (actor, answer),
        _ => return Ok(AuditContext::default()),
    };
    for text in std::iter::once(by).chain(reason) {
        if text.len() > TEXT_BYTES_MAX {
            return Err(failure::usage_error(format!(
                "a text has {} bytes; the limit is {TEXT_BYTES_MAX}",
                text.len()
            )));
        }
    }
    if is_reserved_actor(by) {
        return Err(failure::usage_error(format!(
            "--by: the name {INGEST} is reserved for ingested lines; use another one"
        )));
    }
    let by = match by.trim() {
        "" => DEFAULT_ACTOR,
        by => by,
    };
    Ok(AuditContext {
        actor: by.to_owned(),
        reason: reason.clone(),
    })
}

/// An application in the output.
#[derive(Debug, Serialize)]
struct ApplicationEntry {
    id: i64,
    name: String,
    owner: Value,
    /// From the counter that limits connections, or from the last recount.
    connected_athletes: Option<i64>,
    counting: CountingEntry,
    athlete_capacity: i64,
    enforced: bool,
    /// Connected athletes as a fraction of the capacity, with four digits; null if the capacity is
    /// 0 or the number unknown.
    usage: Option<f64>,
}

impl ApplicationEntry {
    fn new(
        usage: ApplicationUsage,
        counting: CountingEntry,
        recounted: Option<RecordedCount>,
    ) -> Self {
        let recounted = recounted.map(|count| i64::try_from(count.connected).unwrap_or(i64::MAX));
        let connected = recounted.or(usage.connected);
        let capacity = usage.application.athlete_capacity;
        let used_fraction = connected.filter(|_| capacity > 0).map(|connected| {
            #[expect(clippy::cast_precision_loss, reason = "rounded below")]
            let fraction = connected as f64 / capacity as f64;
            (fraction * 1e4).round() / 1e4
        });
        Self {
            id: usage.application.id,
            name: usage.application.name,
            owner: usage.application.owner,
            connected_athletes: connected,
            counting,
            athlete_capacity: capacity,
            enforced: usage.is_enforced,
            usage: used_fraction,
        }
    }

    fn format_line(&self) -> String {
        let connected = match self.connected_athletes {
            Some(connected) => connected.to_string(),
            None => "?".to_owned(),
        };
        let enforced = if self.enforced { "" } else { ", not enforced" };
        let counted_at = match &self.counting.counted_at {
            Some(time) => format!(", counted at {time}"),
            None => String::new(),
        };
        format!(
            "{}  {}: {connected} of {} athletes are connected{counted_at}{enforced}",
            self.id,
            self.name.escape_debug(),
            self.athlete_capacity
        )
    }
}

/// Counting method of connected athletes.
#[derive(Debug, Serialize)]
struct CountingEntry {
    strategy: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    class: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    counted_at: Option<String>,
}

/// Builds the entries of applications; those of a class that recounts have the result of the last
/// recount.
async fn build_entries(
    installation: &Installation,
    usages: Vec<ApplicationUsage>,
) -> anyhow::Result<Vec<ApplicationEntry>> {
    let counting = installation.load_catalog()?.counting();
    let find_class = |application: &Application| {
        counting.find_class(application.id, application.athlete_capacity)
    };
    let is_recounted = |application: &Application| {
        counting
            .find_policy(application.id, application.athlete_capacity)
            .is_some()
    };
    let ids = usages.iter().map(|usage| &usage.application);
    let ids: Vec<i64> = ids
        .filter(|application| is_recounted(application))
        .map(|application| application.id)
        .collect();
    let mut recounted = HashMap::new();
    if !ids.is_empty() {
        let counts = installation
            .stores()
            .entities
            .counted_applications(&ids)
            .await?;
        let counts = counts.into_iter();
        recounted.extend(counts.filter_map(|count| Some((count.application_id, count.recorded?))));
    }
    let entries = usages.into_iter().map(|usage| {
        let recounted: Option<RecordedCount> = recounted.get(&usage.application.id).copied();
        let counting = CountingEntry {
            strategy: recounted.map_or("increments", |_| "recount"),
            class: find_class(&usage.application).map(|class| class.name().to_owned()),
            counted_at: recounted.map(|recounted| format_timestamp_ms(recounted.counted_at_ms)),
        };
        ApplicationEntry::new(usage, counting, recounted)
    });
    Ok(entries.collect())
}

/// Lists applications.
async fn list(
    context: &Context,
    installation: &Installation,
    listing: ApplicationListing,
    limit: usize,
) -> anyhow::Result<()> {
    let entities = &*installation.stores().entities;
    let ListingPage::Entries(page) = listing.read_page(entities, None, limit).await? else {
        bail!(
            "cannot sort or filter by connected athletes: authorizations are a view of your own tables, which is not counted; use --sort id or --sort name, without --usage-from"
        );
    };
    let usages = page.into_iter().map(|(_, usage)| usage);
    let entries = build_entries(installation, usages.collect()).await?;
    context
        .output()
        .print_list(&entries, "no applications", ApplicationEntry::format_line)
}

/// Lists requests for a higher capacity; `all` includes decided ones.
async fn list_requests(
    context: &Context,
    entities: &dyn EntityAdmin,
    all: bool,
    limit: usize,
) -> anyhow::Result<()> {
    let filter = CapacityRequestFilter {
        application_id: None,
        state: (!all).then_some(RequestState::Open),
    };
    let requests = entities.capacity_requests(filter, None, limit).await?;
    let entries: Vec<_> = requests.into_iter().map(RequestEntry::from).collect();
    let empty_text = "no requests for a higher capacity";
    context
        .output()
        .print_list(&entries, empty_text, RequestEntry::format_line)
}

/// An application with its requests and changes.
#[derive(Debug, Serialize)]
struct Details {
    #[serde(flatten)]
    application: ApplicationEntry,
    /// Newest first.
    requests: Vec<RequestEntry>,
    /// Newest first.
    changes: Vec<ChangeEntry>,
}

async fn show(context: &Context, installation: &Installation, id: i64) -> anyhow::Result<()> {
    let entities = &*installation.stores().entities;
    let usage = entities.usages_by_id(&[id]).await?.pop();
    let filter = CapacityRequestFilter {
        application_id: Some(id),
        state: None,
    };
    let requests = entities
        .capacity_requests(filter, None, ENTRIES_SHOWN)
        .await?;
    let changes = entities.audit_entries(id, None, ENTRIES_SHOWN).await?;
    let application = build_entries(installation, usage.into_iter().collect())
        .await?
        .pop();
    let details = Details {
        application: application.with_context(|| unknown_application(id))?,
        requests: requests.into_iter().map(RequestEntry::from).collect(),
        changes: changes.into_iter().map(ChangeEntry::from).collect(),
    };
    context.output().print_result(&details, |details| {
        let mut text = details.application.format_line() + "\n";
        for request in &details.requests {
            let _written = writeln!(text, "    {}", request.format_line());
        }
        for change in &details.changes {
            let _written = writeln!(text, "    {}", change.format_line());
        }
        text
    })
}

#[derive(Debug, Serialize)]
struct RequestEntry {
    id: i64,
    application_id: i64,
    athlete_capacity: i64,
    reason: Option<String>,
    asked_by: String,
    asked_at: String,
    state: &'static str,
    granted_capacity: Option<i64>,
    decided_by: Option<String>,
    decided_at: Option<String>,
    answer: Option<String>,
}

impl From<CapacityRequest> for RequestEntry {
    fn from(request: CapacityRequest) -> Self {
        let (decided_by, answer) = match request.decided_by {
            Some(AuditContext { actor, reason }) => (Some(actor), reason),
            None => (None, None),
        };
        Self {
            id: request.id,
            application_id: request.application_id,
            athlete_capacity: request.athlete_capacity,
            reason: request.requested_by.reason,
            asked_by: request.requested_by.actor,
            asked_at: format_timestamp_ms(request.requested_at_ms),
            state: request.state.name(),
            granted_capacity: request.granted_capacity,
            decided_by,
            decided_at: request.decided_at_ms.map(format_timestamp_ms),
            answer,
        }
    }
}

impl RequestEntry {
    fn format_line(&self) -> String {
        let mut text = format!(
            "request {}: application {} requests {}, by {} at {}, is {}",
            self.id,
            self.application_id,
            self.athlete_capacity,
            self.asked_by.escape_debug(),
            self.asked_at,
            self.state
        );
        if let Some(granted) = self.granted_capacity {
            let _written = write!(text, " ({granted})");
        }
        if let Some(by) = &self.decided_by {
            let _written = write!(text, " by {}", by.escape_debug());
        }
        if let Some(reason) = &self.reason {
            let _written = write!(text, "; {}", reason.escape_debug());
        }
        text
    }
}

#[derive(Debug, Serialize)]
struct ChangeEntry {
    at: String,
    by: String,
    changed: &'static str,
    before: Value,
    after: Value,
    reason: Option<String>,
    request_id: Option<i64>,
}

impl From<AuditEntry> for ChangeEntry {
    fn from(entry: AuditEntry) -> Self {
        let (changed, before, after) = match entry.changed {
            AuditedChange::Capacity { before, after } => ("capacity", before.into(), after.into()),
            AuditedChange::Enforcement { before, after } => {
                ("enforced", before.into(), after.into())
            }
            AuditedChange::Owner { before, after } => ("owner", before, after),
        };
        Self {
            at: format_timestamp_ms(entry.at_ms),
            by: entry.actor,
            changed,
            before,
            after,
            reason: entry.reason,
            request_id: entry.request_id,
        }
    }
}

impl ChangeEntry {
    fn format_line(&self) -> String {
        let reason = match &self.reason {
            Some(reason) => format!("; {}", reason.escape_debug()),
            None => String::new(),
        };
        format!(
            "{}  {}: {} -> {}, by {}{reason}",
            self.at,
            self.changed,
            self.before,
            self.after,
            self.by.escape_debug()
        )
    }
}

fn print_decision(context: &Context, id: i64, outcome: DecisionOutcome) -> anyhow::Result<()> {
    match outcome {
        DecisionOutcome::Done { request, .. } => {
            let request = RequestEntry::from(request);
            context
                .output()
                .print_result(&request, RequestEntry::format_line)
        }
        DecisionOutcome::AlreadyDecided(request) => {
            bail!("request {id} is already {}", request.state.name())
        }
        DecisionOutcome::WouldLower { athlete_capacity } => bail!(
            "request {id}: the application already has a capacity of {athlete_capacity}; the request stays open; grant at least that, or refuse it"
        ),
        DecisionOutcome::Unknown => {
            bail!("request {id} does not exist, or its application was deleted")
        }
    }
}
