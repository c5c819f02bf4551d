//! `erase`: removes a person from every store, searches for one, and lists receipts.

use std::io::{self, IsTerminal as _, Write as _};
use std::sync::Arc;

use batch::{ErasePorts, EraseRequest, Eraser, Finding, Receipt};
use schemas::json_value::format_timestamp_ms;
use serde::Serialize;
use stores::erasures::{Attribution, Person, PersonKind};
use tokio_util::sync::CancellationToken;

use super::Context;
use crate::args::{EraseArgs, EraseCommand, PeopleArgs};
use crate::failure::Differs;
use crate::installation::Installation;
use crate::progress::Stages;

/// Result of the search for one person.
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
    fn new(person: Person, found: Vec<Finding>) -> Self {
        let id_of = |kind| (person.kind == kind).then_some(person.id);
        Self {
            listener_id: id_of(PersonKind::Listener),
            athlete_id: id_of(PersonKind::Athlete),
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
        entities: Arc::clone(&stores.entities) as _,
        entity_eraser: Arc::clone(&stores.entity_eraser),
        achievements: Arc::clone(&stores.achievements),
        data_folder: stores.data_folder.clone(),
        partitions: context.settings().log.partitions,
    };
    let eraser = Eraser::new(installation.batch(&engine)?, ports);
    let (is_list, is_verify, people) = match &args.command {
        Some(EraseCommand::List) => (true, false, Vec::new()),
        Some(EraseCommand::Verify(people)) => (false, true, distinct(people)),
        None => (args.list, args.verify, distinct(&args.people)),
    };
    if is_list {
        let receipts = eraser.list().await?;
        return context.output().list(&receipts, "no erasures yet", listed);
    }
    if is_verify {
        let found = eraser.verify(&people).await?;
        let searched: Vec<Searched> = found
            .into_iter()
            .map(|(person, found)| Searched::new(person, found))
            .collect();
        context.output().result(&searched, |all| verified(all))?;
        return match searched.iter().all(|one| one.found.is_empty()) {
            true => Ok(()),
            false => Err(differs(
                "a person is still found; erase that person again to remove the rest",
            )),
        };
    }
    if !args.yes && !is_confirmed(&people)? {
        anyhow::bail!("not confirmed; nothing was erased");
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
            "some data is not erased yet; the receipt names it and the reason",
        )),
    }
}

/// Asks for a confirmation on a terminal. Without one the command line is the confirmation.
fn is_confirmed(people: &[Person]) -> anyhow::Result<bool> {
    let (input, mut output) = (io::stdin(), io::stderr());
    if !input.is_terminal() || !output.is_terminal() {
        return Ok(true);
    }
    let names: Vec<String> = people
        .iter()
        .map(|person| format!("{} {}", person.kind.name(), person.id))
        .collect();
    let names = names.join(", ");
    write!(
        output,
        "Erase {names} from every store? This cannot be undone. [y/N] "
    )?;
    output.flush()?;
    let mut answer = String::new();
    input.read_line(&mut answer)?;
    Ok(matches!(answer.trim(), "y" | "Y" | "yes"))
}

fn differs(why: &str) -> anyhow::Error {
    anyhow::Error::new(Differs(Some(why.to_owned())))
}

/// The named people, each once.
fn distinct(args: &PeopleArgs) -> Vec<Person> {
    let with_kind = |kind: PersonKind, ids: &[i64]| -> Vec<Person> {
        ids.iter().map(|id| Person { kind, id: *id }).collect()
    };
    let mut people = with_kind(PersonKind::Listener, &args.listeners);
    people.extend(with_kind(PersonKind::Athlete, &args.athletes));
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
        Some(at_ms) => format!("done at {}", format_timestamp_ms(at_ms)),
        None => "not finished".to_owned(),
    };
    let mut text = format!(
        "erasure {} of one {}, begun at {}: {state}\n",
        receipt.number,
        receipt.kind.name(),
        format_timestamp_ms(receipt.begun_at_ms)
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
        Some(at_ms) => format!("done at {}", format_timestamp_ms(at_ms)),
        None => format!("not finished: {}; erase the same person again", one.step),
    };
    let found: u64 = one.places.iter().map(|place| place.found).sum();
    format!(
        "{:>6}  {:<8}  begun at {}  found {found}  {state}",
        one.number,
        one.kind.name(),
        format_timestamp_ms(one.begun_at_ms)
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
