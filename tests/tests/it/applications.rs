//! Administration of applications over HTTP and the command line, on all stores.

use serde_json::{Value, json};
use tests::http::Client;
use tests::installation::Installation;
use tests::process::{Server, run, run_ok};

const APPLICATION: &str = "/api/v1/applications/7";

#[test]
fn applications_are_administered_embedded() {
    administer(&Installation::embedded());
}

#[test]
fn applications_are_administered_on_servers() {
    administer(&Installation::on_servers());
}

fn ingest(installation: &Installation, source: &str, rows: &[Value]) {
    let lines: Vec<String> = rows.iter().map(Value::to_string).collect();
    installation.ingest(source, &lines.join("\n"));
}

fn application(id: i64, name: &str, athlete_capacity: i64) -> Value {
    json!({"id": id, "name": name, "owner": format!("Owner {id}"), "athlete_capacity": athlete_capacity})
}

fn parse_body(answer: (u16, String)) -> (u16, Value) {
    let body = serde_json::from_str(&answer.1).unwrap_or_else(|e| panic!("{e}: {answer:?}"));
    (answer.0, body)
}

fn connect(client: &Client, athlete: i64) -> u16 {
    let body = json!({"athlete_id": athlete}).to_string();
    client
        .post(&format!("{APPLICATION}/authorizations"), body.as_bytes())
        .0
}

fn administer(installation: &Installation) {
    let pacer = application(7, "Pacer <b>&amp;</b> {{x}} @NAME@", 2);
    ingest(installation, "applications", &[pacer]);
    let server = Server::start(installation.data(), &[]);
    let client = &server.client;
    run_ok(installation.data(), &["speed", "--until-caught-up"]);
    assert_eq!(
        [1, 2, 3].map(|athlete| connect(client, athlete)),
        [201, 201, 403]
    );
    run_ok(installation.data(), &["speed", "--until-caught-up"]);
    check_changes(installation, client);
    check_capacity_requests(installation, client);
    check_pages(client);
    check_invalid_requests(client);
    check_lists(installation, client);
}

#[expect(clippy::too_many_lines, reason = "one scenario")]
fn check_changes(installation: &Installation, client: &Client) {
    let patch = |body: &Value| parse_body(client.patch(APPLICATION, body.to_string().as_bytes()));
    let disable = json!({"enforced": false, "reason": "an event", "by": "ann"});
    let (status, shown) = patch(&disable);
    assert_eq!(
        (status, &shown["enforced"]),
        (200, &json!(false)),
        "{shown}"
    );
    assert_eq!(connect(client, 3), 201);
    run_ok(installation.data(), &["speed", "--until-caught-up"]);
    let new_settings = json!({"enforced": true, "athlete_capacity": 4});
    let (_, shown) = patch(&new_settings);
    let names = [
        "connected_athletes",
        "athlete_capacity",
        "enforced",
        "usage",
    ];
    let numbers = names.map(|name| shown[name].clone());
    assert_eq!(numbers, [json!(3), json!(4), json!(true), json!(0.75)]);
    assert_eq!(client.get_json(APPLICATION)["usage"], json!(0.75));
    let set = [
        "applications",
        "set",
        "7",
        "--capacity",
        "3",
        "--reason",
        "less",
        "--by",
        "bob",
    ];
    let message = run_ok(installation.data(), &set);
    assert!(
        message.contains("3 of 3 athletes are connected"),
        "{message}"
    );
    assert_eq!(connect(client, 4), 403);

    let audit = client.get_json(&format!("{APPLICATION}/audit"));
    assert_eq!(audit["provenance"]["source"], "canonical", "{audit}");
    let entries = audit["entries"].as_array().expect("entries").iter();
    let shown =
        entries.map(|e| ["by", "changed", "before", "after", "reason"].map(|n| e[n].clone()));
    let expected = [
        [
            json!("bob"),
            json!("capacity"),
            json!(4),
            json!(3),
            json!("less"),
        ],
        [
            json!("http"),
            json!("enforced"),
            json!(false),
            json!(true),
            Value::Null,
        ],
        [
            json!("http"),
            json!("capacity"),
            json!(2),
            json!(4),
            Value::Null,
        ],
        [
            json!("ann"),
            json!("enforced"),
            json!(true),
            json!(false),
            json!("an event"),
        ],
    ];
    assert_eq!(shown.collect::<Vec<_>>(), expected);
    let page = client.get_json(&format!("{APPLICATION}/audit?limit=3"));
    let cursor = page["cursor"].as_str().expect("more");
    let next_page = client.get_json(&format!("{APPLICATION}/audit?limit=3&cursor={cursor}"));
    assert_eq!(next_page["entries"][0], audit["entries"][3]);
    assert_eq!(next_page["cursor"], Value::Null);
    let (_, csv) = client.get(&format!("{APPLICATION}/audit?format=csv"));
    assert_eq!(csv.lines().count(), 5, "{csv}");
}

fn check_capacity_requests(installation: &Installation, client: &Client) {
    let path = format!("{APPLICATION}/capacity-requests");
    let request = |body: Value| parse_body(client.post(&path, body.to_string().as_bytes()));
    let (status, problem) = request(json!({"athlete_capacity": 3}));
    assert_eq!(status, 400, "{problem}");
    let capacity_request = json!({"athlete_capacity": 10, "reason": "a launch", "by": "dev"});
    let (status, first) = request(capacity_request.clone());
    assert_eq!((status, &first["state"]), (201, &json!("open")), "{first}");
    let (status, problem) = request(capacity_request);
    assert_eq!(
        (status, &problem["type"], &problem["request"]),
        (409, &json!("/problems/request-open"), &first)
    );
    let listed = client.get_json("/api/v1/capacity-requests?state=open");
    assert_eq!(listed["requests"], json!([first]));
    let message = run_ok(installation.data(), &["applications", "requests"]);
    assert!(
        message.contains("application 7 requests 10, by dev"),
        "{message}"
    );

    let request_path = format!("/api/v1/capacity-requests/{}", first["id"]);
    let decide = |body: Value| parse_body(client.patch(&request_path, body.to_string().as_bytes()));
    for body in [
        json!({"state": "open"}),
        json!({"state": "refused", "athlete_capacity": 3}),
        json!({"state": "granted", "athlete_capacity": -3}),
        json!({}),
    ] {
        assert_eq!(decide(body.clone()).0, 400, "{body}");
    }
    let (status, granted) = decide(json!({"state": "granted", "athlete_capacity": 5, "by": "eve"}));
    assert_eq!(status, 200, "{granted}");
    let fields = ["state", "granted_capacity", "decided_by"];
    let fields = fields.map(|name| granted[name].clone());
    assert_eq!(fields, [json!("granted"), json!(5), json!("eve")]);
    let (status, problem) = decide(json!({"state": "refused"}));
    assert_eq!(
        (status, &problem["type"], &problem["request"]),
        (409, &json!("/problems/already-decided"), &granted)
    );
    assert_eq!(
        [5, 6, 7].map(|athlete| connect(client, athlete)),
        [201, 201, 403]
    );
    let audit = client.get_json(&format!("{APPLICATION}/audit?limit=1"));
    assert_eq!(audit["entries"][0]["request_id"], first["id"], "{audit}");

    run_ok(
        installation.data(),
        &["applications", "ask", "7", "--capacity", "9", "--by", "dev"],
    );
    let second = client.get_json(&format!("{path}?state=open"))["requests"][0]["id"].to_string();
    let refuse = [
        "applications",
        "refuse",
        &second,
        "--answer",
        "not now",
        "--by",
        "eve",
    ];
    let message = run_ok(installation.data(), &refuse);
    assert!(message.contains("is refused by eve"), "{message}");
    let again = run(installation.data(), &["applications", "grant", &second]);
    let message = String::from_utf8_lossy(&again.stderr).into_owned();
    assert!(
        !again.status.success() && message.contains("is already refused"),
        "{message}"
    );
    let request_count = client.get_json(&path)["requests"].as_array().map(Vec::len);
    assert_eq!(request_count, Some(2));
}

fn check_pages(client: &Client) {
    let (status, page) = client.get(&format!("{APPLICATION}/limit"));
    assert_eq!(status, 200, "{page}");
    let name = "Pacer &#60;b&#62;&#38;amp;&#60;/b&#62; {{x}} @NAME@";
    assert!(
        page.contains(&format!("{name} can\u{2019}t connect more athletes")),
        "{page}"
    );
    assert!(
        page.contains("5 athletes are connected; the limit is 5."),
        "{page}"
    );
    assert!(!page.contains("<b>"), "{page}");
    assert!(
        page.contains("/api/v1/applications/7/capacity-requests"),
        "{page}"
    );
    let (status, body) = client.get("/api/v1/applications/8/limit");
    assert_eq!(status, 404, "{body}");
    assert!(body.contains("/problems/unknown-application"), "{body}");
    let authorizations = format!("{APPLICATION}/authorizations");
    let athlete = br#"{"athlete_id": 99}"#;
    let (status, kind, page) = client.post_for("text/html,*/*;q=0.8", &authorizations, athlete);
    assert_eq!(
        (status, kind.as_str()),
        (403, "text/html; charset=utf-8"),
        "{page}"
    );
    assert!(
        page.contains("5 athletes are connected; the limit is 5."),
        "{page}"
    );
    let (status, kind, body) = client.post_for("application/json", &authorizations, athlete);
    assert_eq!(
        (status, kind.as_str()),
        (403, "application/problem+json"),
        "{body}"
    );
}

fn check_invalid_requests(client: &Client) {
    let long = "x".repeat(1025);
    for body in [
        json!({}),
        json!({"reason": "nothing"}),
        json!({"athlete_capacity": -1}),
        json!({"athlete_capacity": 9_007_199_254_740_992_i64}),
        json!({"enforced": "no"}),
        json!({"enforced": true, "reason": long}),
        json!({"enforced": true, "by": "a\u{0}b"}),
        json!({"capacity": 3}),
    ] {
        let (status, problem) = parse_body(client.patch(APPLICATION, body.to_string().as_bytes()));
        assert_eq!(
            (status, &problem["type"]),
            (400, &json!("/problems/bad-body")),
            "{body}"
        );
    }
    let unknown_application = "/api/v1/applications/8";
    let set = br#"{"enforced": true}"#;
    assert_eq!(client.patch(unknown_application, set).0, 404);
    assert_eq!(client.get(&format!("{unknown_application}/audit")).0, 404);
    assert_eq!(
        client
            .get(&format!("{unknown_application}/capacity-requests"))
            .0,
        404
    );
    let ask = br#"{"athlete_capacity": 10}"#;
    assert_eq!(
        client
            .post(&format!("{unknown_application}/capacity-requests"), ask)
            .0,
        404
    );
    let refuse = br#"{"state": "refused"}"#;
    let (status, problem) = parse_body(client.patch("/api/v1/capacity-requests/99", refuse));
    assert_eq!(
        (status, &problem["type"]),
        (404, &json!("/problems/unknown-request"))
    );
    for query in [
        "sort=size",
        "order=up",
        "search=",
        "usage_from=x",
        "usage_from=-1",
        "cursor=x",
    ] {
        let (status, body) = client.get(&format!("/api/v1/applications?{query}"));
        assert_eq!(status, 400, "{query}: {body}");
    }
    assert_eq!(client.get("/api/v1/capacity-requests?state=some").0, 400);
}

fn check_lists(installation: &Installation, client: &Client) {
    // Capacities are 10, 20, …; the number of athletes equals the id, except that the last
    // application has none.
    let rows: Vec<Value> = (1..=5)
        .map(|id| application(id, &format!("App {id}"), 10 * id))
        .collect();
    ingest(installation, "applications", &rows);
    let mut authorizations = Vec::new();
    for id in 1..=4 {
        for athlete in 0..id {
            authorizations.push(json!({"id": 100 * id + athlete, "application_id": id, "athlete_id": athlete, "created_at": "2026-01-01T00:00:00Z"}));
        }
    }
    ingest(installation, "authorizations", &authorizations);
    run_ok(installation.data(), &["speed", "--until-caught-up"]);
    let ids = |query: &str| {
        let (mut listed_ids, mut cursor) = (Vec::new(), String::new());
        loop {
            let page = client.get_json(&format!("/api/v1/applications?{query}&limit=2{cursor}"));
            let rows = page["applications"].as_array().expect("rows");
            listed_ids.extend(rows.iter().filter_map(|row| row["id"].as_i64()));
            match page["cursor"].as_str() {
                Some(next) => cursor = format!("&cursor={next}"),
                None => return listed_ids,
            }
        }
    };
    assert_eq!(ids("sort=id"), [1, 2, 3, 4, 5, 7]);
    assert_eq!(ids("sort=id&order=desc"), [7, 5, 4, 3, 2, 1]);
    assert_eq!(ids("sort=connected"), [7, 4, 3, 2, 1, 5]);
    assert_eq!(ids("sort=name"), [1, 2, 3, 4, 5, 7]);
    // Four applications use a tenth of their capacity.
    assert_eq!(ids("sort=usage"), [7, 4, 3, 2, 1, 5]);
    assert_eq!(ids("sort=usage&order=asc"), [5, 1, 2, 3, 4, 7]);
    assert_eq!(ids("usage_from=0.1"), [1, 2, 3, 4, 7]);
    assert_eq!(ids("usage_from=0.8"), [7]);
    assert_eq!(ids("search=aPP"), [1, 2, 3, 4, 5]);
    assert_eq!(ids("search=owner%207"), [7]);
    assert_eq!(ids("search=3"), [3]);
    assert_eq!(ids("search=nothing"), [0_i64; 0]);
    let (_, csv) = client.get("/api/v1/applications?sort=usage&limit=1&format=csv");
    let mut lines = csv.lines();
    let head = "id,name,owner,connected_athletes,athlete_capacity,enforced,usage,strategy,class,counted_at";
    assert_eq!(lines.next(), Some(head));
    assert!(
        lines
            .next()
            .is_some_and(|line| line.ends_with(",5,5,true,1.0,increments,,")),
        "{csv}"
    );
    let message = run_ok(
        installation.data(),
        &["applications", "list", "--limit", "2", "--json"],
    );
    let listed: Value = serde_json::from_str(&message).expect("JSON");
    let listed = listed.as_array().expect("a list").iter();
    let listed: Vec<_> = listed
        .map(|application| application["id"].as_i64().unwrap_or_default())
        .collect();
    assert_eq!(listed, [7, 4], "as by HTTP");
    let message = run_ok(installation.data(), &["applications", "show", "7"]);
    assert!(
        message.contains("5 of 5 athletes") && message.contains("capacity: 3 -> 5, by eve"),
        "{message}"
    );
}
