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
use crate::failure::UnrepairedDifferences;
use crate::installation::Installation;
use crate::progress::StageBars;

/// Result of the search for one person.
#[derive(Debug, Serialize)]
struct SearchResult {
    #[serde(skip_serializing_if = "Option::is_none")]
    listener_id: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    athlete_id: Option<i64>,
    /// Places that contain the person; empty if there are none.
    found: Vec<Finding>,
    #[serde(skip)]
    person: Person,
}

impl SearchResult {
    fn new(person: Person, found: Vec<Finding>) -> Self {
        let id_if = |kind| (person.kind == kind).then_some(person.id);
        Self {
            listener_id: id_if(PersonKind::Listener),
            athlete_id: id_if(PersonKind::Athlete),
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
    let engine = installation.create_engine()?;
    let stores = installation.stores();
    let ports = ErasePorts {
        log: Arc::clone(&stores.log),
        entities: Arc::clone(&stores.entities) as _,
        entity_eraser: Arc::clone(&stores.entity_eraser),
        achievements: Arc::clone(&stores.achievements),
        data_folder: stores.data_folder.clone(),
        partitions: context.settings().log.partitions,
    };
    let eraser = Eraser::new(installation.create_batch(&engine)?, ports);
    let (is_list, is_verify, people) = match &args.command {
        Some(EraseCommand::List) => (true, false, Vec::new()),
        Some(EraseCommand::Verify(people)) => (false, true, distinct_people(people)),
        None => (args.list, args.verify, distinct_people(&args.people)),
    };
    if is_list {
        let receipts = eraser.list().await?;
        return context
            .output()
            .print_list(&receipts, "no erasures yet", format_summary);
    }
    if is_verify {
        let results = eraser.verify(&people).await?;
        let results: Vec<SearchResult> = results
            .into_iter()
            .map(|(person, found)| SearchResult::new(person, found))
            .collect();
        context
            .output()
            .print_result(&results, |results| format_results(results))?;
        return match results.iter().all(|result| result.found.is_empty()) {
            true => Ok(()),
            false => Err(unfinished_error(
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
        .erase(&people, &request, &StageBars::default(), &stop)
        .await?;
    context
        .output()
        .print_result(&receipts, |receipts| format_receipts(receipts))?;
    match receipts.iter().all(Receipt::is_clean) {
        true => Ok(()),
        false => Err(unfinished_error(
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

fn unfinished_error(reason: &str) -> anyhow::Error {
    anyhow::Error::new(UnrepairedDifferences(Some(reason.to_owned())))
}

/// Returns the named people without duplicates.
fn distinct_people(args: &PeopleArgs) -> Vec<Person> {
    let people_of_kind = |kind: PersonKind, ids: &[i64]| -> Vec<Person> {
        ids.iter().map(|id| Person { kind, id: *id }).collect()
    };
    let mut people = people_of_kind(PersonKind::Listener, &args.listeners);
    people.extend(people_of_kind(PersonKind::Athlete, &args.athletes));
    people.sort_unstable();
    people.dedup();
    people
}

fn format_receipts(receipts: &[Receipt]) -> String {
    receipts
        .iter()
        .map(format_receipt)
        .collect::<Vec<_>>()
        .join("\n")
}

/// Formats a receipt as text.
fn format_receipt(receipt: &Receipt) -> String {
    let state = match receipt.finished_at_ms {
        Some(time_ms) => format!("done at {}", format_timestamp_ms(time_ms)),
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

fn format_summary(receipt: &Receipt) -> String {
    let state = match receipt.finished_at_ms {
        Some(time_ms) => format!("done at {}", format_timestamp_ms(time_ms)),
        None => format!(
            "not finished: {}; erase the same person again",
            receipt.step
        ),
    };
    let found: u64 = receipt.places.iter().map(|place| place.found).sum();
    format!(
        "{:>6}  {:<8}  begun at {}  found {found}  {state}",
        receipt.number,
        receipt.kind.name(),
        format_timestamp_ms(receipt.begun_at_ms)
    )
}

fn format_results(results: &[SearchResult]) -> String {
    let mut text = String::new();
    for result in results {
        let person = format!("{} {}", result.person.kind.name(), result.person.id);
        if result.found.is_empty() {
            text += &format!("{person}: found nowhere\n");
        }
        for Finding { found, place, at } in &result.found {
            text += &format!("{person}: {found} in {place} {at}\n");
        }
    }
    text
}
