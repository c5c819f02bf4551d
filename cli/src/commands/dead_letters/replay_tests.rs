use schemas::dead_letter::DeadLetter;
use stores::intake::append_dead_letters;

use super::*;
use crate::settings::Settings;

const VALID: &[u8] =
    br#"{"event_id":"a","track_id":1,"owner_id":2,"kind":"play","at":"2026-01-01T00:00:00Z"}"#;

fn letter(origin: &str, raw: &[u8]) -> DeadLetter {
    DeadLetter {
        source: "plays".to_owned(),
        reason: "was bad".to_owned(),
        origin: origin.to_owned(),
        at_ms: 1,
        raw: raw.to_vec(),
    }
}

async fn replay_source(installation: &Installation, source: Source) -> ReprocessReport {
    let filter = DeadLetterFilter {
        source: Some(source),
        ..DeadLetterFilter::default()
    };
    let mut replayer = Replayer::new(installation, false);
    replayer.replay_matching(filter).await.unwrap();
    replayer.reprocessor.finish()
}

#[tokio::test]
async fn valid_dead_letters_are_ingested_once() {
    let folder = tempfile::tempdir().unwrap();
    let settings = Settings {
        data_dir: folder.path().to_path_buf(),
        ..Settings::default()
    };
    let installation = Installation::open(&settings).await.unwrap();
    let log = &installation.stores().log;
    installation.open_intake(Source::Plays).await.unwrap();
    let letters = [
        letter("f:1", VALID),
        letter("f:2", b"bad"),
        letter("f:2", b"bad"),
        letter("f:2", b"another file's second line"),
    ];
    append_dead_letters(&**log, Source::Plays, &letters, 1)
        .await
        .unwrap();
    let report = replay_source(&installation, Source::Plays).await;
    assert_eq!((report.accepted, report.still_bad), (1, 2));
    assert!(report.first.unwrap().starts_with("f:2: not JSON"));
    let spans = log.spans(Source::Plays.topic()).await.unwrap();
    assert_eq!(spans.iter().map(|span| span.end).sum::<i64>(), 1);
    let spans = log.spans(Source::Plays.dead_letter_topic()).await.unwrap();
    assert_eq!(spans[0].end, 4, "nothing was added");
}

#[tokio::test]
async fn notifications_are_published_again() {
    let folder = tempfile::tempdir().unwrap();
    let settings = Settings {
        data_dir: folder.path().to_path_buf(),
        ..Settings::default()
    };
    let installation = Installation::open(&settings).await.unwrap();
    let log = &installation.stores().log;
    installation.open_intake(Source::Efforts).await.unwrap();
    let letters = [
        letter(
            "backstitch.efforts.v1/1@7",
            br#"{"segment_id":1,"athlete_id":2}"#,
        ),
        letter("backstitch.efforts.v1/1@8", b"bad"),
        letter("efforts.jsonl:1", b"bad too"),
    ];
    append_dead_letters(&**log, Source::Efforts, &letters, 1)
        .await
        .unwrap();
    let report = replay_source(&installation, Source::Efforts).await;
    assert_eq!((report.accepted, report.still_bad), (1, 2));
    let first = report.first.unwrap();
    assert!(first.starts_with("efforts.jsonl:1: not JSON"), "{first}");
    let spans = log.spans(Source::Efforts.topic()).await.unwrap();
    assert_eq!(spans.iter().map(|span| span.end).sum::<i64>(), 1);
}

#[tokio::test]
async fn an_old_row_does_not_replace_a_newer_one() {
    let folder = tempfile::tempdir().unwrap();
    let settings = Settings {
        data_dir: folder.path().to_path_buf(),
        ..Settings::default()
    };
    let installation = Installation::open(&settings).await.unwrap();
    let (entities, log) = (&installation.stores().entities, &installation.stores().log);
    let row = |id: i64, capacity: i64, version: i64| {
        let fields = format!(r#""athlete_capacity":{capacity},"version":{version}"#);
        format!(r#"{{"id":{id},"name":"n","owner":1,{fields}}}"#)
    };
    let intake = installation
        .open_intake(Source::Applications)
        .await
        .unwrap();
    let stored = [row(1, 9, 0), row(2, 9, 0), row(3, 9, 5)];
    let lines = (1..).zip(stored.iter().map(|line| line.as_bytes()));
    intake.ingest("f", lines).await.unwrap();
    // A row with the stored version, a newer one, an older one, and two rows that are not stored.
    let old = [
        row(1, 1, 0),
        row(2, 2, 1),
        row(3, 3, 4),
        row(4, 4, 0),
        row(4, 5, 0),
    ];
    // More than one step of rows lies between the last two.
    let others = (100..2_200).map(|id| row(id, 1, 0));
    let mut letters: Vec<DeadLetter> = old
        .iter()
        .map(|line| letter("f:1", line.as_bytes()))
        .collect();
    let last = letters.pop();
    letters.extend(others.map(|line| letter("f:2", line.as_bytes())));
    letters.extend(last);
    append_dead_letters(&**log, Source::Applications, &letters, 1)
        .await
        .unwrap();
    let report = replay_source(&installation, Source::Applications).await;
    assert_eq!((report.accepted, report.superseded), (2_104, 1));
    for (id, capacity) in [(1, 9), (2, 2), (3, 9), (4, 5)] {
        let application = entities.application(id).await.unwrap().unwrap();
        assert_eq!(application.athlete_capacity, capacity, "{id}");
    }
}
