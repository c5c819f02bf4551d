//! The help page of `backstitch`, with its commands in groups.

use clap::CommandFactory;

use super::Cli;

/// Shown below the options of `backstitch` and of `config`.
pub(super) const SETTINGS: &str = "Settings come from --config FILE, then the environment, then flags; the last one wins. \
The environment variable of a setting is BACKSTITCH__ and its key in capitals, with __ for each dot: \
BACKSTITCH__KAFKA__BOOTSTRAP_SERVERS sets kafka.bootstrap_servers.";

const GROUPS: [(&str, &[&str]); 5] = [
    ("Start", &["demo", "up", "generate", "ingest", "backfill"]),
    (
        "Run the layers separately",
        &[
            "speed",
            "batch",
            "serve",
            "archive",
            "snapshot",
            "scheduler",
            "executor",
        ],
    ),
    (
        "Check and repair",
        &["check", "explain", "reconcile", "dead-letters", "retention"],
    ),
    (
        "People and access",
        &["applications", "keys", "names", "erase"],
    ),
    (
        "Set up",
        &["config", "migrate", "man", "completions", "help"],
    ),
];

/// Builds the command line, with a help page that shows commands in groups.
pub(crate) fn build_command() -> clap::Command {
    let mut command = Cli::command();
    command.build();
    let mut groups = String::new();
    for (title, names) in GROUPS {
        groups.push_str(&format!("{title}:\n"));
        for name in names {
            let subcommand = command.find_subcommand(name);
            let about = subcommand.and_then(clap::Command::get_about);
            let about = about.map(ToString::to_string).unwrap_or_default();
            groups.push_str(&format!("  {name:<14}{about}\n"));
        }
        groups.push('\n');
    }
    let template = format!(
        "{{about-with-newline}}\n{{usage-heading}} {{usage}}\n\n{groups}Options:\n{{options}}{{after-help}}"
    );
    Cli::command().help_template(template)
}

/// Renders the page that `backstitch` without arguments prints: usage and commands.
pub(crate) fn render_overview() -> String {
    let page = build_command().render_help().to_string();
    let commands = page.split("\nOptions:\n").next().unwrap_or(&page);
    format!(
        "{}\n\nSee `backstitch --help` for options, and `backstitch COMMAND --help` for one command.\n",
        commands.trim_end()
    )
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_command_is_in_exactly_one_group() {
        let mut command = Cli::command();
        command.build();
        let commands: BTreeSet<&str> = command
            .get_subcommands()
            .map(clap::Command::get_name)
            .collect();
        let listed: Vec<&str> = GROUPS
            .iter()
            .flat_map(|(_, names)| *names)
            .copied()
            .collect();
        assert_eq!(listed.len(), commands.len());
        assert_eq!(listed.into_iter().collect::<BTreeSet<_>>(), commands);
    }

    #[test]
    fn the_overview_is_short() {
        let page = render_overview();
        assert!(page.lines().count() < 50, "{page}");
        assert!(
            page.contains("\nCheck and repair:\n") && !page.contains("--json"),
            "{page}"
        );
        assert!(
            build_command()
                .render_long_help()
                .to_string()
                .contains("BACKSTITCH__KAFKA")
        );
    }
}
