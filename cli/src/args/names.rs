//! The commands of `names`.

use std::path::PathBuf;

use clap::builder::PossibleValuesParser;
use clap::{Subcommand, builder::TypedValueParser};
use stores::names::Named;

/// The commands of `names`.
#[derive(Debug, Subcommand)]
pub(crate) enum NamesCommand {
    /// Give names: JSON lines such as {"id": 7, "name": "Long Climb"}; a name that is null is taken away
    Load {
        /// Whose names: owner, track or segment. Those of athletes and applications come with their rows
        #[arg(value_name = "KIND", value_parser = given())]
        of: Named,
        /// The file; - is standard input
        #[arg(value_name = "FILE")]
        file: PathBuf,
    },
    /// Show what some things are called
    Show {
        /// What they are
        #[arg(value_name = "KIND", value_parser = any())]
        of: Named,
        /// Their numbers
        #[arg(value_name = "ID", required = true, allow_negative_numbers = true)]
        ids: Vec<i64>,
    },
}

fn any() -> impl TypedValueParser<Value = Named> {
    kinds(Named::ALL.into_iter())
}

fn given() -> impl TypedValueParser<Value = Named> {
    kinds(Named::ALL.into_iter().filter(|of| of.is_given()))
}

fn kinds(of: impl Iterator<Item = Named>) -> impl TypedValueParser<Value = Named> {
    let names = PossibleValuesParser::new(of.map(Named::name));
    names.try_map(|name| Named::of_name(&name).ok_or("there is nothing of this name"))
}
