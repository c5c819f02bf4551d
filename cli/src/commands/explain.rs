//! `explain`: why a total, a board or a place on it is what it is, as `GET /explain` says it.

use anyhow::Context as _;
use serde_json::Value;

use super::Context;
use crate::args::ExplainArgs;
use crate::failure::usage;
use crate::installation::Installation;

/// Runs the command.
pub(super) async fn run(args: &ExplainArgs, context: &Context) -> anyhow::Result<()> {
    let mut query = form_urlencoded::Serializer::new(String::new());
    for parameter in &args.parameters {
        let Some((name, value)) = parameter.split_once('=') else {
            return Err(usage(format!(
                "{parameter}: write NAME=VALUE, as in segment_id=7 or owner_id=1"
            )));
        };
        query.append_pair(name, value);
    }
    let installation = Installation::open_existing(context.settings()).await?;
    let serving = installation.serving(None)?;
    let path = format!("/api/v1/explain?{}", query.finish());
    let (status, body) = serving.get(&path).await?;
    let told: Value = serde_json::from_str(&body).context("reading the answer")?;
    if status != 200 {
        let detail = told.get("detail").or_else(|| told.get("title"));
        let detail = detail.and_then(Value::as_str).unwrap_or(&body);
        return Err(match status {
            400 | 404 => usage(detail.to_owned()),
            _ => anyhow::anyhow!("{detail}"),
        });
    }
    context.output().result(&told, text_of)
}

fn text_of(told: &Value) -> String {
    let mut text = if told.get("board").is_some() {
        of_board(told)
    } else {
        of_total(told)
    };
    text.push_str(&format!("as of {}\n", told["provenance"]));
    text
}

fn of_total(told: &Value) -> String {
    let mut text = format!(
        "{} {}\n",
        told["metric"].as_str().unwrap_or(""),
        told["count"]
    );
    for part in each(&told["batch"]) {
        text.push_str(&format!(
            "  {} of {} batch rows that run {} changed last (drift then {})\n",
            part["count"], part["rows"], part["epoch"], part["drift"]
        ));
    }
    for part in each(&told["live"]) {
        text.push_str(&format!(
            "  {} of {} rows counted live in epoch {}\n",
            part["count"], part["rows"], part["epoch"]
        ));
    }
    for one in each(&told["corrections"]["restorations"]) {
        let quoted = |name: &str| one[name].as_str().unwrap_or("").to_owned();
        let mut line = format!(
            "  {} of {} corrections by restoration {} ({}, {}",
            one["sum"],
            one["count"],
            one["number"],
            quoted("at"),
            quoted("by")
        );
        if !quoted("reason").is_empty() {
            line.push_str(&format!(": {}", quoted("reason")));
        }
        line.push(')');
        if let Some(undone) = one["undoes"].as_u64() {
            line.push_str(&format!(", which takes {undone} back"));
        }
        if one["maybe"] != 0 {
            line.push_str(&format!("; {} more may be of it", one["maybe"]));
        }
        text.push_str(&line);
        text.push('\n');
    }
    let shown = each(&told["rows"]).count();
    text.push_str(&format!(
        "  {} rows, {shown} of them with --json\n",
        told["rows_all"]
    ));
    text
}

fn of_board(told: &Value) -> String {
    let total = &told["total"];
    let mut text = format!(
        "{} {}: {} rows = {} of the edition - {} taken away + {} live\n",
        told["board"].as_str().unwrap_or(""),
        told["key"],
        total["count"],
        total["edition"],
        total["taken_away"],
        total["live"]
    );
    let batch = &told["batch"];
    if !batch.is_null() {
        text.push_str(&format!(
            "  edition of run {} ({}), newest run {}: {}\n",
            batch["epoch"],
            batch["at"].as_str().unwrap_or("-"),
            batch["newest"],
            batch["entry"]
        ));
    }
    for state in each(&told["live"]) {
        let in_force = match state["in_force"].as_bool() {
            Some(true) => "counts",
            _ => "does not count",
        };
        text.push_str(&format!(
            "  live, epoch {}, partition {} ({in_force}): {}\n",
            state["epoch"], state["partition"], state["entry"]
        ));
    }
    let place = &told["place"];
    if !place.is_null() {
        text.push_str(&format!(
            "  rank {} = 1 + {} of the edition before it - {} taken away + {} live\n",
            place["rank"], place["edition"], place["taken_away"], place["live"]
        ));
    }
    if let Some(why) = told["why"].as_str() {
        text.push_str(&format!("  {why}\n"));
    }
    text
}

fn each(list: &Value) -> impl Iterator<Item = &Value> {
    list.as_array().into_iter().flatten()
}
