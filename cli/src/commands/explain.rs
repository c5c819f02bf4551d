//! `explain`: explains a total, a board or a rank, as `GET /explain` does.

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
                "{parameter}: expected NAME=VALUE, such as segment_id=7 or owner_id=1"
            )));
        };
        query.append_pair(name, value);
    }
    let installation = Installation::open_existing(context.settings()).await?;
    let serving = installation.serving(None)?;
    let path = format!("/api/v1/explain?{}", query.finish());
    let (status, body) = serving.get(&path).await?;
    let explanation: Value = serde_json::from_str(&body).context("reading the answer")?;
    if status != 200 {
        let detail = explanation
            .get("detail")
            .or_else(|| explanation.get("title"));
        let detail = detail.and_then(Value::as_str).unwrap_or(&body);
        return Err(match status {
            400 | 404 => usage(detail.to_owned()),
            _ => anyhow::anyhow!("{detail}"),
        });
    }
    context.output().result(&explanation, text_of)
}

fn text_of(explanation: &Value) -> String {
    let mut text = if explanation.get("board").is_some() {
        explain_board(explanation)
    } else {
        explain_total(explanation)
    };
    text.push_str(&format!("as of {}\n", explanation["provenance"]));
    text
}

fn explain_total(explanation: &Value) -> String {
    let mut text = format!(
        "{} {}\n",
        explanation["metric"].as_str().unwrap_or(""),
        explanation["count"]
    );
    for part in each(&explanation["batch"]) {
        text.push_str(&format!(
            "  {} from {} batch rows last changed by run {} (its drift was {})\n",
            part["count"], part["rows"], part["epoch"], part["drift"]
        ));
    }
    for part in each(&explanation["live"]) {
        text.push_str(&format!(
            "  {} from {} live rows of epoch {}\n",
            part["count"], part["rows"], part["epoch"]
        ));
    }
    for one in each(&explanation["corrections"]["restorations"]) {
        let quoted = |name: &str| one[name].as_str().unwrap_or("").to_owned();
        let mut line = format!(
            "  {} from {} corrections of repair {} ({}, {}",
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
            line.push_str(&format!(", which undoes {undone}"));
        }
        if one["maybe"] != 0 {
            line.push_str(&format!("; {} more may belong to it", one["maybe"]));
        }
        text.push_str(&line);
        text.push('\n');
    }
    let shown = each(&explanation["rows"]).count();
    text.push_str(&format!(
        "  {} rows, {shown} of them with --json\n",
        explanation["rows_all"]
    ));
    text
}

fn explain_board(explanation: &Value) -> String {
    let total = &explanation["total"];
    let mut text = format!(
        "{} {}: {} rows = {} of the version - {} removed + {} live\n",
        explanation["board"].as_str().unwrap_or(""),
        explanation["key"],
        total["count"],
        total["edition"],
        total["taken_away"],
        total["live"]
    );
    let batch = &explanation["batch"];
    if !batch.is_null() {
        text.push_str(&format!(
            "  version of run {} ({}), newest run {}: {}\n",
            batch["epoch"],
            batch["at"].as_str().unwrap_or("-"),
            batch["newest"],
            batch["entry"]
        ));
    }
    for state in each(&explanation["live"]) {
        let in_force = match state["in_force"].as_bool() {
            Some(true) => "counts",
            _ => "is ignored",
        };
        text.push_str(&format!(
            "  live, epoch {}, partition {} ({in_force}): {}\n",
            state["epoch"], state["partition"], state["entry"]
        ));
    }
    let place = &explanation["place"];
    if !place.is_null() {
        text.push_str(&format!(
            "  rank {} = 1 + {} of the version before it - {} removed + {} live\n",
            place["rank"], place["edition"], place["taken_away"], place["live"]
        ));
    }
    if let Some(why) = explanation["why"].as_str() {
        text.push_str(&format!("  {why}\n"));
    }
    text
}

fn each(list: &Value) -> impl Iterator<Item = &Value> {
    list.as_array().into_iter().flatten()
}
