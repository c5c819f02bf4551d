//! `applications`: looking after how many athletes may connect.

mod history;

use std::collections::HashMap;
use std::fmt::Write as _;

use anyhow::{Context as _, bail};
use schemas::clock::Clock;
use schemas::entities::Application;
use schemas::shown::moment;
use serde::Serialize;
use serde_json::Value;
use stores::admin::{
    AuditEntry, By, CanonAdmin, CapacityRequest, Change, Changed, Decided, Decision, INGEST,
    RequestState, Requested, RequestsOf, TEXT_BYTES_MAX, Usage, is_reserved,
};
use stores::listing::{Listed, Listing, Sort};
use stores::recounts::Recounted;

use super::Context;
use crate::args::{self, ApplicationsCommand, Switch};
use crate::clock::SystemClock;
use crate::failure;
use crate::installation::Installation;

/// Who changes something where nobody says who it is.
const SOMEBODY: &str = "cli";
/// What is shown of what was changed and asked for.
const SHOWN: usize = 10;

/// Runs the command.
pub(super) async fn run(command: ApplicationsCommand, context: &Context) -> anyhow::Result<()> {
    let by = said(&command)?;
    let installation = Installation::open_existing(context.settings()).await?;
    let canon = &*installation.stores().canon;
    let now_ms = SystemClock.now_ms();
    match command {
        ApplicationsCommand::List {
            limit,
            search,
            owner,
            sort,
            usage_from,
        } => {
            let sort = Sort::from(sort);
            let listing = Listing {
                sort,
                descends: sort.descends(),
                search,
                owner,
                usage_from,
            };
            list(context, &installation, listing, usize::try_from(limit)?).await
        }
        ApplicationsCommand::Show { id } => show(context, &installation, id).await,
        ApplicationsCommand::History { id, from, to } => {
            history::show(context, &installation, id, (from, to)).await
        }
        ApplicationsCommand::Set {
            id,
            capacity,
            enforce,
            ..
        } => {
            let change = Change {
                athlete_capacity: capacity,
                is_enforced: enforce.map(|switch| switch == Switch::On),
            };
            let changed = canon.change(id, change, &by, now_ms).await?;
            let changed = changed.with_context(|| unknown(id))?;
            let shown = shown(&installation, vec![changed]).await?.pop();
            let shown = shown.with_context(|| unknown(id))?;
            context.output().result(&shown, Shown::line)
        }
        ApplicationsCommand::Ask { id, capacity, .. } => {
            let asked = canon.request_capacity(id, capacity, &by, now_ms).await?;
            let request = RequestShown::of(made(id, asked)?);
            context.output().result(&request, RequestShown::line)
        }
        ApplicationsCommand::Requests { all, limit } => {
            requests(context, canon, all, usize::try_from(limit)?).await
        }
        ApplicationsCommand::Grant {
            request, capacity, ..
        } => {
            let decided = canon.decide(request, Decision::Grant(capacity), &by, now_ms);
            done(context, request, decided.await?)
        }
        ApplicationsCommand::Refuse { request, .. } => {
            let decided = canon.decide(request, Decision::Refuse, &by, now_ms);
            done(context, request, decided.await?)
        }
    }
}

/// The request that was made; an error if there is none.
fn made(id: i64, asked: Requested) -> anyhow::Result<CapacityRequest> {
    match asked {
        Requested::New(request) => Ok(request),
        Requested::Open(request) => bail!(
            "application {id}: request {} for a capacity of {} is open already; grant or refuse it first",
            request.id,
            request.athlete_capacity
        ),
        Requested::Enough { athlete_capacity } => bail!(
            "application {id}: its capacity is {athlete_capacity} already; ask for more than that"
        ),
        Requested::UnknownApplication => bail!(unknown(id)),
    }
}

fn unknown(id: i64) -> String {
    format!("application {id}: there is none; ingest it as a line of applications first")
}

/// Who does something and why, as the command says.
fn said(command: &ApplicationsCommand) -> anyhow::Result<By> {
    let (by, why) = match command {
        ApplicationsCommand::Set { by, reason, .. }
        | ApplicationsCommand::Ask { by, reason, .. } => (by, reason),
        ApplicationsCommand::Grant { by, answer, .. }
        | ApplicationsCommand::Refuse { by, answer, .. } => (by, answer),
        _ => return Ok(By::default()),
    };
    let args::By { by } = by;
    for text in std::iter::once(by).chain(why) {
        if text.len() > TEXT_BYTES_MAX {
            return Err(failure::usage(format!(
                "a text has {} bytes; at most {TEXT_BYTES_MAX} are kept",
                text.len()
            )));
        }
    }
    if is_reserved(by) {
        return Err(failure::usage(format!(
            "--by: {INGEST} stands for lines that are ingested; write who it is"
        )));
    }
    let by = match by.trim() {
        "" => SOMEBODY,
        by => by,
    };
    Ok(By {
        actor: by.to_owned(),
        reason: why.clone(),
    })
}

/// An application, as it is printed.
#[derive(Debug, Serialize)]
struct Shown {
    id: i64,
    name: String,
    owner: Value,
    /// By the counter that connecting is decided by, or as it was counted anew.
    connected_athletes: Option<i64>,
    counting: CountingShown,
    athlete_capacity: i64,
    enforced: bool,
    /// Connected athletes by capacity, with four digits; nothing where that is 0 or nobody counts them.
    usage: Option<f64>,
}

impl Shown {
    fn of(usage: Usage, counting: CountingShown, recounted: Option<Recounted>) -> Self {
        let recounted = recounted.map(|of| i64::try_from(of.connected).unwrap_or(i64::MAX));
        let connected = recounted.or(usage.connected);
        let capacity = usage.application.athlete_capacity;
        let part = connected.filter(|_| capacity > 0).map(|connected| {
            #[expect(clippy::cast_precision_loss, reason = "it is rounded")]
            let part = connected as f64 / capacity as f64;
            (part * 1e4).round() / 1e4
        });
        Self {
            id: usage.application.id,
            name: usage.application.name,
            owner: usage.application.owner,
            connected_athletes: connected,
            counting,
            athlete_capacity: capacity,
            enforced: usage.is_enforced,
            usage: part,
        }
    }

    fn line(&self) -> String {
        let connected = match self.connected_athletes {
            Some(connected) => connected.to_string(),
            None => "?".to_owned(),
        };
        let enforced = if self.enforced { "" } else { ", not enforced" };
        let counted = match &self.counting.counted_at {
            Some(at) => format!(", counted at {at}"),
            None => String::new(),
        };
        format!(
            "{}  {}: {connected} of {} athletes are connected{counted}{enforced}",
            self.id,
            self.name.escape_debug(),
            self.athlete_capacity
        )
    }
}

/// How the number of connected athletes was counted.
#[derive(Debug, Serialize)]
struct CountingShown {
    strategy: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    class: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    counted_at: Option<String>,
}

/// Applications as they are printed: those of classes that recount with what was counted last.
async fn shown(installation: &Installation, usages: Vec<Usage>) -> anyhow::Result<Vec<Shown>> {
    let counting = installation.catalog()?.counting();
    let class = |of: &Application| counting.class_of(of.id, of.athlete_capacity);
    let recounts = |of: &Application| counting.policy_of(of.id, of.athlete_capacity).is_some();
    let ids = usages.iter().map(|usage| &usage.application);
    let ids: Vec<i64> = ids.filter(|of| recounts(of)).map(|of| of.id).collect();
    let mut recounted = HashMap::new();
    if !ids.is_empty() {
        let found = installation.stores().canon.countables(&ids).await?;
        let found = found.into_iter();
        recounted.extend(found.filter_map(|of| Some((of.application_id, of.recounted?))));
    }
    let shown = usages.into_iter().map(|usage| {
        let recounted: Option<Recounted> = recounted.get(&usage.application.id).copied();
        let counting = CountingShown {
            strategy: recounted.map_or("increments", |_| "recount"),
            class: class(&usage.application).map(|class| class.name().to_owned()),
            counted_at: recounted.map(|recounted| moment(recounted.counted_at_ms)),
        };
        Shown::of(usage, counting, recounted)
    });
    Ok(shown.collect())
}

/// Applications in an order.
async fn list(
    context: &Context,
    installation: &Installation,
    listing: Listing,
    limit: usize,
) -> anyhow::Result<()> {
    let canon = &*installation.stores().canon;
    let Listed::Found(found) = listing.first(canon, None, limit).await? else {
        bail!(
            "authorizations are a view of an app's own tables, and the database does not count their athletes: write --sort id or --sort name, and leave --usage-from out"
        );
    };
    let usages = found.into_iter().map(|(_, usage)| usage);
    let shown = shown(installation, usages.collect()).await?;
    context
        .output()
        .list(&shown, "no applications", Shown::line)
}

/// Who asks for a higher capacity; `all` shows those that are decided too.
async fn requests(
    context: &Context,
    canon: &dyn CanonAdmin,
    all: bool,
    limit: usize,
) -> anyhow::Result<()> {
    let of = RequestsOf {
        application_id: None,
        state: (!all).then_some(RequestState::Open),
    };
    let found = canon.capacity_requests(of, None, limit).await?;
    let shown: Vec<_> = found.into_iter().map(RequestShown::of).collect();
    let none = "nobody asks for a higher capacity";
    context.output().list(&shown, none, RequestShown::line)
}

/// What is known of an application.
#[derive(Debug, Serialize)]
struct All {
    #[serde(flatten)]
    application: Shown,
    /// Newest first.
    requests: Vec<RequestShown>,
    /// Newest first.
    changes: Vec<ChangeShown>,
}

async fn show(context: &Context, installation: &Installation, id: i64) -> anyhow::Result<()> {
    let canon = &*installation.stores().canon;
    let usage = canon.usages_of(&[id]).await?.pop();
    let of = RequestsOf {
        application_id: Some(id),
        state: None,
    };
    let requests = canon.capacity_requests(of, None, SHOWN).await?;
    let changes = canon.audit(id, None, SHOWN).await?;
    let application = shown(installation, usage.into_iter().collect())
        .await?
        .pop();
    let all = All {
        application: application.with_context(|| unknown(id))?,
        requests: requests.into_iter().map(RequestShown::of).collect(),
        changes: changes.into_iter().map(ChangeShown::of).collect(),
    };
    context.output().result(&all, |all| {
        let mut text = all.application.line() + "\n";
        for request in &all.requests {
            let _written = writeln!(text, "    {}", request.line());
        }
        for change in &all.changes {
            let _written = writeln!(text, "    {}", change.line());
        }
        text
    })
}

#[derive(Debug, Serialize)]
struct RequestShown {
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

impl RequestShown {
    fn of(request: CapacityRequest) -> Self {
        let (decided_by, answer) = match request.decided {
            Some(By { actor, reason }) => (Some(actor), reason),
            None => (None, None),
        };
        Self {
            id: request.id,
            application_id: request.application_id,
            athlete_capacity: request.athlete_capacity,
            reason: request.asked.reason,
            asked_by: request.asked.actor,
            asked_at: moment(request.asked_at_ms),
            state: request.state.name(),
            granted_capacity: request.granted_capacity,
            decided_by,
            decided_at: request.decided_at_ms.map(moment),
            answer,
        }
    }

    fn line(&self) -> String {
        let mut text = format!(
            "request {}: application {} asks for {}, by {} at {}, is {}",
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
struct ChangeShown {
    at: String,
    by: String,
    changed: &'static str,
    before: Value,
    after: Value,
    reason: Option<String>,
    request_id: Option<i64>,
}

impl ChangeShown {
    fn of(entry: AuditEntry) -> Self {
        let (changed, before, after) = match entry.changed {
            Changed::Capacity { before, after } => ("capacity", before.into(), after.into()),
            Changed::Enforcement { before, after } => ("enforced", before.into(), after.into()),
            Changed::Owner { before, after } => ("owner", before, after),
        };
        Self {
            at: moment(entry.at_ms),
            by: entry.actor,
            changed,
            before,
            after,
            reason: entry.reason,
            request_id: entry.request_id,
        }
    }

    fn line(&self) -> String {
        let why = match &self.reason {
            Some(reason) => format!("; {}", reason.escape_debug()),
            None => String::new(),
        };
        format!(
            "{}  {}: {} -> {}, by {}{why}",
            self.at,
            self.changed,
            self.before,
            self.after,
            self.by.escape_debug()
        )
    }
}

fn done(context: &Context, id: i64, decided: Decided) -> anyhow::Result<()> {
    match decided {
        Decided::Done { request, .. } => {
            let request = RequestShown::of(request);
            context.output().result(&request, RequestShown::line)
        }
        Decided::Already(request) => {
            bail!("request {id}: it is {} already", request.state.name())
        }
        Decided::Lowers { athlete_capacity } => bail!(
            "request {id}: the application has a capacity of {athlete_capacity} already, and the request is still open; grant at least that, or refuse it"
        ),
        Decided::Unknown => bail!("request {id}: there is none, or its application is gone"),
    }
}
