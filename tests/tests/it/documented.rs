//! Runs the commands that the docs show, page by page and in order, as a reader's shell does, and
//! the commands in the text of runbooks. A test of the command line checks that all others are
//! commands.

use std::cell::RefCell;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;
use tests::place::Place;
use tests::process::{CONFIG, Process, Server, binary, done, run};

use crate::tidy::root;

/// Fewer rows than in the docs.
const ROWS: &str = "--rows 300 ";
/// Commands that run until they are stopped.
const SERVICES: [&str; 2] = ["serve ", "scheduler"];
/// Tested elsewhere: commands for servers, and for several machines.
const ELSEWHERE: [&str; 3] = [" --config ", "backstitch executor", "batch run --engine"];
/// Commands that exit with 3 if they find or compare differences, as the docs say.
const FINDERS: [&str; 2] = ["reconcile", "erase"];
/// Programs whose commands are run.
const COMMANDS: [&str; 2] = ["backstitch ", "curl "];
/// Wrappers of a command: run as the service's user, in a container, and in a pod. Only the inner
/// command is run.
const AROUND: [&str; 3] = ["as ", "docker compose ", "kubectl exec "];
/// Text to remove from a wrapped command.
const WITHIN: &str = " --config /etc/backstitch/backstitch.toml ";
/// Placeholders in runbooks, and their values in an installation that followed the docs.
const LEFT_OPEN: [(&str, &str); 4] = [
    ("SOURCE", "plays"),
    ("VIEW", "plays_detail"),
    ("RUN", "1"),
    ("'…'", "because"),
];
/// Pages that need only an empty installation, in this order. Commands of other pages need the data
/// that these ingest.
const FIRST_STEPS: [&str; 2] = ["README.md", "docs/getting-started.md"];
/// The address of the API in the docs.
const API: &str = "http://127.0.0.1:8080";

/// An installation with the data that the docs refer to.
struct Reader {
    place: Place,
    server: Server,
    /// The id of the key that the docs call ID, if there is a key.
    key: Option<String>,
    /// The key to send if a line names none.
    sent: Option<String>,
    /// The key that a line created last.
    shown: RefCell<Option<String>>,
}

/// Creates a key; returns its id and secret.
fn key(data: &Path, scope: &str) -> (String, String) {
    let args = [
        "keys", "create", "--name", "of docs", "--scope", scope, "--json",
    ];
    let made: Value = serde_json::from_str(&done(data, &args)).expect("JSON");
    let text = |name: &str| made[name].as_str().expect("a text").to_owned();
    (text("id"), text("key"))
}

impl Reader {
    /// A reader who starts with nothing, as in the README, or with an installation that has keys.
    fn new(has_keys: bool) -> Self {
        let place = Place::embedded();
        let data = place.data();
        fs::create_dir_all(data).expect("the data folder");
        fs::write(data.join(CONFIG), "[log]\npartitions = 1\n").expect("settings");
        let (key, sent) = match has_keys {
            true => (Some(key(data, "read:*").0), Some(key(data, "admin").1)),
            false => (None, None),
        };
        let server = Server::start(data, &[]);
        let reader = Self {
            place,
            server,
            key,
            sent,
            shown: RefCell::default(),
        };
        let data = reader.place.data();
        for year in ["2019", "2020"] {
            let file = reader.file(&format!("{year}.parquet"));
            done(
                data,
                &[
                    "generate", "plays", "--rows", "50", "--seed", year, "-o", &file,
                ],
            );
        }
        let play = r#"{"event_id":"of docs","track_id":2,"owner_id":1,"listener_id":4711,"kind":"play","at":"2026-03-01T10:00:00Z"}"#;
        let bad = "not JSON\n".repeat(20);
        reader.place.ingest("plays", &format!("{play}\n{bad}"));
        let effort = r#"{"id":900000001,"segment_id":1,"athlete_id":42,"activity_id":1,"elapsed_time":300,"started_at":"2026-03-01T07:30:00Z","tz":"UTC","visibility":"everyone"}"#;
        reader.place.ingest("efforts", effort);
        let name = r#"{"id":7,"name":"Long Climb"}"#;
        fs::write(reader.file("segments.jsonl"), name).expect("a file");
        // A bill that contains the play.
        let bill = "owner_id,track_id,bucket,kind,expected\n1,2,2026-03-01T00:00:00Z,play,3\n";
        fs::write(reader.file("billing.csv"), bill).expect("a file");
        reader
    }

    fn file(&self, name: &str) -> String {
        self.place
            .folder()
            .join(name)
            .to_string_lossy()
            .into_owned()
    }

    /// Runs a line in a shell; `backstitch` is the tested build with this installation.
    fn shell(&self, line: &str) -> Output {
        let bin = self.place.folder().join("bin");
        fs::create_dir_all(&bin).expect("a folder");
        let config = self.place.data().join(CONFIG);
        let script = format!(
            "#!/bin/sh\nexec '{}' --data-dir '{}' --config '{}' \"$@\"\n",
            binary().display(),
            self.place.data().display(),
            config.display()
        );
        let program = bin.join("backstitch");
        if !program.exists() {
            fs::write(&program, script).expect("a program");
            let mode = Command::new("chmod").arg("+x").arg(&program).status();
            assert!(mode.expect("chmod").success());
        }
        let path = std::env::var("PATH").unwrap_or_default();
        let mut shell = Command::new("sh");
        shell.arg("-c").arg(line).current_dir(self.place.folder());
        shell.env("PATH", format!("{}:{path}", bin.display()));
        shell.output().expect("a shell")
    }

    /// Runs the lines of a page and appends failures to `wrong`; returns the number of lines.
    async fn follow(&self, page: &Path, lines: Vec<String>, wrong: &mut String) -> usize {
        let mut count = 0;
        for line in lines {
            if ELSEWHERE.iter().any(|part| line.contains(part)) {
                continue;
            }
            count += 1;
            if let Err(why) = self.carry_out(&line).await {
                let page = page.file_name().unwrap_or_default().display();
                writeln!(wrong, "{page}: {line}: {why}").expect("a text");
            }
        }
        count
    }

    /// Runs a line; the error says what is wrong with it.
    async fn carry_out(&self, line: &str) -> Result<(), String> {
        if line.starts_with("curl ") {
            return self.curl(line);
        }
        let is_service = |name: &str| line.starts_with(&format!("backstitch {name}"));
        if SERVICES.iter().any(|name| is_service(name)) {
            return self.service(line).await;
        }
        let output = self.shell(&filled_in(line, self.key.as_deref().unwrap_or("ID")));
        let said = String::from_utf8_lossy(&output.stdout);
        if let Some(key) = said
            .split_whitespace()
            .find(|word| word.starts_with("bsk_"))
        {
            self.shown.replace(Some(key.to_owned()));
        }
        let code = output.status.code();
        let may_find = FINDERS.iter().any(|command| line.contains(command));
        if code == Some(0) || (may_find && code == Some(3)) {
            return Ok(());
        }
        Err(format!(
            "{code:?} {}",
            String::from_utf8_lossy(&output.stderr)
        ))
    }

    /// Sends a request to the API as curl does.
    fn curl(&self, line: &str) -> Result<(), String> {
        let mut words = words(line).into_iter().skip(1);
        let (mut method, mut url, mut body) = ("GET".to_owned(), None, None);
        let mut headers = Vec::new();
        while let Some(word) = words.next() {
            let mut value = || words.next().expect("what follows an option");
            match word.as_str() {
                // The server is already listening.
                "-fsS" | "--retry-connrefused" => {}
                "--retry" | "--retry-delay" => drop(value()),
                "-X" => method = value(),
                "-d" | "--data-binary" => body = Some(value()),
                "-H" => {
                    let header = value();
                    let (name, value) = header.split_once(": ").expect("a header");
                    // A reader inserts the key that was shown.
                    let key = self.shown.borrow().clone().or_else(|| self.sent.clone());
                    let value = value.replace("$BACKSTITCH_KEY", &key.unwrap_or_default());
                    headers.push((name.to_ascii_lowercase(), value));
                }
                _ => {
                    let path = word
                        .strip_prefix(API)
                        .unwrap_or_else(|| panic!("{line}: {word}"));
                    url = Some(format!("http://{}{path}", self.server.client.address()));
                }
            }
        }
        if body.is_some() && method == "GET" {
            method = "POST".to_owned();
        }
        if let Some(key) = &self.sent
            && !headers.iter().any(|(name, _)| name == "authorization")
        {
            headers.push(("authorization".to_owned(), format!("Bearer {key}")));
        }
        let mut request = ureq::http::Request::builder().method(method.as_str());
        for (name, value) in headers {
            request = request.header(name, value);
        }
        let request = request.uri(url.expect("an address"));
        let request = request.body(body.unwrap_or_default()).expect("a request");
        let agent = ureq::Agent::config_builder()
            .http_status_as_error(false)
            .allow_non_standard_methods(true)
            .build()
            .new_agent();
        let mut answer = agent.run(request).map_err(|error| error.to_string())?;
        let told = answer.body_mut().read_to_string().unwrap_or_default();
        let is_good = answer.status().is_success();
        let wrong = || format!("{} {told}", answer.status());
        is_good.then_some(()).ok_or_else(wrong)
    }

    /// Starts a service, which must print its address and stop on request.
    async fn service(&self, line: &str) -> Result<(), String> {
        let line = line.split('#').next().unwrap_or_default();
        let words = line.split_whitespace().filter(|word| *word != "&").skip(1);
        // Ports may be in use, and other machines do not exist.
        let words = words.map(|word| match word.contains(':') {
            true => "127.0.0.1:0",
            false => word,
        });
        let mut words: Vec<&str> = words.collect();
        if words == ["scheduler"] && !cfg!(feature = "scale") {
            // A build without the feature refuses the command and names the feature.
            let refused = run(self.place.data(), &words);
            let stderr = String::from_utf8_lossy(&refused.stderr);
            assert!(stderr.contains("`scale`"), "{stderr}");
            return Ok(());
        }
        if words == ["scheduler"] {
            words.extend(["--listen", "127.0.0.1:0"]);
        }
        let process = Process::start(self.place.data(), &words);
        process.until_said("127.0.0.1:").await;
        let (succeeded, said) = process.end();
        succeeded.then_some(()).ok_or_else(|| format!("{said:?}"))
    }
}

/// The lines in a page's code blocks that begin with a command.
fn lines(page: &Path) -> Vec<String> {
    let text = fs::read_to_string(page).expect("a page");
    let (mut is_block, mut lines) = (false, Vec::new());
    // A line may continue on the next one.
    for line in text.replace("\\\n", " ").lines() {
        if line.starts_with("```") {
            is_block = !is_block;
        } else if is_block && COMMANDS.iter().any(|command| line.starts_with(command)) {
            lines.push(line.to_owned());
        } else if is_block && AROUND.iter().any(|command| line.starts_with(command)) {
            lines.extend(within(line));
        }
    }
    lines
}

/// Our command that a line wraps, if any.
fn within(line: &str) -> Option<String> {
    if let Some(command) = line.strip_prefix("as ") {
        return Some(format!(
            "backstitch {}",
            command.replace("&& as ", "&& backstitch ")
        ));
    }
    let (_, command) = line.split_once(WITHIN)?;
    Some(format!("backstitch {command}"))
}

/// The commands in the text of a runbook.
fn said(page: &Path) -> Vec<String> {
    let text = fs::read_to_string(page).expect("a page");
    let quoted = text.split('`').skip(1).step_by(2);
    let commands = quoted.filter(|part| COMMANDS.iter().any(|command| part.starts_with(command)));
    let filled = commands.map(|command| {
        let open = LEFT_OPEN.iter();
        open.fold(command.to_owned(), |line, (name, one)| {
            line.replace(name, one)
        })
    });
    filled.collect()
}

/// The pages of [`FIRST_STEPS`].
fn first_steps() -> Vec<PathBuf> {
    FIRST_STEPS.iter().map(|page| root().join(page)).collect()
}

fn pages(folder: &str) -> Vec<PathBuf> {
    let docs = fs::read_dir(root().join(folder)).expect("the docs");
    let mut pages: Vec<PathBuf> = docs.flatten().map(|entry| entry.path()).collect();
    pages.retain(|page| page.extension().is_some_and(|end| end == "md"));
    pages.sort();
    pages
}

/// Splits a line into words as a shell does.
fn words(line: &str) -> Vec<String> {
    let (mut words, mut word, mut quote) = (Vec::new(), None::<String>, None);
    for char in line.chars() {
        match (quote, char) {
            (Some(of), _) if of == char => quote = None,
            (None, '\'' | '"') => {
                quote = Some(char);
                word.get_or_insert_default();
            }
            (None, ' ') => words.extend(word.take()),
            (None, '#') if word.is_none() => break,
            // A shell interprets these characters. A variable within double quotes is left to the
            // reader.
            (None, '&' | '|' | ';' | '<' | '>' | '(' | '*' | '?' | '~' | '`' | '$') => {
                panic!("{line}: put what has {char:?} into single quotes")
            }
            _ => word.get_or_insert_default().push(char),
        }
    }
    words.extend(word);
    words
}

/// A line with the reader's values inserted.
fn filled_in(line: &str, key: &str) -> String {
    let words = line
        .split(' ')
        .map(|word| if word == "ID" { key } else { word });
    let words: Vec<&str> = words.collect();
    let line = words.join(" ");
    let Some((before, rows)) = line.split_once("--rows ") else {
        return line;
    };
    let after = rows.split_once(' ').map_or("", |(_, after)| after);
    format!("{before}{ROWS}{after}")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_the_docs_show_works() {
    let mut docs = pages("docs");
    // Another test runs the tutorial, in a folder with its views.
    docs.retain(|page| !page.ends_with("tutorial.md") && !page.ends_with("getting-started.md"));
    let reader = Reader::new(true);
    let (mut count, mut wrong) = (0, String::new());
    for page in first_steps().into_iter().chain(docs) {
        count += reader.follow(&page, lines(&page), &mut wrong).await;
    }
    let mut of_runbooks = 0;
    for page in pages("docs/runbooks") {
        of_runbooks += reader.follow(&page, said(&page), &mut wrong).await;
    }
    assert!(wrong.is_empty(), "{wrong}");
    assert!(count > 65 && of_runbooks > 10, "{count} and {of_runbooks}");
}

/// The first steps, on an installation without keys.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_newcomer_gets_through_the_first_steps() {
    let newcomer = Reader::new(false);
    let (mut count, mut wrong) = (0, String::new());
    for page in first_steps() {
        count += newcomer.follow(&page, lines(&page), &mut wrong).await;
    }
    assert!(wrong.is_empty(), "{wrong}");
    assert!(count > 30, "{count}");
}

#[test]
fn commands_within_others_are_found() {
    for (line, expected) in [
        (
            "as migrate && as check",
            Some("backstitch migrate && backstitch check"),
        ),
        ("docker compose --profile full up", None),
        (
            "kubectl exec deploy/a -- backstitch --config /etc/backstitch/backstitch.toml keys list",
            Some("backstitch keys list"),
        ),
    ] {
        assert_eq!(within(line).as_deref(), expected);
    }
}

/// Files of this repository in code blocks exist, and so do profiles of compose.
#[test]
fn files_that_commands_name_are_there() {
    let compose = fs::read_to_string(root().join("compose.yaml")).expect("compose.yaml");
    let profiles = compose
        .lines()
        .filter_map(|line| line.trim().strip_prefix("profiles: ["));
    let profiles: Vec<&str> = profiles
        .flat_map(|list| list.trim_end_matches(']').split(", "))
        .collect();
    let mut all = pages("docs");
    all.push(root().join("README.md"));
    let (mut count, mut missing) = (0, Vec::<String>::new());
    for page in all {
        let text = fs::read_to_string(&page).expect("a page");
        let blocks = text.split("```").skip(1).step_by(2);
        let words: Vec<&str> = blocks.flat_map(str::split_whitespace).collect();
        for (at, word) in words.iter().enumerate() {
            let is_file = word.starts_with("deploy/") && !word.contains("backstitch-speed");
            let is_profile = at > 0 && words.get(at - 1) == Some(&"--profile");
            count += usize::from(is_file || is_profile);
            let folder = word
                .trim_end_matches('*')
                .rsplit_once('/')
                .map_or("", |(of, _)| of);
            let is_there = match word.ends_with('*') {
                true => root().join(folder).exists(),
                false => root().join(word).exists(),
            };
            if (is_file && !is_there) || (is_profile && !profiles.contains(word)) {
                missing.push((*word).to_owned());
            }
        }
        assert!(missing.is_empty(), "{}: {missing:?}", page.display());
    }
    assert!(count > 5, "{count}");
}
