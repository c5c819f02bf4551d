//! What an athlete has achieved.

use askama::Template;
use stores::names::Named;

use super::api;
use super::ask::{Answer, ApiClient, Called, path};
use super::parts::{Choice, Frame, From, Tools, about};
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
    /// What the athlete is called, if so.
    name: Option<String>,
    heading: String,
    kinds: Vec<Choice>,
    page: Answer<PageShown>,
}

about!(AthletePage, page);

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
    /// The segment's name, or number.
    segment: String,
    link: String,
    rank: String,
    time: String,
    at: Moment,
}

fn row(of: &api::AchievementShape, athlete: &str, (people, segments): (&Called, &Called)) -> Row {
    let what = match of.kind.as_str() {
        "crown" => "Crown".to_owned(),
        "top_ten" => "Top ten".to_owned(),
        "personal_record" => "Personal record".to_owned(),
        "crown_lost" => match of.taken_by {
            Some(by) => format!("Crown lost to {}", people.or_number(by)),
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
        segment: segments.or_number(of.segment_id),
        link: board,
        rank: of.rank.map_or_else(|| "–".to_owned(), number),
        time: duration(of.elapsed_time),
        at: Moment::utc(&of.at),
    }
}

pub(crate) async fn page(client: &ApiClient, athlete: &str, query: &Query) -> AthletePage {
    let of = format!("/api/v1/athletes/{athlete}/achievements");
    let kind = query.get("kind");
    let asked = path(&of, &[("kind", kind), ("cursor", query.get("cursor"))]);
    let this = format!("/athletes/{athlete}");
    let page = client.get::<api::Achievements>(&asked).await;
    let found = page.as_ref().ok();
    let achieved = || found.iter().flat_map(|page| &page.achievements);
    let own = found.and_then(|_| crate::http::integer(athlete));
    let (people, segments) = tokio::join!(
        client.names(
            Named::Athlete,
            achieved().filter_map(|of| of.taken_by).chain(own)
        ),
        client.names(Named::Segment, achieved().map(|of| of.segment_id))
    );
    let name = own.and_then(|id| people.get(id).map(str::to_owned));
    let heading = name.clone().unwrap_or_else(|| format!("Athlete {athlete}"));
    let page = page.map(|page| PageShown {
        rows: page
            .achievements
            .iter()
            .map(|of| row(of, athlete, (&people, &segments)))
            .collect(),
        more: page.cursor.as_deref().map(|next| query.at(&this, next)),
        from: From::of(&page.provenance),
        tools: client.tools(&path(&of, &[("kind", kind)]), true),
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
        frame: Frame::new(heading.clone(), "boards", &client.caller)
            .following("efforts")
            .of_kind("athlete"),
        athlete: athlete.to_owned(),
        name,
        heading,
        kinds: kinds.collect(),
        page,
    }
}
