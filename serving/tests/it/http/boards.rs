//! Boards: pages and cursors, filters, earlier ranks, provenance, and shared or refused reads.

use std::sync::Arc;
use std::time::Duration;

use axum::http::StatusCode;
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use futures::future::join_all;
use jiff::civil::{Date, date};
use jobs::{Board, Job};
use serde_json::{Value, json};
use serving::{Serving, ServingOptions};

use crate::memory_stores::MemoryStores;
use crate::memory_stores::boards::{self, BOARD_EPOCH, EntryValues};
use crate::requests::{get, get_json, no_wait_options, parse_next_link};

const SEGMENT: i64 = 7;
const BOARD: &str = "/api/v1/boards/segments/7";
/// Query of a board of 2013.
const YEAR: &str = "window=year&date=2013-05-06";
/// As [`YEAR`], for women only.
const WOMEN: &str = "window=year&date=2013-05-06&board=gender:F";

/// A service with the board of one segment.
struct Fixture {
    serving: Serving,
    stores: Arc<MemoryStores>,
    job: Arc<Job<Board>>,
}

impl Fixture {
    fn new(options: ServingOptions) -> Self {
        let (serving, stores) = boards::start_service(options);
        Self {
            serving,
            stores,
            job: boards::find_board_job("segments"),
        }
    }

    fn publish(&self, entries: &[EntryValues]) {
        self.stores.boards().publish(&self.job, SEGMENT, entries);
    }

    fn publish_on(&self, day: Date, entries: &[EntryValues]) {
        let mut boards = self.stores.boards();
        boards.publish_on(day, &self.job, SEGMENT, entries);
    }

    fn set_live_entry(&self, member: i64, entries: &[EntryValues]) {
        let mut boards = self.stores.boards();
        boards.set_live_entry(&self.job, SEGMENT, member, entries);
    }

    /// Returns a page, and the URI of the next one.
    async fn get_page(&self, uri: &str) -> (Value, Option<String>) {
        let (response, text) = get(&self.serving, uri).await;
        let page: Value = serde_json::from_str(&text).unwrap();
        assert_eq!(page.get("status"), None, "{uri}: {page}");
        (page, parse_next_link(response.headers()))
    }

    /// Returns a page, or the entry of an athlete.
    async fn get_document(&self, uri: &str) -> Value {
        self.get_page(uri).await.0
    }
}

/// The entry of a member for all time. A member with a larger id is slower. Even ids are women.
fn entry_of_all_time(member: i64) -> EntryValues {
    EntryValues {
        member,
        elapsed_time_s: 100 + member,
        period: 0,
        gender: if member % 2 == 0 { "F" } else { "M" },
    }
}

/// As [`entry_of_all_time`], but for 2013.
fn entry_of_2013(member: i64) -> EntryValues {
    EntryValues {
        period: 2013,
        ..entry_of_all_time(member)
    }
}

/// The entries of members for all time and for 2013.
fn entries_of_both_periods(members: &[i64]) -> Vec<EntryValues> {
    let entries = members
        .iter()
        .flat_map(|member| [entry_of_all_time(*member), entry_of_2013(*member)]);
    entries.collect()
}

/// Returns the athletes of a list of entries.
fn list_athletes(entries: &Value) -> Vec<i64> {
    let entries = entries.as_array().unwrap().iter();
    entries
        .map(|entry| entry["athlete_id"].as_i64().unwrap())
        .collect()
}

fn list_athletes_of_page(page: &Value) -> Vec<i64> {
    list_athletes(&page["entries"])
}

/// The cursors in the bodies and the links in the headers lead to the same pages.
#[tokio::test]
async fn follows_the_pages_of_a_board() {
    let fixture = Fixture::new(no_wait_options());
    fixture.publish(&(0..23).map(entry_of_all_time).collect::<Vec<_>>());
    for (query, all) in [
        ("limit=5", 0..23),
        ("limit=5&offset=4", 4..23),
        ("offset=10&limit=6&window=all", 10..23),
    ] {
        let all: Vec<i64> = all.collect();
        let first_uri = format!("{BOARD}?{query}");
        let (mut page, mut next_uri) = fixture.get_page(&first_uri).await;
        let mut listed = list_athletes_of_page(&page);
        while let Some(uri) = next_uri {
            (page, next_uri) = fixture.get_page(&uri).await;
            listed.extend(list_athletes_of_page(&page));
        }
        assert_eq!(page["cursor"], Value::Null);
        assert_eq!(listed, all, "links of {query}");

        let mut page = fixture.get_document(&first_uri).await;
        let mut listed = list_athletes_of_page(&page);
        while let Some(cursor) = page["cursor"].as_str() {
            let uri = format!("{BOARD}?limit=5&cursor={cursor}");
            page = fixture.get_document(&uri).await;
            listed.extend(list_athletes_of_page(&page));
        }
        assert_eq!(listed, all, "cursors of {query}");
    }
    let page = fixture.get_document(&format!("{BOARD}?limit=5")).await;
    let cursor = page["cursor"].as_str().unwrap();
    for other_query in ["offset=5", "window=day", "club_id=1", "board=gender:F"] {
        let uri = format!("{BOARD}?{other_query}&cursor={cursor}");
        let (status, document) = get_json(&fixture.serving, &uri).await;
        assert_eq!(status, StatusCode::BAD_REQUEST, "{uri}: {document}");
    }
}

/// A row that does not move appears on exactly one page, even if others move between two reads, all
/// times are equal, rows are filtered, or the last row of a page is removed.
#[tokio::test]
async fn a_cursor_continues_after_the_last_row_when_others_move() {
    for (query, has_ties) in [
        ("window=all", false),
        ("window=all", true),
        (WOMEN, false),
        ("club_id=1", false),
        ("club_id=1&following=200", true),
    ] {
        let fixture = Fixture::new(no_wait_options());
        let entry = |member: i64| EntryValues {
            elapsed_time_s: if has_ties { 100 } else { 100 + member },
            gender: "F",
            period: if query == WOMEN { 2013 } else { 0 },
            ..entry_of_all_time(member)
        };
        fixture.publish(&(0..40).map(entry).collect::<Vec<_>>());
        fixture.stores.entities().club_members = (0..60).collect();
        let first_uri = format!("{BOARD}?limit=5&{query}");
        let (page, next_uri) = fixture.get_page(&first_uri).await;
        assert_eq!(list_athletes_of_page(&page), [0, 1, 2, 3, 4], "{query}");
        // Two athletes move to the front, and the last row of the page is removed.
        for member in [41, 42] {
            let faster = EntryValues {
                elapsed_time_s: 1,
                ..entry(member)
            };
            fixture.set_live_entry(member, &[faster]);
        }
        fixture.set_live_entry(4, &[]);
        let (page, next_uri) = fixture.get_page(&next_uri.unwrap()).await;
        assert_eq!(list_athletes_of_page(&page), [5, 6, 7, 8, 9], "{query}");
        assert_eq!(page["entries"][0]["rank"], 7, "{query}");
        // Three earlier rows are removed.
        for member in 0..3 {
            fixture.set_live_entry(member, &[]);
        }
        let (csv, _) = get(&fixture.serving, &format!("{first_uri}&format=csv")).await;
        assert!(csv.headers().contains_key("link"));
        let (mut page, mut next_uri) = fixture.get_page(&next_uri.unwrap()).await;
        let mut listed = list_athletes_of_page(&page);
        assert_eq!(page["entries"][0]["rank"], 9, "{query}");
        while let Some(uri) = next_uri {
            (page, next_uri) = fixture.get_page(&uri).await;
            listed.extend(list_athletes_of_page(&page));
        }
        assert_eq!(listed, (10..40).collect::<Vec<_>>(), "{query}");
    }
}

/// Cursors of version 0.1.0 hold an offset. The next page has a cursor of a row.
#[tokio::test]
async fn accepts_offset_cursors_of_an_earlier_version() {
    let fixture = Fixture::new(no_wait_options());
    fixture.publish(&(0..23).map(entry_of_all_time).collect::<Vec<_>>());
    let page = fixture.get_document(&format!("{BOARD}?limit=5")).await;
    let cursor = URL_SAFE_NO_PAD.decode(page["cursor"].as_str().unwrap());
    let (fingerprint, _): (u64, String) = serde_json::from_slice(&cursor.unwrap()).unwrap();
    let offset_cursor = URL_SAFE_NO_PAD.encode(format!("[{fingerprint},10]"));
    let uri = format!("{BOARD}?limit=5&cursor={offset_cursor}");
    let (page, next_uri) = fixture.get_page(&uri).await;
    assert_eq!(list_athletes_of_page(&page), [10, 11, 12, 13, 14]);
    let page = fixture.get_document(&next_uri.unwrap()).await;
    assert_eq!(list_athletes_of_page(&page), [15, 16, 17, 18, 19]);
}

/// Without `date` the window depends on the day of the request, here 2026-07-14. A cursor is valid
/// only for its window.
#[tokio::test]
async fn a_cursor_is_bound_to_its_window() {
    let fixture = Fixture::new(no_wait_options());
    let days = [20_260_714, 20_260_713];
    let entry = |member: i64| EntryValues {
        period: days[usize::from(member >= 4)],
        ..entry_of_all_time(member)
    };
    fixture.publish(&(0..8).map(entry).collect::<Vec<_>>());
    let first_uri = format!("{BOARD}?window=day&limit=2");
    let today = fixture
        .get_document(&format!("{first_uri}&date=2026-07-14"))
        .await;
    let cursor = today["cursor"].as_str().unwrap();
    let page = fixture
        .get_document(&format!("{first_uri}&cursor={cursor}"))
        .await;
    assert_eq!(list_athletes_of_page(&page), [2, 3]);
    let (_, next_uri) = fixture.get_page(&first_uri).await;
    let next_uri = next_uri.unwrap();
    let has_date = next_uri.contains("&date=2026-07-14&");
    assert!(has_date, "also valid after midnight: {next_uri}");
    let page = fixture.get_document(&next_uri).await;
    assert_eq!(list_athletes_of_page(&page), [2, 3]);
    let yesterday = fixture
        .get_document(&format!("{first_uri}&date=2026-07-13"))
        .await;
    let cursor = yesterday["cursor"].as_str().unwrap();
    let uri = format!("{first_uri}&cursor={cursor}");
    let (status, document) = get_json(&fixture.serving, &uri).await;
    assert_eq!(status, StatusCode::BAD_REQUEST, "{document}");
}

#[tokio::test]
async fn windows_of_early_years_are_empty() {
    let fixture = Fixture::new(no_wait_options());
    let of_period = |period| EntryValues {
        period,
        ..entry_of_all_time(1)
    };
    fixture.publish(&[of_period(2001), of_period(200_105)]);
    for query in [
        "window=month&date=0020-01-15",
        "window=day&date=0020-01-05",
        "window=year&date=0999-01-05",
    ] {
        let page = fixture.get_document(&format!("{BOARD}?{query}")).await;
        assert_eq!((&page["total"], &page["entries"]), (&json!(0), &json!([])));
    }
    let page = fixture
        .get_document(&format!("{BOARD}?window=year&date=2001-01-15"))
        .await;
    assert_eq!(page["total"], 1);
}

/// Filters apply at any rank.
#[tokio::test]
async fn filters_rows_of_a_board() {
    let fixture = Fixture::new(no_wait_options());
    fixture.publish(&(0..40).map(entry_of_2013).collect::<Vec<_>>());
    let fastest_woman = EntryValues {
        elapsed_time_s: 1,
        gender: "F",
        ..entry_of_2013(3)
    };
    fixture.set_live_entry(3, &[fastest_woman]);
    let mut women: Vec<i64> = (0..40).step_by(2).collect();
    women.insert(0, 3);
    for offset in [0, 3, 20, 21, 50] {
        let uri = format!("{BOARD}?{WOMEN}&limit=4&offset={offset}");
        let page = fixture.get_document(&uri).await;
        assert_eq!(page["total"], women.len());
        let end = women.len().min(offset + 4);
        let expected = &women[offset.min(women.len())..end];
        assert_eq!(list_athletes_of_page(&page), expected, "{uri}");
    }
    for (index, around) in [(0, 2), (1, 0), (5, 3), (20, 4), (10, 500)] {
        let uri = format!("{BOARD}/athletes/{}?{WOMEN}&around={around}", women[index]);
        let response = fixture.get_document(&uri).await;
        assert_eq!(response["entry"]["rank"], index + 1, "{uri}");
        let start = index.saturating_sub(around);
        let end = women.len().min(index + around + 1);
        let neighbors = list_athletes(&response["neighbours"]);
        assert_eq!(neighbors, &women[start..end], "{uri}");
    }
    let uri = format!("{BOARD}/athletes/1?{WOMEN}");
    let (status, _) = get_json(&fixture.serving, &uri).await;
    assert_eq!(status, StatusCode::NOT_FOUND);
}

/// Percentile and gap do not depend on `around`.
#[tokio::test]
async fn an_entry_has_percentile_and_gap() {
    let fixture = Fixture::new(no_wait_options());
    let mut entries: Vec<EntryValues> = (0..7).map(entry_of_all_time).collect();
    entries[3].elapsed_time_s = entries[2].elapsed_time_s;
    entries[6].elapsed_time_s += 1_000;
    fixture.publish(&entries);
    let gap = |rank, athlete_id, gap_s| json!({"rank": rank, "athlete_id": athlete_id, "elapsed_time": gap_s});
    for (member, percentile, gap) in [
        (0, 100.0, Value::Null),
        (1, 85.7, gap(1, 0, 1)),
        (2, 71.4, gap(2, 1, 1)),
        (3, 57.1, gap(3, 2, 0)),
        (5, 28.6, gap(5, 4, 1)),
        (6, 14.3, gap(6, 5, 1_001)),
    ] {
        for around in [0, 1, 5] {
            let uri = format!("{BOARD}/athletes/{member}?around={around}");
            let response = fixture.get_document(&uri).await;
            assert_eq!(response["percentile"], percentile, "{uri}");
            assert_eq!(response["gap"], gap, "{uri}");
            let first = 0.max(member - around);
            let last = 6.min(member + around);
            let neighbors = list_athletes(&response["neighbours"]);
            assert_eq!(neighbors, (first..=last).collect::<Vec<_>>(), "{uri}");
            assert_eq!(response.get("previous"), None, "{uri}");
        }
    }
    fixture.set_live_entry(0, &[]);
    let response = fixture.get_document(&format!("{BOARD}/athletes/1")).await;
    assert_eq!(response["percentile"], 100.0);
    assert_eq!(response["gap"], Value::Null);
}

/// The rank of an earlier day comes from the last version of that day, with the same filters and
/// without live state.
#[tokio::test]
async fn an_entry_has_the_rank_of_an_earlier_day() {
    let fixture = Fixture::new(no_wait_options());
    // Only a version of today.
    fixture.publish(&entries_of_both_periods(&[5]));
    let uri = format!("{BOARD}/athletes/5?history=true");
    let response = fixture.get_document(&uri).await;
    assert_eq!(response["previous"], Value::Null);
    assert_eq!(response["change"], Value::Null);

    let fixture = Fixture::new(no_wait_options());
    let entry_with_history = async |member: i64, query: &str| {
        let uri = format!("{BOARD}/athletes/{member}?history=true&{query}");
        fixture.get_document(&uri).await
    };
    let yesterday = date(2026, 7, 13);
    fixture.publish_on(date(2026, 7, 1), &entries_of_both_periods(&[6, 7]));
    fixture.publish_on(yesterday, &entries_of_both_periods(&[5, 6]));
    fixture.publish_on(yesterday, &entries_of_both_periods(&[3, 4, 5, 6]));
    let rank_yesterday = |rank: u64, total: u64| json!({"rank": rank, "total": total, "epoch": BOARD_EPOCH, "date": "2026-07-13"});
    // Nothing was published today, so the version is yesterday's.
    fixture.set_live_entry(1, &entries_of_both_periods(&[1]));
    for query in ["", YEAR] {
        let response = entry_with_history(5, query).await;
        assert_eq!(response["entry"]["rank"], 4, "{query}");
        assert_eq!(response["previous"], rank_yesterday(3, 4), "{query}");
        assert_eq!(response["change"], -1, "{query}");
        let response = entry_with_history(1, query).await;
        assert_eq!(response["previous"], Value::Null, "{query}");
    }
    for members in [&[2, 5, 6][..], &[5, 6]] {
        fixture.publish(&entries_of_both_periods(members));
        let response = entry_with_history(5, "").await;
        assert_eq!(response["previous"], rank_yesterday(3, 4), "{members:?}");
    }
    // The filters of the request apply.
    let response = entry_with_history(6, WOMEN).await;
    assert_eq!(response["previous"], rank_yesterday(2, 2));
    assert_eq!(response["entry"]["rank"], 1);
    assert_eq!(response["change"], 1);
    let response = entry_with_history(6, "following=6").await;
    assert_eq!(response["previous"], rank_yesterday(1, 1));
    let uri = format!("{BOARD}/athletes/6?history=1");
    let (status, _) = get_json(&fixture.serving, &uri).await;
    assert_eq!(status, StatusCode::BAD_REQUEST);
}

/// Athlete, earlier rank, and change of the rank.
type RankChange = (i64, Option<i64>, Option<i64>);

fn list_rank_changes(entries: &Value) -> Vec<RankChange> {
    let entries = entries.as_array().unwrap().iter();
    let changes = entries.map(|entry| {
        let athlete = entry["athlete_id"].as_i64().unwrap();
        (
            athlete,
            entry["previous_rank"].as_i64(),
            entry["change"].as_i64(),
        )
    });
    changes.collect()
}

/// Rows of a page and neighbors have the earlier rank, equal to the response for the athlete alone.
#[tokio::test]
async fn rows_have_their_earlier_rank() {
    let fixture = Fixture::new(no_wait_options());
    fixture.publish(&entries_of_both_periods(&[5]));
    let page = fixture.get_document(&format!("{BOARD}?history=true")).await;
    assert_eq!(page["previous"], Value::Null);
    assert_eq!(list_rank_changes(&page["entries"]), [(5, None, None)]);

    let fixture = Fixture::new(no_wait_options());
    fixture.publish_on(date(2026, 7, 13), &entries_of_both_periods(&[3, 4, 5, 6]));
    fixture.set_live_entry(1, &entries_of_both_periods(&[1]));
    for (query, offset) in [("", 0), (YEAR, 0), ("offset=2&limit=2", 2)] {
        let uri = format!("{BOARD}?history=true&{query}");
        let page = fixture.get_document(&uri).await;
        let version = json!({"total": 4, "epoch": BOARD_EPOCH, "date": "2026-07-13"});
        assert_eq!(page["previous"], version, "{query}");
        let all = [
            (1, None, None),
            (3, Some(1), Some(-1)),
            (4, Some(2), Some(-1)),
            (5, Some(3), Some(-1)),
            (6, Some(4), Some(-1)),
        ];
        let changes = list_rank_changes(&page["entries"]);
        assert_eq!(changes, all[offset..offset + changes.len()], "{query}");
        for (athlete, previous_rank, change) in changes {
            let uri = format!("{BOARD}/athletes/{athlete}?history=true&around=1&{YEAR}");
            let response = fixture.get_document(&uri).await;
            assert_eq!(response["change"].as_i64(), change, "{uri}");
            assert_eq!(
                response["previous"]["rank"].as_i64(),
                previous_rank,
                "{uri}"
            );
            let neighbors = list_rank_changes(&response["neighbours"]);
            assert!(
                neighbors.contains(&(athlete, previous_rank, change)),
                "{uri}"
            );
        }
    }
    // The filters apply: of the women only athletes 4 and 6 were on the board.
    let uri = format!("{BOARD}?history=true&{WOMEN}");
    let page = fixture.get_document(&uri).await;
    assert_eq!(page["previous"]["total"], 2);
    let changes = list_rank_changes(&page["entries"]).into_iter();
    let previous_ranks: Vec<_> = changes
        .map(|(athlete, previous_rank, _)| (athlete, previous_rank))
        .collect();
    assert_eq!(previous_ranks, [(4, Some(1)), (6, Some(2))]);
    let uri = format!("{BOARD}?history=true&limit=2&format=csv");
    let (_, csv) = get(&fixture.serving, &uri).await;
    let lines: Vec<_> = csv.lines().collect();
    assert!(lines[0].ends_with(",previous_rank,change"), "{csv}");
    assert!(lines[1].ends_with(",,"), "{csv}");
    assert!(lines[2].ends_with(",1,-1"), "{csv}");
    // Without `history` these fields are absent.
    let page = fixture.get_document(BOARD).await;
    assert_eq!(page.get("previous"), None);
    assert_eq!(page["entries"][0].get("change"), None);
}

/// A first attempt that exceeds the wait limit is repeated once.
#[tokio::test]
async fn reads_a_replaced_head_again() {
    let fixture = Fixture::new(ServingOptions {
        whole_wait_ms: 10,
        ..ServingOptions::default()
    });
    fixture.publish(&(0..40).map(entry_of_all_time).collect::<Vec<_>>());
    fixture.stores.faults().live_entries_delay = Duration::from_millis(40);
    fixture.stores.faults().missing_node_reads = 1;
    let page = fixture.get_document(BOARD).await;
    assert_eq!(page["total"], 40);
}

#[tokio::test]
async fn reports_lost_nodes_as_damage() {
    let fixture = Fixture::new(ServingOptions {
        whole_wait_ms: 5_000,
        ..ServingOptions::default()
    });
    fixture.publish(&(0..40).map(entry_of_all_time).collect::<Vec<_>>());
    fixture.stores.faults().missing_node_reads = usize::MAX;
    let (status, document) = get_json(&fixture.serving, BOARD).await;
    assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(
        document["type"], "/problems/store-unavailable",
        "{document}"
    );
    let attempts = fixture.stores.read_counts().keys_of_live_entries.len();
    assert_eq!(attempts, 2, "the same head is not read forever");
}

/// The source names the layers that contributed to the filtered rows, or removed some.
#[tokio::test]
async fn the_source_follows_the_filtered_rows() {
    let man = |member| EntryValues {
        gender: "M",
        ..entry_of_2013(member)
    };
    let woman = |member| EntryValues {
        gender: "F",
        ..entry_of_2013(member)
    };
    let version = [woman(1), woman(2), man(3)];
    let (all, women) = (YEAR, WOMEN);
    for (live_entries, query, total, source) in [
        (&[][..], all, 3, "batch"),
        (&[], women, 2, "batch"),
        // A live entry outside the filter.
        (&[(3, Some(man(3)))], all, 3, "merged"),
        (&[(3, Some(man(3)))], women, 2, "batch"),
        (&[(4, Some(man(4)))], women, 2, "batch"),
        (&[(3, None)], women, 2, "batch"),
        // A live entry adds or removes a row that matches the filter.
        (&[(4, Some(woman(4)))], women, 3, "merged"),
        (&[(2, None)], all, 2, "merged"),
        (&[(2, None)], women, 1, "merged"),
        (&[(2, Some(man(2)))], women, 1, "merged"),
        // No batch row remains.
        (
            &[(1, Some(woman(1))), (2, Some(woman(2)))],
            all,
            3,
            "merged",
        ),
        (
            &[(1, Some(woman(1))), (2, Some(woman(2)))],
            women,
            2,
            "realtime",
        ),
        (
            &[(1, None), (2, None), (3, Some(man(3)))],
            all,
            1,
            "realtime",
        ),
        (
            &[(1, None), (2, None), (3, Some(man(3)))],
            women,
            0,
            "realtime",
        ),
        (&[(1, None), (2, None), (3, None)], all, 0, "realtime"),
    ] {
        let fixture = Fixture::new(no_wait_options());
        fixture.publish(&version);
        for (member, entry) in live_entries {
            fixture.set_live_entry(*member, entry.as_slice());
        }
        let page = fixture
            .get_document(&format!("{BOARD}?limit=1&{query}"))
            .await;
        assert_eq!(
            (&page["total"], &page["provenance"]["source"]),
            (&json!(total), &json!(source)),
            "{query} with {live_entries:?}"
        );
    }
}

#[tokio::test]
async fn the_source_follows_the_selected_members() {
    let fixture = Fixture::new(no_wait_options());
    fixture.publish(&[
        entry_of_all_time(1),
        entry_of_all_time(2),
        entry_of_all_time(3),
    ]);
    fixture.set_live_entry(2, &[]);
    fixture.set_live_entry(3, &[entry_of_all_time(3)]);
    for (follower, total, source) in [(1, 1, "batch"), (2, 0, "realtime"), (3, 1, "realtime")] {
        let page = fixture
            .get_document(&format!("{BOARD}?following={follower}"))
            .await;
        assert_eq!(
            (&page["total"], &page["provenance"]["source"]),
            (&json!(total), &json!(source)),
            "following {follower}"
        );
    }
}

#[tokio::test]
async fn limits_concurrent_reads_of_boards() {
    let fixture = Fixture::new(ServingOptions {
        board_reads_max: 2,
        ..no_wait_options()
    });
    fixture.publish(&[entry_of_all_time(1)]);
    fixture.stores.faults().live_entries_delay = Duration::from_millis(30);
    let uris: Vec<String> = (1..=7)
        .map(|limit| format!("{BOARD}?limit={limit}"))
        .collect();
    let requests = uris.iter().map(|uri| fixture.get_document(uri));
    for page in join_all(requests).await {
        assert_eq!(page["total"], 1);
    }
    assert_eq!(fixture.stores.read_counts().live_entries_active_max, 2);
}

/// Requests share a read only if their questions are equal, and the read starts after the request.
#[tokio::test]
async fn concurrent_equal_requests_share_a_read() {
    let fixture = Fixture::new(no_wait_options());
    fixture.publish(&[entry_of_all_time(1), entry_of_all_time(2)]);
    fixture.stores.faults().live_entries_delay = Duration::from_millis(30);
    let cases = [
        (BOARD.to_owned(), vec![1, 2]),
        (format!("{BOARD}?limit=1"), vec![1]),
        (format!("{BOARD}?offset=1&limit=1"), vec![2]),
    ];
    let requests = cases.iter().cycle().take(30);
    let fixture = &fixture;
    let requests = requests.map(async |(uri, _)| fixture.get_document(uri).await);
    let pages = join_all(requests).await;
    for (page, (uri, expected)) in pages.iter().zip(cases.iter().cycle()) {
        assert_eq!(list_athletes_of_page(page), *expected, "{uri}");
    }
    // For each question: the first read, and one for all requests during it.
    assert!(fixture.stores.read_counts().live_entries_active_max <= 3);
}

#[tokio::test]
async fn a_request_that_waits_too_long_for_a_board_fails() {
    let fixture = Fixture::new(ServingOptions {
        board_reads_max: 1,
        request_timeout_ms: 4_500,
        ..no_wait_options()
    });
    fixture.stores.faults().live_entries_delay = Duration::from_millis(3_000);
    let uris = [1, 2].map(|limit| format!("{BOARD}?limit={limit}"));
    let requests = uris.iter().map(|uri| get(&fixture.serving, uri));
    let responses = join_all(requests).await;
    assert_eq!(responses[0].0.status(), StatusCode::OK);
    let refused = &responses[1].0;
    assert_eq!(refused.status(), StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(refused.headers()["retry-after"], "1");
}

#[tokio::test]
async fn repeats_earlier_pages_while_a_store_is_down() {
    let fixture = Fixture::new(ServingOptions {
        runs_kept_for_ms: 0,
        ..no_wait_options()
    });
    fixture.publish(&[entry_of_all_time(1), entry_of_all_time(2)]);
    let earlier = fixture.get_document(BOARD).await;
    fixture.stores.faults().is_view_store_down = true;
    let repeated = fixture.get_document(BOARD).await;
    assert_eq!(
        (&repeated["entries"], &repeated["total"]),
        (&earlier["entries"], &json!(2))
    );
    assert_eq!(repeated["provenance"]["complete"], false);
    let other_uri = format!("{BOARD}?limit=1");
    let (status, _) = get_json(&fixture.serving, &other_uri).await;
    assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE);
}
