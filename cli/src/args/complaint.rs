//! What is wrong with a command line, in one line.

use crate::failure::one_line;

/// What is wrong, and where help is.
pub(crate) fn complaint(error: &clap::Error) -> String {
    use clap::error::ErrorKind;
    let help = |command: &str| format!("see `{command} --help`");
    if error.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand {
        // What is rendered is the help of the command of which one is missing.
        let text = error.render().to_string();
        let usage = text
            .lines()
            .find_map(|line| line.trim().strip_prefix("Usage: "));
        let of = usage.map_or("backstitch".to_owned(), command);
        return format!("a command is missing; {}", help(&of));
    }
    let text = error.render().to_string();
    let mut usage = None;
    let mut said = Vec::new();
    for paragraph in text.split("\n\n") {
        let line = one_line(paragraph);
        if let Some(line) = line.strip_prefix("Usage: ") {
            usage = Some(line.to_owned());
        } else if !line.is_empty() && !line.starts_with("For more information") {
            said.push(line.strip_prefix("error: ").unwrap_or(&line).to_owned());
        }
    }
    let help = help(&usage.as_deref().map_or("backstitch".to_owned(), command));
    let usage = usage.map_or(String::new(), |usage| format!("; usage: {usage}"));
    format!("{}{usage}; {help}", said.join("; "))
}

/// The command that a usage is of: what stands before its options and values.
fn command(usage: &str) -> String {
    let is_name = |word: &&str| !word.starts_with(['-', '<', '[', '{', '(']);
    let words = usage.split_whitespace().take_while(is_name);
    // A value that is given stands in a usage, too, by its name, which is in capitals.
    let words = words.take_while(|word| !word.contains(char::is_uppercase));
    words.collect::<Vec<_>>().join(" ")
}
