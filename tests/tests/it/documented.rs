//! Runs the commands of the docs page by page and in order, as a reader's shell does, and the
//! commands in the text of runbooks. A test of the command line parses the other commands.

use std::cell::RefCell;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;
use tests::installation::Installation;
use tests::process::{CONFIG, Process, Server, binary, run, run_ok};

use crate::tidy::root;

/// Fewer rows than in the docs.
const ROWS: &str = "--rows 300 ";
/// Commands that run until they are stopped.
const SERVICES: [&str; 2] = ["serve ", "scheduler"];
/// Tested elsewhere: commands for servers, and for several machines.
const TESTED_ELSEWHERE: [&str; 3] = [" --config ", "backstitch executor", "batch run --engine"];
/// Commands that exit with 3 if they find or compare differences, as the docs say.
const EXIT_3_COMMANDS: [&str; 2] = ["reconcile", "erase"];
/// Programs whose commands are run.
const COMMANDS: [&str; 2] = ["backstitch ", "curl "];
/// Wrappers of a command: run as the service's user, in a container, and in a pod. Only the inner
/// command is run.
const WRAPPERS: [&str; 3] = ["as ", "docker compose ", "kubectl exec "];
/// Text to remove from a wrapped command.
const WRAPPED_OPTIONS: &str = " --config /etc/backstitch/backstitch.toml ";
/// Placeholders in runbooks, and their values in an installation that followed the docs.
const PLACEHOLDERS: [(&str, &str); 4] = [
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
    installation: Installation,
    server: Server,
    /// The id of the key that the docs call ID, if there is a key.
    key_id: Option<String>,
    /// The key to send if a line names none.
    default_secret: Option<String>,
    /// The key that a line created last.
    created_secret: RefCell<Option<String>>,
}

/// Creates a key; returns its id and secret.
fn create_key(data: &Path, scope: &str) -> (String, String) {
    let args = [
        "keys", "create", "--name", "of docs", "--scope", scope, "--json",
    ];
    let created: Value = serde_json::from_str(&run_ok(data, &args)).expect("JSON");
    let text = |name: &str| created[name].as_str().expect("a text").to_owned();
    (text("id"), text("key"))
}

impl Reader {
    /// A reader who starts with nothing, as in the README, or with an installation that has keys.
    fn new(has_keys: bool) -> Self {
        let installation = Installation::embedded();
        let data = installation.data();
        fs::create_dir_all(data).expect("the data folder");
        fs::write(data.join(CONFIG), "[log]\npartitions = 1\n").expect("settings");
        let (key_id, default_secret) = match has_keys {
            true => (
                Some(create_key(data, "read:*").0),
                Some(create_key(data, "admin").1),
            ),
            false => (None, None),
        };
        let server = Server::start(data, &[]);
        let reader = Self {
            installation,
            server,
            key_id,
            default_secret,
            created_secret: RefCell::default(),
        };
        let data = reader.installation.data();
        for year in ["2019", "2020"] {
            let file = reader.file(&format!("{year}.parquet"));
            run_ok(
                data,
                &[
                    "generate", "plays", "--rows", "50", "--seed", year, "-o", &file,
                ],
            );
        }
        let play = r#"{"event_id":"of docs","track_id":2,"owner_id":1,"listener_id":4711,"kind":"play","at":"2026-03-01T10:00:00Z"}"#;
        let bad = "not JSON\n".repeat(20);
        reader
            .installation
            .ingest("plays", &format!("{play}\n{bad}"));
        let effort = r#"{"id":900000001,"segment_id":1,"athlete_id":42,"activity_id":1,"elapsed_time":300,"started_at":"2026-03-01T07:30:00Z","tz":"UTC","visibility":"everyone"}"#;
        reader.installation.ingest("efforts", effort);
        let name = r#"{"id":7,"name":"Long Climb"}"#;
        fs::write(reader.file("segments.jsonl"), name).expect("a file");
        // A bill that contains the play.
        let bill = "owner_id,track_id,bucket,kind,expected\n1,2,2026-03-01T00:00:00Z,play,3\n";
        fs::write(reader.file("billing.csv"), bill).expect("a file");
        reader
    }

    fn file(&self, name: &str) -> String {
        self.installation
            .folder()
            .join(name)
            .to_string_lossy()
            .into_owned()
    }

    /// Runs a line in a shell; `backstitch` is the tested build with this installation.
    fn shell(&self, line: &str) -> Output {
        let bin = self.installation.folder().join("bin");
        fs::create_dir_all(&bin).expect("a folder");
        let config = self.installation.data().join(CONFIG);
        let script = format!(
            "#!/bin/sh\nexec '{}' --data-dir '{}' --config '{}' \"$@\"\n",
            binary().display(),
            self.installation.data().display(),
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
        shell
            .arg("-c")
            .arg(line)
            .current_dir(self.installation.folder());
        shell.env("PATH", format!("{}:{path}", bin.display()));
        shell.output().expect("a shell")
    }

    /// Runs the lines of a page and appends failures to `failures`; returns the number of lines.
    async fn run_page(
        &self,
        page: &Path,
        command_lines: Vec<String>,
        failures: &mut String,
    ) -> usize {
        let mut count = 0;
        for line in command_lines {
            if TESTED_ELSEWHERE.iter().any(|part| line.contains(part)) {
                continue;
            }
            count += 1;
            if let Err(reason) = self.run_line(&line).await {
                let page = page.file_name().unwrap_or_default().display();
                writeln!(failures, "{page}: {line}: {reason}").expect("a text");
            }
        }
        count
    }

    /// Runs a line; the error is the reason of a failure.
    async fn run_line(&self, line: &str) -> Result<(), String> {
        if line.starts_with("curl ") {
            return self.curl(line);
        }
        let is_service = |name: &str| line.starts_with(&format!("backstitch {name}"));
        if SERVICES.iter().any(|name| is_service(name)) {
            return self.service(line).await;
        }
        let output = self.shell(&fill_in(line, self.key_id.as_deref().unwrap_or("ID")));
        let stdout = String::from_utf8_lossy(&output.stdout);
        if let Some(key) = stdout
            .split_whitespace()
            .find(|word| word.starts_with("bsk_"))
        {
            self.created_secret.replace(Some(key.to_owned()));
        }
        let code = output.status.code();
        let may_exit_3 = EXIT_3_COMMANDS.iter().any(|command| line.contains(command));
        if code == Some(0) || (may_exit_3 && code == Some(3)) {
            return Ok(());
        }
        Err(format!(
            "{code:?} {}",
            String::from_utf8_lossy(&output.stderr)
        ))
    }

    /// Sends a request to the API as curl does.
    fn curl(&self, line: &str) -> Result<(), String> {
        let mut words = shell_words(line).into_iter().skip(1);
        let (mut method, mut url, mut body) = ("GET".to_owned(), None, None);
        let mut headers = Vec::new();
        while let Some(word) = words.next() {
            let mut value = || words.next().expect("the value of an option");
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
                    let key = self
                        .created_secret
                        .borrow()
                        .clone()
                        .or_else(|| self.default_secret.clone());
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
        if let Some(key) = &self.default_secret
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
        let answer_text = answer.body_mut().read_to_string().unwrap_or_default();
        let is_good = answer.status().is_success();
        let failure = || format!("{} {answer_text}", answer.status());
        is_good.then_some(()).ok_or_else(failure)
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
            let refused = run(self.installation.data(), &words);
            let stderr = String::from_utf8_lossy(&refused.stderr);
            assert!(stderr.contains("`scale`"), "{stderr}");
            return Ok(());
        }
        if words == ["scheduler"] {
            words.extend(["--listen", "127.0.0.1:0"]);
        }
        let process = Process::start(self.installation.data(), &words);
        process.wait_for_output("127.0.0.1:").await;
        let (succeeded, outputs) = process.end();
        succeeded
            .then_some(())
            .ok_or_else(|| format!("{outputs:?}"))
    }
}

/// The lines in a page's code blocks that begin with a command.
fn command_lines(page: &Path) -> Vec<String> {
    let text = fs::read_to_string(page).expect("a page");
    let (mut is_block, mut commands) = (false, Vec::new());
    // A line may continue on the next one.
    for line in text.replace("\\\n", " ").lines() {
        if line.starts_with("```") {
            is_block = !is_block;
        } else if is_block && COMMANDS.iter().any(|command| line.starts_with(command)) {
            commands.push(line.to_owned());
        } else if is_block && WRAPPERS.iter().any(|command| line.starts_with(command)) {
            commands.extend(wrapped_command(line));
        }
    }
    commands
}

/// Our command that a line wraps, if any.
fn wrapped_command(line: &str) -> Option<String> {
    if let Some(command) = line.strip_prefix("as ") {
        return Some(format!(
            "backstitch {}",
            command.replace("&& as ", "&& backstitch ")
        ));
    }
    let (_, command) = line.split_once(WRAPPED_OPTIONS)?;
    Some(format!("backstitch {command}"))
}

/// The commands in the text of a runbook.
fn runbook_commands(page: &Path) -> Vec<String> {
    let text = fs::read_to_string(page).expect("a page");
    let quoted = text.split('`').skip(1).step_by(2);
    let commands = quoted.filter(|part| COMMANDS.iter().any(|command| part.starts_with(command)));
    let filled = commands.map(|command| {
        let placeholders = PLACEHOLDERS.iter();
        placeholders.fold(command.to_owned(), |line, (name, value)| {
            line.replace(name, value)
        })
    });
    filled.collect()
}

/// The pages of [`FIRST_STEPS`].
fn first_steps() -> Vec<PathBuf> {
    FIRST_STEPS.iter().map(|page| root().join(page)).collect()
}

fn doc_pages(folder: &str) -> Vec<PathBuf> {
    let docs = fs::read_dir(root().join(folder)).expect("the docs");
    let mut pages: Vec<PathBuf> = docs.flatten().map(|entry| entry.path()).collect();
    pages.retain(|page| page.extension().is_some_and(|end| end == "md"));
    pages.sort();
    pages
}

/// Splits a line into words as a shell does.
fn shell_words(line: &str) -> Vec<String> {
    let (mut words, mut word, mut quote) = (Vec::new(), None::<String>, None);
    for char in line.chars() {
        match (quote, char) {
            (Some(open_quote), _) if open_quote == char => quote = None,
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
fn fill_in(line: &str, key: &str) -> String {
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
async fn commands_in_the_docs_work() {
    let mut docs = doc_pages("docs");
    // Another test runs the tutorial, in a folder with its views.
    docs.retain(|page| !page.ends_with("tutorial.md") && !page.ends_with("getting-started.md"));
    let reader = Reader::new(true);
    let (mut count, mut failures) = (0, String::new());
    for page in first_steps().into_iter().chain(docs) {
        count += reader
            .run_page(&page, command_lines(&page), &mut failures)
            .await;
    }
    let mut runbook_count = 0;
    for page in doc_pages("docs/runbooks") {
        runbook_count += reader
            .run_page(&page, runbook_commands(&page), &mut failures)
            .await;
    }
    assert!(failures.is_empty(), "{failures}");
    assert!(
        count > 65 && runbook_count > 10,
        "{count} and {runbook_count}"
    );
}

/// The first steps, on an installation without keys.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_first_steps_work_on_a_new_installation() {
    let reader = Reader::new(false);
    let (mut count, mut failures) = (0, String::new());
    for page in first_steps() {
        count += reader
            .run_page(&page, command_lines(&page), &mut failures)
            .await;
    }
    assert!(failures.is_empty(), "{failures}");
    assert!(count > 30, "{count}");
}

#[test]
fn wrapped_commands_are_found() {
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
        assert_eq!(wrapped_command(line).as_deref(), expected);
    }
}

/// Files of this repository in code blocks exist, and so do profiles of compose.
#[test]
fn files_in_commands_exist() {
    let compose = fs::read_to_string(root().join("compose.yaml")).expect("compose.yaml");
    let profiles = compose
        .lines()
        .filter_map(|line| line.trim().strip_prefix("profiles: ["));
    let profiles: Vec<&str> = profiles
        .flat_map(|list| list.trim_end_matches(']').split(", "))
        .collect();
    let mut pages = doc_pages("docs");
    pages.push(root().join("README.md"));
    let (mut count, mut missing) = (0, Vec::<String>::new());
    for page in pages {
        let text = fs::read_to_string(&page).expect("a page");
        let blocks = text.split("```").skip(1).step_by(2);
        let words: Vec<&str> = blocks.flat_map(str::split_whitespace).collect();
        for (index, word) in words.iter().enumerate() {
            let is_file = word.starts_with("deploy/") && !word.contains("backstitch-speed");
            let is_profile = index > 0 && words.get(index - 1) == Some(&"--profile");
            count += usize::from(is_file || is_profile);
            let folder = word
                .trim_end_matches('*')
                .rsplit_once('/')
                .map_or("", |(folder, _)| folder);
            let exists = match word.ends_with('*') {
                true => root().join(folder).exists(),
                false => root().join(word).exists(),
            };
            if (is_file && !exists) || (is_profile && !profiles.contains(word)) {
                missing.push((*word).to_owned());
            }
        }
        assert!(missing.is_empty(), "{}: {missing:?}", page.display());
    }
    assert!(count > 5, "{count}");
}
