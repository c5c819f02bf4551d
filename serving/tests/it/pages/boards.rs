//! The page of a board: rank changes, and links to its next and previous page.

use jiff::civil::date;

use super::{decode_link, start_service};
use crate::memory_stores::boards::{EntryValues, find_board_job};
use crate::requests::get;

/// The entry of a member. Members with a larger id are slower.
fn build_entry(member: i64) -> EntryValues {
    EntryValues {
        member,
        elapsed_time_s: 100 + member,
        period: 0,
        gender: "F",
    }
}

#[tokio::test]
async fn a_board_shows_rank_changes() {
    let (serving, stores) = start_service();
    let job = find_board_job("segments");
    stores.boards().publish(&job, 1, &[build_entry(2)]);
    let (_, page) = get(&serving, "/segments/1?athlete=2").await;
    assert!(!page.contains("Change since 2"), "{page}");
    assert!(page.contains("Overall, 1 athlete</h2>"), "{page}");
    assert!(page.contains("<dd class=\"big\">First</dd>"), "{page}");

    let (serving, stores) = start_service();
    let yesterday = date(2026, 7, 13);
    let entries = [build_entry(2), build_entry(3)];
    stores.boards().publish_on(yesterday, &job, 1, &entries);
    stores
        .boards()
        .set_live_entry(&job, 1, 1, &[build_entry(1)]);
    for uri in [
        "/segments/1",
        "/segments/1?athlete=1",
        "/segments/1?athlete=3",
    ] {
        let (_, page) = get(&serving, uri).await;
        for text in [
            "Change since 2026-07-13",
            "data-label=\"Since 2026-07-13\">new<",
            "<span class=\"visually-hidden\">down</span> 1",
        ] {
            assert!(page.contains(text), "{uri}: {text}: {page}");
        }
    }
    let (_, page) = get(&serving, "/segments/1?athlete=1").await;
    assert!(page.contains("<dd class=\"big\">new</dd>"), "{page}");
}

#[tokio::test]
async fn the_gap_names_the_next_athlete() {
    let (serving, stores) = start_service();
    let job = find_board_job("segments");
    let level = EntryValues {
        elapsed_time_s: 102,
        ..build_entry(3)
    };
    let entries = [build_entry(2), level, build_entry(14)];
    stores.boards().publish(&job, 1, &entries);
    for (athlete, gap) in [(3, "Level with Athlete 2"), (14, "12 s behind Athlete 3")] {
        let (_, page) = get(&serving, &format!("/segments/1?athlete={athlete}")).await;
        let gap = format!("<dd class=\"big\">{gap}</dd>");
        assert!(page.contains(&gap), "{page}");
    }
}

/// The next page continues after the last row even if ranks changed. The previous page starts at an
/// offset.
#[tokio::test]
async fn the_next_page_of_a_board_continues_after_the_last_row() {
    let (serving, stores) = start_service();
    let job = find_board_job("segments");
    let entries: Vec<EntryValues> = (0..120).map(build_entry).collect();
    stores.boards().publish(&job, 1, &entries);

    let (_, first) = get(&serving, "/segments/1").await;
    assert!(
        has_athlete(&first, 49) && !has_athlete(&first, 50),
        "{first}"
    );
    assert_eq!(find_button_link(&first, "prev"), None);
    let next = find_button_link(&first, "next").unwrap();
    // Two athletes move to the top.
    for member in [118, 119] {
        let fastest = EntryValues {
            elapsed_time_s: 1,
            ..build_entry(member)
        };
        stores.boards().set_live_entry(&job, 1, member, &[fastest]);
    }
    let (_, second) = get(&serving, &next).await;
    assert!(!has_athlete(&second, 49), "{second}");
    assert!(
        has_athlete(&second, 50) && has_athlete(&second, 99),
        "{second}"
    );
    let previous = find_button_link(&second, "prev").unwrap();
    assert_eq!(previous, "/segments/1?offset=2");
    let next = find_button_link(&second, "next").unwrap();
    let (_, third) = get(&serving, &next).await;
    assert!(!has_athlete(&third, 99), "{third}");
    assert!(
        has_athlete(&third, 100) && has_athlete(&third, 117),
        "{third}"
    );
    assert_eq!(find_button_link(&third, "next"), None);
    let (_, year) = get(&serving, "/segments/1?window=year&offset=7").await;
    assert_eq!(find_button_link(&year, "next"), None, "{year}");
}

/// Returns the target of the button with a `rel`.
fn find_button_link(page: &str, rel: &str) -> Option<String> {
    let mut buttons = page.split("<a class=\"button\" href=\"").skip(1);
    let button = buttons.find(|button| button.split('>').next().unwrap().contains(rel))?;
    let link = button.split('"').next().unwrap();
    Some(decode_link(link))
}

/// Returns whether a page has a link to the row of an athlete.
fn has_athlete(page: &str, athlete: i64) -> bool {
    let ends = ["\"", "&"];
    ends.iter()
        .any(|end| page.contains(&format!("athlete={athlete}{end}")))
}
