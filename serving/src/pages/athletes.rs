//! What an athlete has achieved.

use askama::Template;

use super::api;
use super::ask::{Asker, path};
use super::parts::{Choice, Frame, From, Here, Part, Tools, TroubleShown};
use super::query::Query;
use super::shown::{Moment, duration, number};

const KINDS: [(&str, &str); 5] = [
    ("", "All"),
    ("crown", "Crowns"),
    ("top_ten", "Top tens"),
    ("personal_record", "Personal records"),
    ("crown_lost", "Crowns lost"),
];

#[derive(Debug, Template)]
#[template(path = "athlete.html")]
pub(crate) struct AthletePage {
    frame: Frame,
    athlete: String,
    kinds: Vec<Choice>,
    page: Part<PageShown>,
}

#[derive(Debug)]
struct PageShown {
    rows: Vec<Row>,
    more: Option<String>,
    from: From,
    tools: Tools,
}

#[derive(Debug)]
struct Row {
    what: String,
    board: String,
    segment: i64,
    link: String,
    rank: String,
    time: String,
    at: Moment,
}

fn row(of: &api::Achievement, athlete: &str) -> Row {
    let what = match of.kind.as_str() {
        "crown" => "Crown".to_owned(),
        "top_ten" => "Top ten".to_owned(),
        "personal_record" => "Personal record".to_owned(),
        "crown_lost" => match of.taken_by {
            Some(by) => format!("Crown lost to {by}"),
            None => "Crown lost".to_owned(),
        },
        other => other.to_owned(),
    };
    let board = path(
        &format!("/segments/{}", of.segment_id),
        &[("board", Some(&of.board)), ("athlete", Some(athlete))],
    );
    Row {
        what,
        board: of.board.clone(),
        segment: of.segment_id,
        link: board,
        rank: of.rank.map_or_else(|| "–".to_owned(), number),
        time: duration(of.elapsed_time),
        at: Moment::utc(&of.at),
    }
}

pub(crate) async fn page(asker: &Asker, here: &Here, athlete: &str, query: &Query) -> AthletePage {
    let of = format!("/api/v1/athletes/{athlete}/achievements");
    let kind = query.get("kind");
    let asked = path(&of, &[("kind", kind), ("cursor", query.get("cursor"))]);
    let this = format!("/athletes/{athlete}");
    let page = asker.get::<api::Achievements>(&asked).await;
    let page = page.map_err(TroubleShown::of).map(|page| PageShown {
        rows: page
            .achievements
            .iter()
            .map(|of| row(of, athlete))
            .collect(),
        more: page
            .cursor
            .as_deref()
            .map(|next| query.with(&this, &[("cursor", Some(next))])),
        from: From::of(&page.provenance),
        tools: here.tools(&path(&of, &[("kind", kind)]), true, &asker.caller),
    });
    let kinds = KINDS.iter().map(|(value, title)| Choice {
        value: query.with(
            &this,
            &[
                ("kind", Some(*value).filter(|kind| !kind.is_empty())),
                ("cursor", None),
            ],
        ),
        title: (*title).to_owned(),
        is_chosen: *value == kind.unwrap_or_default(),
    });
    AthletePage {
        frame: Frame::new(format!("Athlete {athlete}"), "boards", &asker.caller)
            .following("efforts")
            .of_kind("athlete"),
        athlete: athlete.to_owned(),
        kinds: kinds.collect(),
        page,
    }
}
