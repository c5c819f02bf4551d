//! `erase`: removes somebody from every store, searches for them, and shows what was erased.

use std::sync::Arc;

use batch::{ErasePorts, EraseRequest, Eraser, Finding, Receipt};
use schemas::shown::moment;
use serde::Serialize;
use stores::erasures::{Attribution, Kind, Person};
use tokio_util::sync::CancellationToken;

use super::Context;
use crate::args::EraseArgs;
use crate::failure::Differs;
use crate::installation::Installation;
use crate::progress::Stages;

/// What `--verify` prints of one person.
#[derive(Debug, Serialize)]
struct Searched {
    #[serde(skip_serializing_if = "Option::is_none")]
    listener_id: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    athlete_id: Option<i64>,
    /// Where the person is found; nothing if nowhere.
    found: Vec<Finding>,
    #[serde(skip)]
    person: Person,
}

impl Searched {
    fn new((person, found): (Person, Vec<Finding>)) -> Self {
        let id_of = |kind| (person.kind == kind).then_some(person.id);
        Self {
            listener_id: id_of(Kind::Listener),
            athlete_id: id_of(Kind::Athlete),
            found,
            person,
        }
    }
}

/// Runs the command.
pub(super) async fn run(
    args: &EraseArgs,
    context: &Context,
    stop: CancellationToken,
) -> anyhow::Result<()> {
    let installation = Installation::open_existing(context.settings()).await?;
    let engine = installation.engine()?;
    let stores = installation.stores();
    let ports = ErasePorts {
        log: Arc::clone(&stores.log),
        canon: Arc::clone(&stores.canon) as _,
        canon_erase: Arc::clone(&stores.canon_erase),
        achievements: Arc::clone(&stores.achievements),
        data_folder: stores.data_folder.clone(),
        partitions: context.settings().log.partitions,
    };
    let eraser = Eraser::build(installation.batch(&engine)?, ports);
    if args.list {
        let receipts = eraser.list().await?;
        return context
            .output()
            .list(&receipts, "nobody was erased", listed);
    }
    let people = people(args);
    if args.verify {
        let found = eraser.verify(&people).await?;
        let searched: Vec<Searched> = found.into_iter().map(Searched::new).collect();
        context.output().result(&searched, |all| verified(all))?;
        return match searched.iter().all(|one| one.found.is_empty()) {
            true => Ok(()),
            false => Err(differs(
                "somebody is still found; erase them, and what is left goes",
            )),
        };
    }
    let request = EraseRequest {
        attribution: Attribution {
            by: args.by.clone(),
            reason: args.reason.clone(),
        },
        keep_log: args.keep_log,
    };
    let receipts = eraser
        .erase(&people, &request, &Stages::default(), &stop)
        .await?;
    context.output().result(&receipts, |all| told(all))?;
    match receipts.iter().all(Receipt::is_clean) {
        true => Ok(()),
        false => Err(differs(
            "not everything is gone yet; the receipt says what is left and why",
        )),
    }
}

fn differs(why: &str) -> anyhow::Error {
    anyhow::Error::new(Differs(Some(why.to_owned())))
}

/// Whom the command line names, each once.
fn people(args: &EraseArgs) -> Vec<Person> {
    let of = |kind: Kind, ids: &[i64]| -> Vec<Person> {
        ids.iter().map(|id| Person { kind, id: *id }).collect()
    };
    let mut people = of(Kind::Listener, &args.listeners);
    people.extend(of(Kind::Athlete, &args.athletes));
    people.sort_unstable();
    people.dedup();
    people
}

fn told(receipts: &[Receipt]) -> String {
    receipts.iter().map(receipt).collect::<Vec<_>>().join("\n")
}

/// A receipt as text.
fn receipt(receipt: &Receipt) -> String {
    let state = match receipt.finished_at_ms {
        Some(at_ms) => format!("done at {}", moment(at_ms)),
        None => "not finished".to_owned(),
    };
    let mut text = format!(
        "erasure {} of one {}, begun at {}: {state}\n",
        receipt.number,
        receipt.kind.name(),
        moment(receipt.begun_at_ms)
    );
    for (name, value) in [("asked for by", &receipt.by), ("because", &receipt.reason)] {
        if !value.is_empty() {
            text += &format!("{name} {value}\n");
        }
    }
    for place in &receipt.places {
        text += &format!(
            "  {:<18} {:<44} found {:>8}  left {:>8}\n",
            place.place, place.at, place.found, place.left
        );
    }
    for note in &receipt.notes {
        text += &format!("note: {note}\n");
    }
    text
}

fn listed(one: &Receipt) -> String {
    let state = match one.finished_at_ms {
        Some(at_ms) => format!("done at {}", moment(at_ms)),
        None => format!("not finished: {}; erase the same person again", one.step),
    };
    let found: u64 = one.places.iter().map(|place| place.found).sum();
    format!(
        "{:>6}  {:<8}  begun at {}  found {found}  {state}",
        one.number,
        one.kind.name(),
        moment(one.begun_at_ms)
    )
}

fn verified(searched: &[Searched]) -> String {
    let mut text = String::new();
    for one in searched {
        let who = format!("{} {}", one.person.kind.name(), one.person.id);
        if one.found.is_empty() {
            text += &format!("{who}: found nowhere\n");
        }
        for Finding { found, place, at } in &one.found {
            text += &format!("{who}: {found} in {place} {at}\n");
        }
    }
    text
}
