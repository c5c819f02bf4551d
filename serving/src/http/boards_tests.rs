use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::http::{Request, StatusCode};
use axum::response::Response;
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use jiff::civil::{Date, date};
use jobs::{Board, Job};
use serde_json::{Value, json};
use tower::ServiceExt;

use crate::laws::get;
use crate::world::World;
use crate::world::boards::{self, BoardTime};
use crate::{Serving, ServingOptions};

const SEGMENT: i64 = 7;
const BOARD: &str = "/api/v1/boards/segments/7";

struct Fixture {
    serving: Serving,
    world: Arc<World>,
    segments: Arc<Job<Board>>,
}

impl Fixture {
    fn new(options: ServingOptions) -> Self {
        let (serving, world) = boards::serving(options);
        Self {
            serving,
            world,
            segments: boards::job("segments"),
        }
    }

    fn publish(&self, rows: &[BoardTime]) {
        let mut boards = self.world.boards.lock().unwrap();
        boards.publish(&self.segments, SEGMENT, rows);
    }

    fn publish_on(&self, day: Date, rows: &[BoardTime]) {
        let mut boards = self.world.boards.lock().unwrap();
        boards.publish_on(day, &self.segments, SEGMENT, rows);
    }

    fn put(&self, member: i64, rows: &[BoardTime]) {
        let mut boards = self.world.boards.lock().unwrap();
        boards.set_state(&self.segments, SEGMENT, member, rows);
    }

    async fn response(&self, uri: &str) -> Response {
        let request = Request::get(uri).body(Body::empty()).unwrap();
        self.serving.router().oneshot(request).await.unwrap()
    }

    async fn text(&self, uri: &str) -> String {
        let body = self.response(uri).await.into_body();
        let body = axum::body::to_bytes(body, usize::MAX).await.unwrap();
        String::from_utf8(body.to_vec()).unwrap()
    }

    /// Returns the page, and the URI of the next one.
    async fn page(&self, uri: &str) -> (Value, Option<String>) {
        let response = self.response(uri).await;
        let link = response.headers().get("link").map(|link| {
            let link = link.to_str().unwrap().strip_prefix('<').unwrap();
            link.strip_suffix(">; rel=\"next\"").unwrap().to_owned()
        });
        let body = axum::body::to_bytes(response.into_body(), usize::MAX).await;
        let page: Value = serde_json::from_slice(&body.unwrap()).unwrap();
        assert_eq!(page.get("status"), None, "{uri}: {page}");
        (page, link)
    }
}

fn no_wait_options() -> ServingOptions {
    ServingOptions {
        whole_wait_ms: 0,
        ..ServingOptions::default()
    }
}

fn best(member: i64) -> BoardTime {
    BoardTime {
        member,
        time: 100 + member,
        period: 0,
        gender: if member % 2 == 0 { "F" } else { "M" },
    }
}

/// Queries of a year's board, and of a filtered one.
const YEAR: &str = "window=year&date=2013-05-06";
const WOMEN: &str = "window=year&date=2013-05-06&board=gender:F";

fn best_of_year(member: i64) -> BoardTime {
    BoardTime {
        period: 2013,
        ..best(member)
    }
}

fn members(page: &Value) -> Vec<i64> {
    let entries = page["entries"].as_array().unwrap().iter();
    entries
        .map(|entry| entry["athlete_id"].as_i64().unwrap())
        .collect()
}

/// Follows the cursors of the bodies, and the links.
#[tokio::test]
async fn follows_the_pages_of_a_board() {
    let fixture = Fixture::new(no_wait_options());
    fixture.publish(&(0..23).map(best).collect::<Vec<_>>());
    for (query, all) in [
        ("limit=5", 0..23),
        ("limit=5&offset=4", 4..23),
        ("offset=10&limit=6&window=all", 10..23),
    ] {
        let begin = format!("{BOARD}?{query}");
        let (mut page, mut link) = fixture.page(&begin).await;
        let mut read = members(&page);
        while let Some(next) = link {
            (page, link) = fixture.page(&next).await;
            read.extend(members(&page));
        }
        assert_eq!(page["cursor"], Value::Null);
        assert_eq!(read, all.clone().collect::<Vec<_>>(), "links of {query}");

        let (mut page, _) = fixture.page(&begin).await;
        let mut read = members(&page);
        while let Some(cursor) = page["cursor"].as_str() {
            let next = format!("{BOARD}?limit=5&cursor={cursor}");
            page = fixture.page(&next).await.0;
            read.extend(members(&page));
        }
        assert_eq!(read, all.collect::<Vec<_>>(), "cursors of {query}");
    }
    let (page, _) = fixture.page(&format!("{BOARD}?limit=5")).await;
    let cursor = page["cursor"].as_str().unwrap();
    for other in ["offset=5", "window=day", "club_id=1", "board=gender:F"] {
        let uri = format!("{BOARD}?{other}&cursor={cursor}");
        let (status, document) = get(&fixture.serving, &uri).await;
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
        let row = |member: i64| BoardTime {
            time: if has_ties { 100 } else { 100 + member },
            gender: "F",
            period: if query == WOMEN { 2013 } else { 0 },
            ..best(member)
        };
        let rows: Vec<BoardTime> = (0..40).map(row).collect();
        fixture.publish(&rows);
        fixture.world.boards.lock().unwrap().club = (0..60).collect();
        let begin = format!("{BOARD}?limit=5&{query}");
        let (page, link) = fixture.page(&begin).await;
        assert_eq!(members(&page), [0, 1, 2, 3, 4], "{query}");
        // Two athletes move to the front, and the last row of the page is removed.
        for member in [41, 42] {
            let faster = BoardTime {
                time: 1,
                ..row(member)
            };
            fixture.put(member, &[faster]);
        }
        fixture.put(4, &[]);
        let (page, link) = fixture.page(&link.unwrap()).await;
        assert_eq!(members(&page), [5, 6, 7, 8, 9], "{query}");
        assert_eq!(page["entries"][0]["rank"], 7, "{query}");
        // Three earlier rows are removed.
        for member in 0..3 {
            fixture.put(member, &[]);
        }
        let csv = fixture.response(&format!("{begin}&format=csv")).await;
        assert!(csv.headers().contains_key("link"));
        let (mut page, mut link) = fixture.page(&link.unwrap()).await;
        let mut read = members(&page);
        assert_eq!(page["entries"][0]["rank"], 9, "{query}");
        while let Some(next) = link {
            (page, link) = fixture.page(&next).await;
            read.extend(members(&page));
        }
        assert_eq!(read, (10..40).collect::<Vec<_>>(), "{query}");
    }
}

/// Cursors of version 0.1.0 hold an offset. The next page has a cursor of a row.
#[tokio::test]
async fn accepts_offset_cursors_of_an_earlier_version() {
    let fixture = Fixture::new(no_wait_options());
    fixture.publish(&(0..23).map(best).collect::<Vec<_>>());
    let (page, _) = fixture.page(&format!("{BOARD}?limit=5")).await;
    let (fingerprint, _): (u64, String) = serde_json::from_slice(
        &URL_SAFE_NO_PAD
            .decode(page["cursor"].as_str().unwrap())
            .unwrap(),
    )
    .unwrap();
    let earlier = URL_SAFE_NO_PAD.encode(format!("[{fingerprint},10]"));
    let (page, link) = fixture
        .page(&format!("{BOARD}?limit=5&cursor={earlier}"))
        .await;
    assert_eq!(members(&page), [10, 11, 12, 13, 14]);
    assert_eq!(
        members(&fixture.page(&link.unwrap()).await.0),
        [15, 16, 17, 18, 19]
    );
}

/// Without `date` the window depends on the day of the request. A cursor is valid only for its
/// window.
#[tokio::test]
async fn a_cursor_is_bound_to_its_window() {
    let fixture = Fixture::new(no_wait_options());
    // The clock's day is 2026-07-14.
    let days = [20_260_714, 20_260_713];
    let row = |member: i64| BoardTime {
        period: days[usize::from(member >= 4)],
        ..best(member)
    };
    fixture.publish(&(0..8).map(row).collect::<Vec<_>>());
    let request = |query: String| {
        let uri = format!("{BOARD}?window=day&limit=2&{query}");
        let serving = &fixture.serving;
        async move { get(serving, &uri).await }
    };
    let (_, page) = request("date=2026-07-14".to_owned()).await;
    let cursor = page["cursor"].as_str().unwrap();
    let (status, next) = request(format!("cursor={cursor}")).await;
    assert_eq!(status, StatusCode::OK, "{next}");
    assert_eq!(members(&next), [2, 3]);
    let (_, link) = fixture.page(&format!("{BOARD}?window=day&limit=2")).await;
    let link = link.unwrap();
    assert!(
        link.contains("&date=2026-07-14&"),
        "also after midnight: {link}"
    );
    assert_eq!(members(&fixture.page(&link).await.0), [2, 3]);
    let (_, page) = request("date=2026-07-13".to_owned()).await;
    let cursor = page["cursor"].as_str().unwrap();
    let (status, document) = request(format!("cursor={cursor}")).await;
    assert_eq!(status, StatusCode::BAD_REQUEST, "{document}");
}

#[tokio::test]
async fn windows_of_early_years_are_empty() {
    let fixture = Fixture::new(no_wait_options());
    let best_of_period = |period| BoardTime { period, ..best(1) };
    fixture.publish(&[best_of_period(2001), best_of_period(200_105)]);
    for query in [
        "window=month&date=0020-01-15",
        "window=day&date=0020-01-05",
        "window=year&date=0999-01-05",
    ] {
        let (page, _) = fixture.page(&format!("{BOARD}?{query}")).await;
        assert_eq!((&page["total"], &page["entries"]), (&json!(0), &json!([])));
    }
    let (page, _) = fixture
        .page(&format!("{BOARD}?window=year&date=2001-01-15"))
        .await;
    assert_eq!(page["total"], 1);
}

/// Filters apply at any rank.
#[tokio::test]
async fn filters_rows_of_a_board() {
    let fixture = Fixture::new(no_wait_options());
    fixture.publish(&(0..40).map(best_of_year).collect::<Vec<_>>());
    let mut women: Vec<i64> = (0..40).step_by(2).collect();
    women.insert(0, 3);
    let mut faster = best_of_year(3);
    faster.time = 1;
    faster.gender = "F";
    fixture.put(3, &[faster]);
    for offset in [0, 3, 20, 21, 50] {
        let uri = format!("{BOARD}?{WOMEN}&limit=4&offset={offset}");
        let (page, _) = fixture.page(&uri).await;
        assert_eq!(page["total"], women.len());
        let until = women.len().min(offset + 4);
        let expected = &women[offset.min(women.len())..until];
        assert_eq!(members(&page), expected, "{uri}");
    }
    for (place, around) in [(0, 2), (1, 0), (5, 3), (20, 4), (10, 500)] {
        let uri = format!("{BOARD}/athletes/{}?{WOMEN}&around={around}", women[place]);
        let (found, _) = fixture.page(&uri).await;
        assert_eq!(found["entry"]["rank"], place + 1, "{uri}");
        let near = found["neighbours"].as_array().unwrap().iter();
        let near: Vec<i64> = near.map(|e| e["athlete_id"].as_i64().unwrap()).collect();
        let first = place.saturating_sub(around);
        let until = women.len().min(place + around + 1);
        assert_eq!(near, &women[first..until], "{uri}");
    }
    let uri = format!("{BOARD}/athletes/1?{WOMEN}");
    assert_eq!(get(&fixture.serving, &uri).await.0, StatusCode::NOT_FOUND);
}

/// Percentile and gap do not depend on `around`.
#[tokio::test]
async fn an_entry_has_percentile_and_gap() {
    let fixture = Fixture::new(no_wait_options());
    let mut rows: Vec<BoardTime> = (0..7).map(best).collect();
    rows[3].time = rows[2].time;
    rows[6].time += 1_000;
    fixture.publish(&rows);
    let gap = |rank, athlete_id, seconds| json!({"rank": rank, "athlete_id": athlete_id, "elapsed_time": seconds});
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
            let (place, _) = fixture.page(&uri).await;
            assert_eq!(place["percentile"], percentile, "{uri}");
            assert_eq!(place["gap"], gap, "{uri}");
            let near = place["neighbours"].as_array().unwrap().len() as u64;
            let places = [member, around, 6 - member].map(|n: i64| n.unsigned_abs());
            let expected = 1 + places[1].min(places[0]) + places[1].min(places[2]);
            assert_eq!(near, expected, "{uri}: {place}");
            assert_eq!(place.get("previous"), None, "{uri}");
        }
    }
    fixture.put(0, &[]);
    let (place, _) = fixture.page(&format!("{BOARD}/athletes/1")).await;
    assert_eq!(
        (&place["percentile"], &place["gap"]),
        (&json!(100.0), &json!(null))
    );
}

/// The rank of an earlier day comes from the last version of that day, with the same filters and
/// without live state.
#[tokio::test]
async fn an_entry_has_the_rank_of_an_earlier_day() {
    let fixture = Fixture::new(no_wait_options());
    let entry_with_history = async |member: i64, query: &str| {
        let uri = format!("{BOARD}/athletes/{member}?history=true&{query}");
        fixture.page(&uri).await.0
    };
    let yesterday = date(2026, 7, 13);
    let both = |members: &[i64]| {
        let rows = members
            .iter()
            .flat_map(|member| [best(*member), best_of_year(*member)]);
        rows.collect::<Vec<_>>()
    };
    // Only a version of today.
    fixture.publish(&both(&[5]));
    let place = entry_with_history(5, "").await;
    assert_eq!(
        (&place["previous"], &place["change"]),
        (&json!(null), &json!(null))
    );

    let fixture = Fixture::new(no_wait_options());
    let entry_with_history = async |member: i64, query: &str| {
        let uri = format!("{BOARD}/athletes/{member}?history=true&{query}");
        fixture.page(&uri).await.0
    };
    fixture.publish_on(date(2026, 7, 1), &both(&[6, 7]));
    fixture.publish_on(yesterday, &both(&[5, 6]));
    fixture.publish_on(yesterday, &both(&[3, 4, 5, 6]));
    let previous = |rank: u64, total: u64, day: &str| json!({"rank": rank, "total": total, "epoch": boards::EPOCH, "date": day});
    // Nothing was published today, so the version is yesterday's.
    fixture.put(1, &both(&[1]));
    for query in ["", YEAR] {
        let place = entry_with_history(5, query).await;
        assert_eq!(place["entry"]["rank"], 4, "{query}");
        assert_eq!(place["previous"], previous(3, 4, "2026-07-13"), "{query}");
        assert_eq!(place["change"], -1, "{query}");
        assert_eq!(
            entry_with_history(1, query).await["previous"],
            json!(null),
            "{query}"
        );
    }
    for rows in [&[2, 5, 6][..], &[5, 6]] {
        fixture.publish(&both(rows));
        let place = entry_with_history(5, "").await;
        assert_eq!(place["previous"], previous(3, 4, "2026-07-13"), "{rows:?}");
    }
    // The filters of the request apply.
    let place = entry_with_history(6, WOMEN).await;
    assert_eq!(place["previous"], previous(2, 2, "2026-07-13"));
    assert_eq!(
        (&place["entry"]["rank"], &place["change"]),
        (&json!(1), &json!(1))
    );
    let place = entry_with_history(6, "following=6").await;
    assert_eq!(place["previous"], previous(1, 1, "2026-07-13"));
    let (status, _) = get(&fixture.serving, &format!("{BOARD}/athletes/6?history=1")).await;
    assert_eq!(status, StatusCode::BAD_REQUEST);
}

/// Rows of a page and neighbors have the earlier rank, equal to the response for the athlete alone.
#[tokio::test]
async fn rows_have_their_earlier_rank() {
    let fixture = Fixture::new(no_wait_options());
    let both = |members: &[i64]| {
        let rows = members
            .iter()
            .flat_map(|member| [best(*member), best_of_year(*member)]);
        rows.collect::<Vec<_>>()
    };
    let rank_changes = |rows: &Value| {
        let rows = rows.as_array().expect("rows").iter();
        let number = |row: &Value, name: &str| row[name].as_i64();
        rows.map(|row| {
            (
                number(row, "athlete_id").expect("an athlete"),
                number(row, "previous_rank"),
                number(row, "change"),
            )
        })
        .collect::<Vec<_>>()
    };
    fixture.publish(&both(&[5]));
    let (page, _) = fixture.page(&format!("{BOARD}?history=true")).await;
    assert_eq!(page["previous"], json!(null));
    assert_eq!(rank_changes(&page["entries"]), [(5, None, None)]);

    let fixture = Fixture::new(no_wait_options());
    fixture.publish_on(date(2026, 7, 13), &both(&[3, 4, 5, 6]));
    fixture.put(1, &both(&[1]));
    for (query, first) in [("", 0), (YEAR, 0), ("offset=2&limit=2", 2)] {
        let (page, _) = fixture.page(&format!("{BOARD}?history=true&{query}")).await;
        let previous = json!({"total": 4, "epoch": boards::EPOCH, "date": "2026-07-13"});
        assert_eq!(page["previous"], previous, "{query}");
        let all = [
            (1, None, None),
            (3, Some(1), Some(-1)),
            (4, Some(2), Some(-1)),
            (5, Some(3), Some(-1)),
            (6, Some(4), Some(-1)),
        ];
        let found = rank_changes(&page["entries"]);
        assert_eq!(found, all[first..first + found.len()], "{query}");
        for (athlete, previous, change) in found {
            let uri = format!("{BOARD}/athletes/{athlete}?history=true&around=1&{YEAR}");
            let (place, _) = fixture.page(&uri).await;
            assert_eq!(place["change"].as_i64(), change, "{uri}");
            assert_eq!(place["previous"]["rank"].as_i64(), previous, "{uri}");
            let around = rank_changes(&place["neighbours"]);
            assert!(around.contains(&(athlete, previous, change)), "{uri}");
        }
    }
    // The filters apply: of the women only athletes 4 and 6 were on the board.
    let (page, _) = fixture.page(&format!("{BOARD}?history=true&{WOMEN}")).await;
    assert_eq!(page["previous"]["total"], 2);
    let ranks: Vec<_> = rank_changes(&page["entries"])
        .into_iter()
        .map(|(athlete, previous, _)| (athlete, previous))
        .collect();
    assert_eq!(ranks, [(4, Some(1)), (6, Some(2))]);
    let csv = fixture
        .text(&format!("{BOARD}?history=true&limit=2&format=csv"))
        .await;
    let lines: Vec<_> = csv.lines().collect();
    assert!(lines[0].ends_with(",previous_rank,change"), "{csv}");
    assert!(lines[1].ends_with(",,"), "{csv}");
    assert!(lines[2].ends_with(",1,-1"), "{csv}");
    // Without `history` these fields are absent.
    let (page, _) = fixture.page(BOARD).await;
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
    fixture.publish(&(0..40).map(best).collect::<Vec<_>>());
    {
        let mut boards = fixture.world.boards.lock().unwrap();
        boards.read_delay = Duration::from_millis(40);
        boards.nodes_lost = 1;
    }
    let (page, _) = fixture.page(BOARD).await;
    assert_eq!(page["total"], 40);
}

#[tokio::test]
async fn reports_lost_nodes_as_damage() {
    let fixture = Fixture::new(ServingOptions {
        whole_wait_ms: 5_000,
        ..ServingOptions::default()
    });
    fixture.publish(&(0..40).map(best).collect::<Vec<_>>());
    fixture.world.boards.lock().unwrap().nodes_lost = usize::MAX;
    let (status, document) = get(&fixture.serving, BOARD).await;
    assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(
        document["type"], "/problems/store-unavailable",
        "{document}"
    );
    let tries = fixture.world.boards.lock().unwrap().keys_per_read.len();
    assert_eq!(tries, 2, "the same head is not read forever");
}

/// The source names the layers that contributed to the filtered rows, or removed some.
#[tokio::test]
async fn the_source_follows_the_filtered_rows() {
    let men = |member| BoardTime {
        gender: "M",
        ..best_of_year(member)
    };
    let women = |member| BoardTime {
        gender: "F",
        ..best_of_year(member)
    };
    let version = [women(1), women(2), men(3)];
    let (all, filtered) = (YEAR, WOMEN);
    for (states, query, total, source) in [
        (&[][..], all, 3, "batch"),
        (&[], filtered, 2, "batch"),
        // An athlete outside the filter has a newer state.
        (&[(3, Some(men(3)))], all, 3, "merged"),
        (&[(3, Some(men(3)))], filtered, 2, "batch"),
        (&[(4, Some(men(4)))], filtered, 2, "batch"),
        (&[(3, None)], filtered, 2, "batch"),
        // A newer state adds or removes a row that matches the filter.
        (&[(4, Some(women(4)))], filtered, 3, "merged"),
        (&[(2, None)], all, 2, "merged"),
        (&[(2, None)], filtered, 1, "merged"),
        (&[(2, Some(men(2)))], filtered, 1, "merged"),
        // No batch row remains.
        (
            &[(1, Some(women(1))), (2, Some(women(2)))],
            all,
            3,
            "merged",
        ),
        (
            &[(1, Some(women(1))), (2, Some(women(2)))],
            filtered,
            2,
            "realtime",
        ),
        (
            &[(1, None), (2, None), (3, Some(men(3)))],
            all,
            1,
            "realtime",
        ),
        (
            &[(1, None), (2, None), (3, Some(men(3)))],
            filtered,
            0,
            "realtime",
        ),
        (&[(1, None), (2, None), (3, None)], all, 0, "realtime"),
    ] {
        let fixture = Fixture::new(no_wait_options());
        fixture.publish(&version);
        for (member, row) in states {
            fixture.put(*member, row.as_slice());
        }
        let (page, _) = fixture.page(&format!("{BOARD}?limit=1&{query}")).await;
        assert_eq!(
            (&page["total"], &page["provenance"]["source"]),
            (&json!(total), &json!(source)),
            "{query} with {states:?}"
        );
    }
}

#[tokio::test]
async fn the_source_follows_the_selected_members() {
    let fixture = Fixture::new(no_wait_options());
    fixture.publish(&[best(1), best(2), best(3)]);
    fixture.put(2, &[]);
    fixture.put(3, &[best(3)]);
    for (follower, total, source) in [(1, 1, "batch"), (2, 0, "realtime"), (3, 1, "realtime")] {
        let (page, _) = fixture.page(&format!("{BOARD}?following={follower}")).await;
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
    fixture.publish(&[best(1)]);
    fixture.world.boards.lock().unwrap().read_delay = Duration::from_millis(30);
    let boards: Vec<String> = (1..=7)
        .map(|limit| format!("{BOARD}?limit={limit}"))
        .collect();
    let requests = boards.iter().map(|board| fixture.page(board));
    for (page, _) in futures::future::join_all(requests).await {
        assert_eq!(page["total"], 1);
    }
    assert_eq!(fixture.world.boards.lock().unwrap().active_reads_max, 2);
}

/// Requests share a read only if their questions are equal, and the read starts after the request.
#[tokio::test]
async fn concurrent_equal_requests_share_a_read() {
    let fixture = Fixture::new(no_wait_options());
    fixture.publish(&[best(1), best(2)]);
    fixture.world.boards.lock().unwrap().read_delay = Duration::from_millis(30);
    let boards = [
        BOARD.to_owned(),
        format!("{BOARD}?limit=1"),
        format!("{BOARD}?offset=1&limit=1"),
    ];
    let requests = boards.iter().cycle().take(30);
    let fixture = &fixture;
    let requests = requests.map(async |board| (board, fixture.page(board).await.0));
    for (board, page) in futures::future::join_all(requests).await {
        let entries = page["entries"].as_array().unwrap();
        let ids: Vec<_> = entries.iter().map(|entry| &entry["athlete_id"]).collect();
        let expected = match board {
            board if *board == boards[0] => vec![1, 2],
            board if *board == boards[1] => vec![1],
            _ => vec![2],
        };
        assert_eq!(ids, expected, "{board}");
    }
    // For each question: the first read, and one for all requests during it.
    assert!(fixture.world.boards.lock().unwrap().active_reads_max <= 3);
}

#[tokio::test]
async fn a_request_that_waits_too_long_for_a_board_fails() {
    let fixture = Fixture::new(ServingOptions {
        board_reads_max: 1,
        request_timeout_ms: 4_500,
        ..no_wait_options()
    });
    fixture.world.boards.lock().unwrap().read_delay = Duration::from_millis(3_000);
    let boards = [1, 2].map(|limit| format!("{BOARD}?limit={limit}"));
    let requests = boards.iter().map(|board| async {
        let request = Request::get(board.as_str()).body(Body::empty()).unwrap();
        fixture.serving.router().oneshot(request).await.unwrap()
    });
    let answers = futures::future::join_all(requests).await;
    assert_eq!(answers[0].status(), StatusCode::OK);
    assert_eq!(answers[1].status(), StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(answers[1].headers()["retry-after"], "1");
}

#[tokio::test]
async fn repeats_earlier_pages_while_a_store_is_down() {
    let fixture = Fixture::new(ServingOptions {
        runs_kept_for_ms: 0,
        ..no_wait_options()
    });
    fixture.publish(&[best(1), best(2)]);
    let (before, _) = fixture.page(BOARD).await;
    *fixture.world.is_down.lock().unwrap() = true;
    let (again, _) = fixture.page(BOARD).await;
    assert_eq!(
        (&again["entries"], &again["total"]),
        (&before["entries"], &json!(2))
    );
    assert_eq!(again["provenance"]["complete"], false);
    let request = Request::get(format!("{BOARD}?limit=1")).body(Body::empty());
    let response = fixture.serving.router().oneshot(request.unwrap()).await;
    assert_eq!(response.unwrap().status(), StatusCode::SERVICE_UNAVAILABLE);
}
