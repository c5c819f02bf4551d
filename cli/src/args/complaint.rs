//! What is wrong with a command line, in one line.

use crate::failure::one_line;

/// What is wrong, and where help is.
pub(crate) fn complaint(error: &clap::Error) -> String {
    use clap::error::ErrorKind;
    let help = "see `backstitch --help`";
    if error.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand {
        return format!("a command is missing; {help}");
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
    let usage = usage.map_or(String::new(), |usage| format!("; usage: {usage}"));
    format!("{}{usage}; {help}", said.join("; "))
}
