//! The commands of `names`.

use std::path::PathBuf;

use clap::builder::PossibleValuesParser;
use clap::{Subcommand, builder::TypedValueParser};
use stores::names::NamedKind;

/// The commands of `names`.
#[derive(Debug, Subcommand)]
pub(crate) enum NamesCommand {
    /// Set names from JSON lines such as {"id": 7, "name": "Long Climb"}; a null name removes one
    Load {
        /// owner, track or segment; the names of athletes and applications are in their rows
        #[arg(value_name = "KIND", value_parser = settable_kinds_parser())]
        kind: NamedKind,
        /// Input file; `-` is standard input
        #[arg(value_name = "FILE")]
        file: PathBuf,
    },
    /// Show names by id
    Show {
        /// Kind of the ids
        #[arg(value_name = "KIND", value_parser = all_kinds_parser())]
        kind: NamedKind,
        /// Ids
        #[arg(value_name = "ID", required = true, allow_negative_numbers = true)]
        ids: Vec<i64>,
    },
}

fn all_kinds_parser() -> impl TypedValueParser<Value = NamedKind> {
    kind_parser(NamedKind::ALL.into_iter())
}

fn settable_kinds_parser() -> impl TypedValueParser<Value = NamedKind> {
    kind_parser(
        NamedKind::ALL
            .into_iter()
            .filter(|kind| kind.has_separate_names()),
    )
}

fn kind_parser(kinds: impl Iterator<Item = NamedKind>) -> impl TypedValueParser<Value = NamedKind> {
    let names = PossibleValuesParser::new(kinds.map(NamedKind::name));
    names.try_map(|name| NamedKind::from_name(&name).ok_or("unknown kind of name"))
}
