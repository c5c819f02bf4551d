//! The page of an athlete: achievements.

use askama::Template;
use axum::response::Response;
use stores::names::NamedKind;

use super::api;
use super::api_error::ApiResult;
use super::client::{ApiClient, EntityNames};
use super::components::{
    Choice, ExportLinks, PageContext, ProvenanceLabel, build_tabs, render_page,
};
use super::extractors::Number;
use super::formatting::{Moment, format_effort_time, format_number};
use super::query::{Query, path_with_query};

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
    context: PageContext,
    athlete: String,
    /// The athlete's name, if known.
    name: Option<String>,
    heading: String,
    kinds: Vec<Choice>,
    page: ApiResult<api::Achievements>,
    more: Option<String>,
    export: ExportLinks,
    /// Names of the athletes on the page.
    athletes: EntityNames,
    segments: EntityNames,
}

impl AthletePage {
    fn title(&self, achievement: &api::AchievementShape) -> String {
        match (achievement.kind.as_str(), achievement.taken_by) {
            ("crown", _) => "Crown".to_owned(),
            ("top_ten", _) => "Top ten".to_owned(),
            ("personal_record", _) => "Personal record".to_owned(),
            ("crown_lost", Some(by)) => format!("Crown lost to {}", self.athletes.or_number(by)),
            ("crown_lost", None) => "Crown lost".to_owned(),
            (other, _) => other.to_owned(),
        }
    }

    /// Link to the board of an achievement, with the athlete's rank.
    fn board_link(&self, achievement: &api::AchievementShape) -> String {
        let parameters = [
            ("board", Some(achievement.board.as_str())),
            ("athlete", Some(&self.athlete)),
        ];
        path_with_query(
            &format!("/segments/{}", achievement.segment_id),
            &parameters,
        )
    }
}

pub(super) async fn page(client: ApiClient, Number(athlete): Number, query: Query) -> Response {
    let api_path = format!("/api/v1/athletes/{athlete}/achievements");
    let kind = query.get("kind");
    let page_path = path_with_query(
        &api_path,
        &[("kind", kind), ("cursor", query.get("cursor"))],
    );
    let page_url = format!("/athletes/{athlete}");
    let page = client.get::<api::Achievements>(&page_path).await;
    let response = page.as_ref().ok();
    let achievements = || response.iter().flat_map(|page| &page.achievements);
    let athlete_id = response.and_then(|_| crate::http::parse_integer(&athlete));
    let (athletes, segments) = tokio::join!(
        client.fetch_names(
            NamedKind::Athlete,
            achievements()
                .filter_map(|achievement| achievement.taken_by)
                .chain(athlete_id)
        ),
        client.fetch_names(
            NamedKind::Segment,
            achievements().map(|achievement| achievement.segment_id)
        )
    );
    let name = athlete_id.and_then(|id| athletes.get(id).map(str::to_owned));
    let heading = name.clone().unwrap_or_else(|| format!("Athlete {athlete}"));
    let next_cursor = response.and_then(|page| page.cursor.as_deref());
    let page = AthletePage {
        context: PageContext::new(heading.clone(), "boards", &client.caller)
            .follow("efforts")
            .with_kind("athlete"),
        athlete,
        name,
        heading,
        kinds: build_tabs(
            &query,
            &page_url,
            "kind",
            KINDS.iter(),
            query.get_or_empty("kind"),
        ),
        more: next_cursor.map(|cursor| query.next_page_url(&page_url, cursor)),
        export: client.export_links(&path_with_query(&api_path, &[("kind", kind)]), true),
        page,
        athletes,
        segments,
    };
    render_page(&page, page.page.as_ref().err())
}
