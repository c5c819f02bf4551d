//! Lines that come in over HTTP: taken, numbered, refused.

use super::*;

#[tokio::test]
async fn lines_are_taken_and_bad_ones_named() {
    let (serving, world) = world(impatient());
    let body = format!("{}\n{{\"a\":1}}\r\n{}nonsense", line(1), line(2));
    let (response, text) = send(
        &serving,
        request(Method::POST, "/api/v1/ingest/plays", body),
    )
    .await;
    assert_eq!(response.status(), StatusCode::OK, "{text}");
    let taken: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(
        (&taken["accepted"], &taken["rejected_count"]),
        (&json!(2), &json!(2))
    );
    let lines: Vec<&Value> = taken["rejected"]
        .as_array()
        .unwrap()
        .iter()
        .map(|r| &r["line"])
        .collect();
    assert_eq!(lines, [&json!(3), &json!(5)]);
    assert_eq!(world.appended().len(), 4);
    let (status, _) = problem(&serving, Method::POST, "/api/v1/ingest/likes").await;
    assert_eq!(status, StatusCode::NOT_FOUND);
}

#[tokio::test]
async fn long_bodies_are_taken_in_pieces_with_the_right_numbers() {
    let (serving, world) = world(impatient());
    let mut body = String::new();
    for n in 0..40_000 {
        body.push_str(if n % 10_000 == 9_999 { "bad\n" } else { "" });
        body.push_str(&line(n));
    }
    let (_, text) = send(
        &serving,
        request(Method::POST, "/api/v1/ingest/plays", body),
    )
    .await;
    let taken: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(taken["accepted"], 40_000);
    let lines: Vec<i64> = taken["rejected"]
        .as_array()
        .unwrap()
        .iter()
        .map(|r| r["line"].as_i64().unwrap())
        .collect();
    assert_eq!(lines, [10_000, 20_001, 30_002, 40_003]);
    assert_eq!(world.appended().len(), 40_004);
}

#[tokio::test]
async fn a_line_without_end_is_one_dead_letter() {
    let (serving, world) = world(impatient());
    let pieces = |line: String| {
        let (head, tail) = line.split_at(line.len() / 2);
        [head.to_owned(), tail.to_owned()].map(Ok::<_, std::io::Error>)
    };
    let mut body = Vec::from(pieces(line(1)));
    for _ in 0..5 {
        body.push(Ok("x".repeat(700_000)));
    }
    body.push(Ok("yy\n".to_owned()));
    body.extend(pieces(line(2)));
    let body = Body::from_stream(futures::stream::iter(body));
    let uri = "/api/v1/ingest/plays";
    let (response, text) = send(&serving, request(Method::POST, uri, body)).await;
    assert_eq!(response.status(), StatusCode::OK, "{text}");
    let taken: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(taken["accepted"], 2, "{text}");
    assert_eq!(taken["rejected"][0]["line"], 2, "{text}");
    assert_eq!(taken["rejected_count"], 1, "{text}");
    assert_eq!(world.appended().len(), 3);
}

#[tokio::test]
async fn blanks_hide_nothing_of_a_long_line() {
    let blanks = " ".repeat(2 << 20);
    let event = line(1);
    let event = event.trim();
    for (long, reason) in [
        (format!("{blanks}{event}\n"), "too long"),
        (format!("{event}{blanks}garbage}}\n"), "too long"),
        (format!("{blanks}bad\n"), "too long"),
        (blanks.clone(), "too long"),
    ] {
        // In one piece, and in many.
        for size in [usize::MAX, 300_000] {
            let (serving, world) = world(impatient());
            let body = format!("{}{long}", line(2));
            let pieces: Vec<_> = body.as_bytes().chunks(size.min(body.len())).collect();
            let pieces = pieces
                .into_iter()
                .map(|piece| Ok::<_, std::io::Error>(piece.to_vec()));
            let body = Body::from_stream(futures::stream::iter(pieces.collect::<Vec<_>>()));
            let request = request(Method::POST, "/api/v1/ingest/plays", body);
            let (_, text) = send(&serving, request).await;
            let taken: Value = serde_json::from_str(&text).unwrap();
            assert_eq!(taken["accepted"], 1, "{text}");
            let found = taken["rejected"][0]["reason"].as_str().unwrap_or_default();
            assert!(found.contains(reason), "{text}");
            assert_eq!(world.appended().len(), 2);
        }
    }
}
