//! `config show`, `config check`, `config schema`.

use serde::Serialize;

use super::Context;
use crate::args::ConfigCommand;
use crate::settings::schema;

/// Result of `config check`.
#[derive(Debug, Serialize)]
struct Checked {
    ok: bool,
    file: Option<String>,
    settings_from_elsewhere: usize,
}

/// Runs the command. Reading the settings has validated them.
pub(super) fn run(command: ConfigCommand, context: &Context) -> anyhow::Result<()> {
    let loaded = context.loaded();
    match command {
        ConfigCommand::Show => context
            .output()
            .result(&loaded.shown()?, |shown| shown.toml()),
        ConfigCommand::Check => {
            let checked = Checked {
                ok: true,
                file: loaded.file.as_ref().map(|file| file.display().to_string()),
                settings_from_elsewhere: loaded.count_set(),
            };
            context.output().result(&checked, |checked| {
                let file = checked.file.as_deref().unwrap_or("no file");
                format!(
                    "the configuration is valid: {file}, {} settings differ from the defaults",
                    checked.settings_from_elsewhere
                )
            })
        }
        ConfigCommand::Schema => context.output().result(&schema(), |schema| {
            serde_json::to_string_pretty(schema).unwrap_or_default()
        }),
    }
}
