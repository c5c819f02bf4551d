//! Tests that every command in docs, runbooks, units, compose files and the chart exists.

use std::path::{Path, PathBuf};

use clap::Parser;
use clap::error::ErrorKind;

use super::Cli;

/// Placeholders of the docs, and a value for each.
const PLACEHOLDERS: [(&str, &str); 9] = [
    ("RUN", "1"),
    ("N", "1"),
    ("ID", "1"),
    ("FILE", "file.csv"),
    ("DATE", "2026-01-01"),
    ("SOURCE", "plays"),
    ("VIEW", "plays_detail"),
    ("NAME=VALUE…", "owner_id=1"),
    ("…", "because"),
];

fn files(folder: &Path, extension: &str, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).unwrap().flatten() {
        let path = entry.path();
        if path.is_dir() {
            files(&path, extension, found);
        } else if path.extension().is_some_and(|of| of == extension) {
            found.push(path);
        }
    }
}

/// The words of a command as a shell has them, up to what ends it there.
fn words(command: &str) -> Vec<String> {
    let (mut words, mut word, mut quote) = (Vec::new(), None::<String>, None);
    for char in command.chars() {
        match (quote, char) {
            (Some(of), _) if of == char => quote = None,
            (None, '\'' | '"') => {
                quote = Some(char);
                word.get_or_insert_default();
            }
            (None, '#' | '&' | '|' | '>' | ';') if word.is_none() => break,
            (None, ' ') => words.extend(word.take()),
            _ => word.get_or_insert_default().push(char),
        }
    }
    words.extend(word);
    words
}

/// Commands of a text: those that begin lines, which are whole, and those within sentences, which may be the beginning of one.
fn commands(text: &str) -> Vec<(String, bool)> {
    let mut found = Vec::new();
    for line in text.lines() {
        let line = line.trim_start();
        let line = line.strip_prefix("$ ").unwrap_or(line);
        let started = line
            .strip_prefix("ExecStart=/usr/local/bin/")
            .unwrap_or(line);
        if started.starts_with("backstitch ") {
            found.push((started.to_owned(), true));
            continue;
        }
        let quoted = line.split('`').skip(1).step_by(2);
        let quoted = quoted.filter(|part| part.starts_with("backstitch "));
        found.extend(quoted.map(|part| (part.to_owned(), false)));
    }
    found
}

/// The commands that containers of our image are started with, by compose.
fn compose_commands(text: &str) -> Vec<String> {
    let (mut found, mut is_ours) = (Vec::new(), false);
    for line in text.lines() {
        let of_service = line.strip_prefix("    ").unwrap_or_default();
        if of_service.is_empty() {
            is_ours = false;
        } else if of_service.starts_with("<<: *") || of_service.starts_with("image: backstitch") {
            is_ours = true;
        } else if let Some(list) = of_service.strip_prefix("command: [")
            && is_ours
        {
            let list = list.trim_end_matches(']').replace(", ", " ");
            found.push(format!("backstitch {list}"));
        }
    }
    found
}

/// The commands that containers of our image are started with, by a template of the chart; what its values give is a number there.
fn chart_commands(template: &str) -> Vec<String> {
    let lists = template.split("\"args\" (list ").skip(1);
    let of_list = |list: &str| {
        let (mut depth, mut command) = (1_u32, "backstitch ".to_owned());
        for char in list.chars() {
            match char {
                '(' => depth += 1,
                ')' => depth -= 1,
                _ => {}
            }
            match (depth, char) {
                (0, _) => break,
                (1, ')') => command.push('9'),
                (1, char) if char != '"' => command.push(char),
                _ => {}
            }
        }
        command.replace("$engine", "local")
    };
    lists.map(of_list).collect()
}

fn is_known(command: &str, is_whole: bool) -> Result<(), clap::Error> {
    let mut words = words(command);
    let is_of_letters = words.iter().any(|word| word == "dead-letters");
    for word in &mut words {
        let known = PLACEHOLDERS.iter().find(|(name, _)| name == word);
        if let Some((name, one)) = known {
            *word = match (*name, is_of_letters) {
                ("ID", true) => "backstitch.plays.v1.dlq/0@17".to_owned(),
                _ => (*one).to_owned(),
            };
        }
    }
    match Cli::try_parse_from(&words) {
        Ok(_) => Ok(()),
        Err(error) => match error.kind() {
            ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => Ok(()),
            ErrorKind::MissingRequiredArgument
            | ErrorKind::MissingSubcommand
            | ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand
                if !is_whole =>
            {
                Ok(())
            }
            _ => Err(error),
        },
    }
}

#[test]
fn every_command_that_is_documented_is_one() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let mut found = vec![root.join("README.md")];
    files(&root.join("docs"), "md", &mut found);
    files(&root.join("deploy/systemd"), "service", &mut found);
    files(&root.join("deploy/helm"), "txt", &mut found);
    let mut count = 0;
    for file in found {
        let text = std::fs::read_to_string(&file).unwrap();
        for (command, is_whole) in commands(&text) {
            count += 1;
            if let Err(error) = is_known(&command, is_whole) {
                panic!("{}: {command}\n{error}", file.display());
            }
        }
    }
    assert!(count > 80, "{count}");
}

#[test]
fn every_container_is_started_with_a_command_that_is_one() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let mut templates = Vec::new();
    files(&root.join("deploy/helm"), "yaml", &mut templates);
    let read = |path: &PathBuf| std::fs::read_to_string(path).unwrap();
    let files = ["compose.yaml", "compose.demo.yaml"];
    let compose: Vec<String> = files
        .iter()
        .flat_map(|file| compose_commands(&read(&root.join(file))))
        .collect();
    let chart: Vec<String> = templates
        .iter()
        .flat_map(|path| chart_commands(&read(path)))
        .collect();
    assert_eq!(
        (compose.len(), chart.len()),
        (8, 8),
        "{compose:#?} {chart:#?}"
    );
    for command in compose.iter().chain(&chart) {
        if let Err(error) = is_known(command, true) {
            panic!("{command}\n{error}");
        }
    }
}

#[test]
fn what_is_no_command_is_found() {
    assert!(is_known("backstitch batch run --fulll", true).is_err());
    assert!(is_known("backstitch batches", false).is_err());
    assert!(is_known("backstitch ingest", true).is_err());
    assert!(is_known("backstitch ingest", false).is_ok());
    assert_eq!(words("a 'b c' --d=\"e\" # f"), ["a", "b c", "--d=e"]);
}

/// Variables of compose that hold a password have no default: compose ends with a message that names the variable.
#[test]
fn compose_has_no_default_passwords() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let mut required = 0;
    for file in ["compose.yaml", "compose.demo.yaml"] {
        let text = std::fs::read_to_string(root.join(file)).unwrap();
        for line in text.lines() {
            let (name, value) = line.trim().split_once(": ").unwrap_or_default();
            let is_secret = ["PASSWORD", "SECRET_ACCESS_KEY"]
                .iter()
                .any(|ending| name.ends_with(ending));
            if !is_secret {
                assert!(!name.contains("PASSWORD"), "{file}: {line}");
                continue;
            }
            let variable = value.trim_matches('"').strip_prefix("${BACKSTITCH_");
            let message = variable.and_then(|variable| variable.split_once(":?"));
            assert!(
                message.is_some_and(|(_, message)| message.starts_with("set it to")),
                "{file}: {line}"
            );
            required += 1;
        }
    }
    assert_eq!(
        required, 4,
        "both passwords, of the server and of its clients"
    );
}
