//! `explain`: explains a total, a board or a rank, as `GET /explain` does.

use anyhow::Context as _;
use serde_json::Value;

use super::Context;
use crate::args::ExplainArgs;
use crate::failure::usage_error;
use crate::installation::Installation;

/// Runs the command.
pub(super) async fn run(args: &ExplainArgs, context: &Context) -> anyhow::Result<()> {
    let mut query = form_urlencoded::Serializer::new(String::new());
    for parameter in &args.parameters {
        let Some((name, value)) = parameter.split_once('=') else {
            return Err(usage_error(format!(
                "{parameter}: expected NAME=VALUE, such as segment_id=7 or owner_id=1"
            )));
        };
        query.append_pair(name, value);
    }
    let installation = Installation::open_existing(context.settings()).await?;
    let serving = installation.create_serving(None)?;
    let path = format!("/api/v1/explain?{}", query.finish());
    let (status, body) = serving.get(&path).await?;
    let explanation: Value = serde_json::from_str(&body).context("reading the response")?;
    if status != 200 {
        let detail = explanation
            .get("detail")
            .or_else(|| explanation.get("title"));
        let detail = detail.and_then(Value::as_str).unwrap_or(&body);
        return Err(match status {
            400 | 404 => usage_error(detail.to_owned()),
            _ => anyhow::anyhow!("{detail}"),
        });
    }
    context
        .output()
        .print_result(&explanation, format_explanation)
}

fn format_explanation(explanation: &Value) -> String {
    let mut text = if explanation.get("board").is_some() {
        format_board(explanation)
    } else {
        format_total(explanation)
    };
    text.push_str(&format!("as of {}\n", explanation["provenance"]));
    text
}

fn format_total(explanation: &Value) -> String {
    let mut text = format!(
        "{} {}\n",
        explanation["metric"].as_str().unwrap_or(""),
        explanation["count"]
    );
    for part in iter_list(&explanation["batch"]) {
        text.push_str(&format!(
            "  {} from {} batch rows last changed by run {} (its drift was {})\n",
            part["count"], part["rows"], part["epoch"], part["drift"]
        ));
    }
    for part in iter_list(&explanation["live"]) {
        text.push_str(&format!(
            "  {} from {} live rows of epoch {}\n",
            part["count"], part["rows"], part["epoch"]
        ));
    }
    for repair in iter_list(&explanation["corrections"]["restorations"]) {
        let get_text = |name: &str| repair[name].as_str().unwrap_or("").to_owned();
        let mut line = format!(
            "  {} from {} corrections of repair {} ({}, {}",
            repair["sum"],
            repair["count"],
            repair["number"],
            get_text("at"),
            get_text("by")
        );
        if !get_text("reason").is_empty() {
            line.push_str(&format!(": {}", get_text("reason")));
        }
        line.push(')');
        if let Some(undone) = repair["undoes"].as_u64() {
            line.push_str(&format!(", which undoes {undone}"));
        }
        if repair["maybe"] != 0 {
            line.push_str(&format!("; {} more may belong to it", repair["maybe"]));
        }
        text.push_str(&line);
        text.push('\n');
    }
    let rows_listed = iter_list(&explanation["rows"]).count();
    text.push_str(&format!(
        "  {} rows, {rows_listed} of them with --json\n",
        explanation["rows_all"]
    ));
    text
}

fn format_board(explanation: &Value) -> String {
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
    for entry in iter_list(&explanation["live"]) {
        let status = match entry["in_force"].as_bool() {
            Some(true) => "counts",
            _ => "is ignored",
        };
        text.push_str(&format!(
            "  live, epoch {}, partition {} ({status}): {}\n",
            entry["epoch"], entry["partition"], entry["entry"]
        ));
    }
    let rank = &explanation["place"];
    if !rank.is_null() {
        text.push_str(&format!(
            "  rank {} = 1 + {} of the version before it - {} removed + {} live\n",
            rank["rank"], rank["edition"], rank["taken_away"], rank["live"]
        ));
    }
    if let Some(reason) = explanation["why"].as_str() {
        text.push_str(&format!("  {reason}\n"));
    }
    text
}

fn iter_list(list: &Value) -> impl Iterator<Item = &Value> {
    list.as_array().into_iter().flatten()
}
