//! `dead-letters list` and `dead-letters replay`.

use std::collections::HashSet;

use jiff::Timestamp;
use schemas::dead_letter::{DeadLetter, Place};
use schemas::source::{Source, SourceKind};
use serde::Serialize;
use stores::intake::{Retaken, Taken};
use stores::log::{FetchLimit, LogRead};

use super::Context;
use crate::args::DeadLettersCommand;
use crate::installation::Installation;

/// Dead letters that are fetched or taken in one step.
const STEP: FetchLimit = FetchLimit {
    records: 2_000,
    bytes: 8 * 1024 * 1024,
};
/// Of a raw line that is shown as text: so many characters.
const SHOWN_CHARS: usize = 200;

/// Runs the command.
pub(super) async fn run(command: &DeadLettersCommand, context: &Context) -> anyhow::Result<()> {
    match command {
        DeadLettersCommand::List { limit, source } => {
            list(context, usize::try_from(*limit)?, *source).await
        }
        DeadLettersCommand::Replay { source } => replay(context, *source).await,
    }
}

fn asked(source: Option<Source>) -> impl Iterator<Item = Source> {
    Source::ALL
        .into_iter()
        .filter(move |of| source.is_none_or(|source| source == *of))
}

/// Goes through the dead letters of a source, oldest first. One that was noted more than once, with
/// the same origin and the same bytes, comes once.
struct Letters<'a> {
    log: &'a dyn LogRead,
    source: Source,
    next: Vec<i64>,
    ends: Vec<i64>,
    seen: HashSet<same::Digest>,
}

/// What makes two notes the same dead letter, in few bytes.
mod same {
    use std::hash::{DefaultHasher, Hash, Hasher};

    use schemas::dead_letter::DeadLetter;

    pub(super) type Digest = (u64, u64);

    pub(super) fn digest(letter: &DeadLetter) -> Digest {
        let hash = |salt: u8| {
            let mut hasher = DefaultHasher::new();
            (salt, &letter.origin, &letter.raw).hash(&mut hasher);
            hasher.finish()
        };
        (hash(1), hash(2))
    }
}

impl<'a> Letters<'a> {
    async fn of(log: &'a dyn LogRead, source: Source) -> anyhow::Result<Self> {
        let spans = log.spans(source.dead_letter_topic()).await?;
        Ok(Self {
            log,
            source,
            next: spans.iter().map(|span| span.start).collect(),
            ends: spans.iter().map(|span| span.end).collect(),
            seen: HashSet::new(),
        })
    }

    /// Some more letters, of those that were there at the beginning; none at the end.
    async fn more(&mut self) -> anyhow::Result<Vec<DeadLetter>> {
        let topic = self.source.dead_letter_topic();
        for (partition, (next, end)) in (0..).zip(self.next.iter_mut().zip(&self.ends)) {
            while *next < *end {
                let fetched = self.log.fetch(topic, partition, *next, STEP).await?;
                if fetched.next_offset == *next {
                    break;
                }
                *next = fetched.next_offset;
                let mut letters = Vec::new();
                for (offset, value) in fetched
                    .records
                    .offsets
                    .values()
                    .iter()
                    .zip(fetched.records.values.iter().flatten())
                {
                    let letter: DeadLetter = serde_json::from_slice(value).map_err(|error| {
                        anyhow::anyhow!("{topic}/{partition}@{offset} is no dead letter: {error}")
                    })?;
                    if self.seen.insert(same::digest(&letter)) {
                        letters.push(letter);
                    }
                }
                if !letters.is_empty() {
                    return Ok(letters);
                }
            }
        }
        Ok(Vec::new())
    }
}

/// What `list` prints.
#[derive(Debug, Default, Serialize)]
struct Listed {
    total: u64,
    dead_letters: Vec<DeadLetter>,
}

async fn list(context: &Context, limit: usize, source: Option<Source>) -> anyhow::Result<()> {
    let installation = Installation::open_existing(context.settings()).await?;
    let mut listed = Listed::default();
    let mut newest = std::collections::VecDeque::new();
    for source in asked(source) {
        let mut letters = Letters::of(&*installation.stores().log, source).await?;
        loop {
            let more = letters.more().await?;
            if more.is_empty() {
                break;
            }
            for letter in more {
                listed.total += 1;
                newest.push_back(letter);
                if newest.len() > limit {
                    newest.pop_front();
                }
            }
        }
    }
    listed.dead_letters = newest.into_iter().rev().collect();
    context.output().result(&listed, |listed| {
        if listed.total == 0 {
            return "no dead letters".to_owned();
        }
        let mut text = String::new();
        for letter in &listed.dead_letters {
            let raw = String::from_utf8_lossy(&letter.raw);
            let mut shown: String = raw.chars().take(SHOWN_CHARS).collect();
            if shown.len() < raw.len() {
                shown.push('…');
            }
            let at = Timestamp::from_millisecond(letter.at_ms).unwrap_or_default();
            text.push_str(&format!(
                "{at}  {}  {}\n    {}\n    {}\n",
                letter.source,
                letter.origin,
                letter.reason,
                shown.escape_debug().to_string().replace("\\\"", "\"")
            ));
        }
        text.push_str(&format!(
            "{} of {} dead letters, newest first\n",
            listed.dead_letters.len(),
            listed.total
        ));
        text
    })
}

/// What `replay` prints.
#[derive(Debug, Default, Serialize)]
struct Replayed {
    /// Letters that are good now, and were taken.
    accepted: u64,
    /// Letters that are good now, and were left out: a row with the same version is stored.
    superseded: u64,
    /// Letters that still can't be taken.
    still_bad: u64,
    /// The first of these.
    first: Option<String>,
}

async fn replay(context: &Context, source: Option<Source>) -> anyhow::Result<()> {
    let installation = Installation::open_existing(context.settings()).await?;
    let mut replayed = Replayed::default();
    for source in asked(source) {
        replay_source(&installation, source, &mut replayed).await?;
    }
    context.output().result(&replayed, |replayed| {
        let mut text = format!(
            "{} taken, {} still can't be\n",
            replayed.accepted, replayed.still_bad
        );
        if replayed.accepted > 0 {
            text.push_str("what had been taken before changes nothing\n");
        }
        if replayed.superseded > 0 {
            text.push_str(&format!(
                "{} left out, since a row with the same id and version is stored by now; ingest what is to count all the same\n",
                replayed.superseded
            ));
        }
        if let Some(first) = &replayed.first {
            text.push_str(&format!("first of the others: {first}\n"));
        }
        text
    })
}

/// Takes the letters that are good now. What is still bad is only counted: it is kept already.
async fn replay_source(
    installation: &Installation,
    source: Source,
    replayed: &mut Replayed,
) -> anyhow::Result<()> {
    let intake = installation.intake(source).await?;
    let mut letters = Letters::of(&*installation.stores().log, source).await?;
    let mut retaken = Retaken::default();
    let schemas = &*installation.stores().schemas;
    loop {
        let more = letters.more().await?;
        if more.is_empty() {
            return Ok(());
        }
        let is_notification = |letter: &&DeadLetter| {
            let place = Place::of(&letter.origin);
            source.kind() == SourceKind::Entities
                && place.is_some_and(|place| place.topic == source.topic())
        };
        let (told, lines): (Vec<&DeadLetter>, Vec<&DeadLetter>) =
            more.iter().partition(is_notification);
        let taken = intake.retake(numbered(&lines), &mut retaken, schemas);
        replayed.add(&taken.await?, &lines);
        if !told.is_empty() {
            let taken = intake.notify_again(numbered(&told), schemas);
            replayed.add(&taken.await?, &told);
        }
    }
}

fn numbered<'a>(letters: &[&'a DeadLetter]) -> impl Iterator<Item = (u64, &'a [u8])> {
    (0..).zip(letters.iter().map(|letter| letter.raw.as_slice()))
}

impl Replayed {
    /// Adds what became of some letters.
    fn add(&mut self, taken: &Taken, letters: &[&DeadLetter]) {
        self.accepted += taken.accepted;
        self.superseded += taken.superseded;
        self.still_bad += taken.rejected.len() as u64;
        if let Some(rejected) = taken.rejected.first() {
            let letter = usize::try_from(rejected.line).ok();
            let origin = letter.and_then(|index| letters.get(index));
            let origin = origin.map_or("", |letter| letter.origin.as_str());
            self.first
                .get_or_insert_with(|| format!("{origin}: {}", rejected.reason));
        }
    }
}

#[cfg(test)]
mod tests {
    use stores::intake::append_dead_letters;

    use super::*;
    use crate::settings::Settings;

    const GOOD: &[u8] =
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

    #[tokio::test]
    async fn letters_come_once_and_what_is_good_is_taken() {
        let folder = tempfile::tempdir().unwrap();
        let settings = Settings {
            data_dir: folder.path().to_path_buf(),
            ..Settings::default()
        };
        let installation = Installation::open(&settings).await.unwrap();
        let log = &installation.stores().log;
        installation.intake(Source::Plays).await.unwrap();
        let letters = [
            letter("f:1", GOOD),
            letter("f:2", b"bad"),
            letter("f:2", b"bad"),
            letter("f:2", b"another file's second line"),
        ];
        append_dead_letters(&**log, Source::Plays, &letters, 1)
            .await
            .unwrap();
        let mut replayed = Replayed::default();
        replay_source(&installation, Source::Plays, &mut replayed)
            .await
            .unwrap();
        assert_eq!((replayed.accepted, replayed.still_bad), (1, 2));
        assert!(replayed.first.unwrap().starts_with("f:2: not JSON"));
        let spans = log.spans(Source::Plays.topic()).await.unwrap();
        assert_eq!(spans.iter().map(|span| span.end).sum::<i64>(), 1);
        let spans = log.spans(Source::Plays.dead_letter_topic()).await.unwrap();
        assert_eq!(spans[0].end, 4, "nothing was added");
    }

    #[tokio::test]
    async fn notifications_are_told_again() {
        let folder = tempfile::tempdir().unwrap();
        let settings = Settings {
            data_dir: folder.path().to_path_buf(),
            ..Settings::default()
        };
        let installation = Installation::open(&settings).await.unwrap();
        let log = &installation.stores().log;
        installation.intake(Source::Efforts).await.unwrap();
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
        let mut replayed = Replayed::default();
        replay_source(&installation, Source::Efforts, &mut replayed)
            .await
            .unwrap();
        assert_eq!((replayed.accepted, replayed.still_bad), (1, 2));
        let first = replayed.first.unwrap();
        assert!(first.starts_with("efforts.jsonl:1: not JSON"), "{first}");
        let spans = log.spans(Source::Efforts.topic()).await.unwrap();
        assert_eq!(spans.iter().map(|span| span.end).sum::<i64>(), 1);
    }

    #[tokio::test]
    async fn an_old_row_does_not_replace_one_that_came_since() {
        let folder = tempfile::tempdir().unwrap();
        let settings = Settings {
            data_dir: folder.path().to_path_buf(),
            ..Settings::default()
        };
        let installation = Installation::open(&settings).await.unwrap();
        let (canon, log) = (&installation.stores().canon, &installation.stores().log);
        let row = |id: i64, capacity: i64, version: i64| {
            let more = format!(r#""athlete_capacity":{capacity},"version":{version}"#);
            format!(r#"{{"id":{id},"name":"n","owner":1,{more}}}"#)
        };
        let intake = installation.intake(Source::Applications).await.unwrap();
        let stored = [row(1, 9, 0), row(2, 9, 0), row(3, 9, 5)];
        let lines = (1..).zip(stored.iter().map(|line| line.as_bytes()));
        intake.take("f", lines).await.unwrap();
        // One of a version that is there, a newer one, an older one, and two of one that is not there.
        let old = [
            row(1, 1, 0),
            row(2, 2, 1),
            row(3, 3, 4),
            row(4, 4, 0),
            row(4, 5, 0),
        ];
        // More than what is taken in one step comes between the last two.
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
        let mut replayed = Replayed::default();
        replay_source(&installation, Source::Applications, &mut replayed)
            .await
            .unwrap();
        assert_eq!((replayed.accepted, replayed.superseded), (2_104, 1));
        for (id, capacity) in [(1, 9), (2, 2), (3, 9), (4, 5)] {
            let found = canon.application(id).await.unwrap().unwrap();
            assert_eq!(found.athlete_capacity, capacity, "{id}");
        }
    }
}
