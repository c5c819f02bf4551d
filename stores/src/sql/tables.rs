//! The tables of entities, and the columns of their ids.

use schemas::entities::Entity;

/// A table, and the columns of its id.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Table {
    pub(crate) name: &'static str,
    pub(super) first: &'static str,
    /// `None` if the id is one column.
    pub(super) second: Option<&'static str>,
}

const fn pair_table(name: &'static str, first: &'static str, second: &'static str) -> Table {
    Table {
        name,
        first,
        second: Some(second),
    }
}

const fn id_table(name: &'static str) -> Table {
    Table {
        name,
        first: "id",
        second: None,
    }
}

/// The table of a row.
pub(crate) const fn find_table(row: &Entity) -> Table {
    match row {
        Entity::Effort(_) => id_table("efforts"),
        Entity::Athlete(_) => id_table("athletes"),
        Entity::Membership(_) => pair_table("clubs", "club_id", "athlete_id"),
        Entity::Follow(_) => pair_table("follows", "follower_id", "followed_id"),
        Entity::Authorization(_) => id_table("authorizations"),
        Entity::Application(_) => id_table("applications"),
    }
}
