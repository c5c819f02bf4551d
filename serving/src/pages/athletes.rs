//! What an athlete has achieved.

use askama::Template;
use axum::response::Response;
use stores::names::Named;

use super::ask::{Answer, ApiClient, Called, path};
use super::parts::{Choice, Frame, From, Tools, answered, tabs};
use super::query::Query;
use super::shown::{Moment, duration, number};
use super::{Number, api};

const KINDS: [(&str, &str); 5] = [
    ("", "All"),
    ("crown", "Crowns"),
    ("top_ten", "Top tens"),
    ("personal_record", "Personal records"),
    ("crown_lost", "Crowns lost"),
];

#[derive(Debug, Template)]
#[template(path = "athlete.html")]
struct AthletePage {
    frame: Frame,
    athlete: String,
    /// What the athlete is called, if so.
    name: Option<String>,
    heading: String,
    kinds: Vec<Choice>,
    page: Answer<api::Achievements>,
    more: Option<String>,
    tools: Tools,
    /// Names of athletes and segments.
    people: Called,
    segments: Called,
}

impl AthletePage {
    fn what(&self, of: &api::AchievementShape) -> String {
        match (of.kind.as_str(), of.taken_by) {
            ("crown", _) => "Crown".to_owned(),
            ("top_ten", _) => "Top ten".to_owned(),
            ("personal_record", _) => "Personal record".to_owned(),
            ("crown_lost", Some(by)) => format!("Crown lost to {}", self.people.or_number(by)),
            ("crown_lost", None) => "Crown lost".to_owned(),
            (other, _) => other.to_owned(),
        }
    }

    /// The board on which it was achieved, with the athlete's place.
    fn board(&self, of: &api::AchievementShape) -> String {
        let parameters = [
            ("board", Some(of.board.as_str())),
            ("athlete", Some(&self.athlete)),
        ];
        path(&format!("/segments/{}", of.segment_id), &parameters)
    }
}

pub(super) async fn page(client: ApiClient, Number(athlete): Number, query: Query) -> Response {
    let of = format!("/api/v1/athletes/{athlete}/achievements");
    let kind = query.get("kind");
    let asked = path(&of, &[("kind", kind), ("cursor", query.get("cursor"))]);
    let this = format!("/athletes/{athlete}");
    let page = client.get::<api::Achievements>(&asked).await;
    let found = page.as_ref().ok();
    let achieved = || found.iter().flat_map(|page| &page.achievements);
    let own = found.and_then(|_| crate::http::integer(&athlete));
    let (people, segments) = tokio::join!(
        client.names(
            Named::Athlete,
            achieved().filter_map(|of| of.taken_by).chain(own)
        ),
        client.names(Named::Segment, achieved().map(|of| of.segment_id))
    );
    let name = own.and_then(|id| people.get(id).map(str::to_owned));
    let heading = name.clone().unwrap_or_else(|| format!("Athlete {athlete}"));
    let next = found.and_then(|page| page.cursor.as_deref());
    let page = AthletePage {
        frame: Frame::new(heading.clone(), "boards", &client.caller)
            .following("efforts")
            .of_kind("athlete"),
        athlete,
        name,
        heading,
        kinds: tabs((&query, &this, "kind"), KINDS.iter(), query.text("kind")),
        more: next.map(|next| query.at(&this, next)),
        tools: client.tools(&path(&of, &[("kind", kind)]), true),
        page,
        people,
        segments,
    };
    answered(&page, page.page.as_ref().err())
}
