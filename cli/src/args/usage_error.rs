//! Messages for invalid command lines.

use clap::error::ErrorKind;

use crate::failure::join_lines;

/// Describes an invalid command line in one line, and names the command whose `--help` explains it.
pub(crate) fn format_usage_error(error: &clap::Error) -> String {
    let help = |command: &str| format!("see `{command} --help`");
    let text = error.render().to_string();
    if error.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand {
        // The rendered text is the help of the command whose subcommand is missing.
        let usage = text
            .lines()
            .find_map(|line| line.trim().strip_prefix("Usage: "));
        let command = usage.map_or("backstitch".to_owned(), extract_command);
        return format!("a command is missing; {}", help(&command));
    }
    let mut usage = None;
    let mut causes = Vec::new();
    for paragraph in text.split("\n\n") {
        let line = join_lines(paragraph);
        if let Some(line) = line.strip_prefix("Usage: ") {
            usage = Some(line.to_owned());
        } else if !line.is_empty() && !line.starts_with("For more information") {
            causes.push(line.strip_prefix("error: ").unwrap_or(&line).to_owned());
        }
    }
    let command = usage.as_deref();
    let help = help(&command.map_or("backstitch".to_owned(), extract_command));
    let usage = usage.map_or(String::new(), |usage| format!("; usage: {usage}"));
    format!("{}{usage}; {help}", causes.join("; "))
}

/// Extracts the command of a usage line: the words before its options and values.
fn extract_command(usage: &str) -> String {
    let is_name = |word: &&str| !word.starts_with(['-', '<', '[', '{', '(']);
    let words = usage.split_whitespace().take_while(is_name);
    // A usage line names a present value in capitals.
    let words = words.take_while(|word| !word.contains(char::is_uppercase));
    words.collect::<Vec<_>>().join(" ")
}
