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

fn collect_files(folder: &Path, extension: &str, files: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).unwrap().flatten() {
        let path = entry.path();
        if path.is_dir() {
            collect_files(&path, extension, files);
        } else if path
            .extension()
            .is_some_and(|file_extension| file_extension == extension)
        {
            files.push(path);
        }
    }
}

/// Splits a command into words as a shell does, up to a comment, pipe or redirection.
fn split_words(command: &str) -> Vec<String> {
    let (mut words, mut word, mut quote) = (Vec::new(), None::<String>, None);
    for char in command.chars() {
        match (quote, char) {
            (Some(opening), _) if opening == char => quote = None,
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

/// Finds the commands of a text and whether each is complete: at the start of a line it is, in a sentence it may be partial.
fn find_commands(text: &str) -> Vec<(String, bool)> {
    let mut commands = Vec::new();
    for line in text.lines() {
        let line = line.trim_start();
        let line = line.strip_prefix("$ ").unwrap_or(line);
        let command = line
            .strip_prefix("ExecStart=/usr/local/bin/")
            .unwrap_or(line);
        if command.starts_with("backstitch ") {
            commands.push((command.to_owned(), true));
            continue;
        }
        let quoted = line.split('`').skip(1).step_by(2);
        let quoted = quoted.filter(|part| part.starts_with("backstitch "));
        commands.extend(quoted.map(|part| (part.to_owned(), false)));
    }
    commands
}

/// Finds the commands with which compose starts containers of our image.
fn find_compose_commands(text: &str) -> Vec<String> {
    let (mut commands, mut is_ours) = (Vec::new(), false);
    for line in text.lines() {
        let service_line = line.strip_prefix("    ").unwrap_or_default();
        if service_line.is_empty() {
            is_ours = false;
        } else if service_line.starts_with("<<: *") || service_line.starts_with("image: backstitch")
        {
            is_ours = true;
        } else if let Some(list) = service_line.strip_prefix("command: [")
            && is_ours
        {
            let list = list.trim_end_matches(']').replace(", ", " ");
            commands.push(format!("backstitch {list}"));
        }
    }
    commands
}

/// Finds the commands with which a template of the chart starts containers of our image. Values of the chart become numbers.
fn find_chart_commands(template: &str) -> Vec<String> {
    let lists = template.split("\"args\" (list ").skip(1);
    let parse_list = |list: &str| {
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
    lists.map(parse_list).collect()
}

fn check_command(command: &str, is_complete: bool) -> Result<(), clap::Error> {
    let mut words = split_words(command);
    let is_dead_letters = words.iter().any(|word| word == "dead-letters");
    for word in &mut words {
        let placeholder = PLACEHOLDERS.iter().find(|(name, _)| name == word);
        if let Some((name, value)) = placeholder {
            *word = match (*name, is_dead_letters) {
                ("ID", true) => "backstitch.plays.v1.dlq/0@17".to_owned(),
                _ => (*value).to_owned(),
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
                if !is_complete =>
            {
                Ok(())
            }
            _ => Err(error),
        },
    }
}

#[test]
fn documented_commands_are_valid() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let mut files = vec![root.join("README.md")];
    collect_files(&root.join("docs"), "md", &mut files);
    collect_files(&root.join("deploy/systemd"), "service", &mut files);
    collect_files(&root.join("deploy/helm"), "txt", &mut files);
    let mut count = 0;
    for file in files {
        let text = std::fs::read_to_string(&file).unwrap();
        for (command, is_complete) in find_commands(&text) {
            count += 1;
            if let Err(error) = check_command(&command, is_complete) {
                panic!("{}: {command}\n{error}", file.display());
            }
        }
    }
    assert!(count > 80, "{count}");
}

#[test]
fn containers_are_started_with_valid_commands() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let mut templates = Vec::new();
    collect_files(&root.join("deploy/helm"), "yaml", &mut templates);
    let read = |path: &PathBuf| std::fs::read_to_string(path).unwrap();
    let compose_files = ["compose.yaml", "compose.demo.yaml"];
    let compose: Vec<String> = compose_files
        .iter()
        .flat_map(|file| find_compose_commands(&read(&root.join(file))))
        .collect();
    let chart: Vec<String> = templates
        .iter()
        .flat_map(|path| find_chart_commands(&read(path)))
        .collect();
    assert_eq!(
        (compose.len(), chart.len()),
        (8, 8),
        "{compose:#?} {chart:#?}"
    );
    for command in compose.iter().chain(&chart) {
        if let Err(error) = check_command(command, true) {
            panic!("{command}\n{error}");
        }
    }
}

#[test]
fn invalid_commands_are_detected() {
    assert!(check_command("backstitch batch run --fulll", true).is_err());
    assert!(check_command("backstitch batches", false).is_err());
    assert!(check_command("backstitch ingest", true).is_err());
    assert!(check_command("backstitch ingest", false).is_ok());
    assert_eq!(split_words("a 'b c' --d=\"e\" # f"), ["a", "b c", "--d=e"]);
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
