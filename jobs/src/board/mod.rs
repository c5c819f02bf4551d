//! Boards: sets of members under a key. Each member has at most one entry on a board, with an
//! optional score and a payload.
//!
//! A key (a segment, an application) has one or more boards, which the columns `boards` of the
//! definition distinguish. The unit of reads and writes is the *group*: all entries of one member
//! under one key. The query's result over the rows of a group replaces the group's entries.

mod filtered_board;
mod key_boards;
mod live_count;
mod member_entries;
mod rows;
mod top_entries;

use std::sync::Arc;

use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use schemas::entities;
use schemas::key::{KeyColumn, KeyError, KeyKind, KeyShape, KeyValue};
use schemas::source::{Source, SourceKind};
use toml::Spanned;

pub use filtered_board::{ColumnFilter, FilteredBoard, FilteredBoardError};
pub use key_boards::{
    BoardSnapshot, ChangedMembers, Head, KeyBoards, LiveEntry, RankBreakdown, RankedEntry,
    ReadError, VersionTrees, member_key, rank_key,
};
pub use live_count::LiveCount;
pub use member_entries::{BoardEntry, MemberEntries, MemberEntriesError};
pub use rows::BoardRows;
pub use top_entries::{AchievementEvent, TopEntries};

use crate::Result;
use crate::counting::Counting;
use crate::job::{Job, Layers, definition_hash, lines_outside, parse_layers, parse_source};
use crate::plan::{QueryText, query_schema};
use crate::spec::{BoardSpec, COUNTING, File, HISTORY, counting_classes};

/// Fields that responses add to the columns of a view.
const RESERVED_COLUMNS: [&str; 4] = ["rank", "total", "previous_rank", "change"];

/// The part of a definition that is specific to boards.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Board {
    board: String,
    key: KeyShape,
    boards: KeyShape,
    member: KeyShape,
    score: KeyShape,
    shown: KeyShape,
    payload: KeyShape,
    weight: Option<String>,
    achievements: Vec<AchievementBoard>,
    records_daily_counts: bool,
    counting: Counting,
}

/// A board with achievements.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AchievementBoard {
    /// The name of the board in achievement messages.
    pub name: String,
    /// The encoded board.
    pub board: Vec<u8>,
}

impl Job<Board> {
    /// The encoded board of a view with one board per key.
    pub const ONLY_BOARD: &[u8] = &[];

    /// The name that serves this view: the `NAME` of `/boards/NAME/…`.
    #[must_use]
    pub fn board(&self) -> &str {
        &self.kind.board
    }

    /// The key column. It decides the log partition.
    #[must_use]
    pub const fn key(&self) -> &KeyShape {
        &self.kind.key
    }

    /// The columns that distinguish the boards of a key; empty if a key has one board.
    #[must_use]
    pub const fn board_columns(&self) -> &KeyShape {
        &self.kind.boards
    }

    /// Returns whether live counts ([`LiveCount`]) are stored. They are, if a key has one board.
    /// With several boards per key, each change would update many counts.
    #[must_use]
    pub const fn has_live_counts(&self) -> bool {
        self.kind.boards.0.is_empty()
    }

    /// The member column.
    #[must_use]
    pub const fn member(&self) -> &KeyShape {
        &self.kind.member
    }

    /// The columns that rank members, lowest first; empty for a board without ranks.
    #[must_use]
    pub const fn score(&self) -> &KeyShape {
        &self.kind.score
    }

    /// The other columns that responses show.
    #[must_use]
    pub const fn shown(&self) -> &KeyShape {
        &self.kind.shown
    }

    /// The stored columns: first the shown ones, then those for filters. All are nullable.
    #[must_use]
    pub const fn payload(&self) -> &KeyShape {
        &self.kind.payload
    }

    /// Replaces the filter columns of a payload by null.
    ///
    /// # Errors
    /// If the payload does not decode.
    pub fn shown_payload(&self, payload: &[u8]) -> Result<Vec<u8>, KeyError> {
        self.kind
            .payload
            .null_from(payload, self.kind.shown.0.len())
    }

    /// The column with the number of source rows behind an entry. `None` counts one for each entry.
    #[must_use]
    pub fn weight(&self) -> Option<&str> {
        self.kind.weight.as_deref()
    }

    /// The boards with achievements. Personal records are published for the first one only.
    #[must_use]
    pub fn achievements(&self) -> &[AchievementBoard] {
        &self.kind.achievements
    }

    /// Returns whether the number of members of each key is recorded for every day.
    #[must_use]
    pub const fn records_daily_counts(&self) -> bool {
        self.kind.records_daily_counts
    }

    /// The classes of keys that are also recounted in the entity store. The board counts all
    /// members in any case.
    #[must_use]
    pub const fn counting(&self) -> &Counting {
        &self.kind.counting
    }

    /// Returns whether the entity store can count the members of a key: the athletes connected to
    /// each application.
    pub(crate) fn can_be_recounted(&self) -> bool {
        check_recountable(self.source, self.layers, self.kind.boards.0.len()).is_ok()
    }

    /// Replaces the counting classes of the definition.
    pub(crate) fn set_counting(&mut self, counting: Counting) {
        self.kind.counting = counting;
    }

    /// Checks a definition together with its query, which determines the column types.
    pub(crate) fn check(
        name: &str,
        file: &File<'_>,
        query: &QueryText<'_>,
        others: &[Arc<Self>],
    ) -> Result<Self> {
        let spec: BoardSpec = file.spec()?;
        let source = parse_source(file, &spec.source, "board", SourceKind::Entities)?;
        let layers = parse_layers(file, &spec.layers)?;
        check_unique_name(file, &spec, layers, others)?;
        check_group_columns(file, &spec, source)?;
        let input = entities::schema(source).unwrap_or_else(|| Arc::new(Schema::empty()));
        let found = query_schema(source.name(), &input, query)?;
        let mut columns = QueryColumns {
            file,
            found: &found,
            used: Vec::new(),
        };
        let key = columns.integer_columns(std::slice::from_ref(&spec.key))?;
        let boards = columns.integer_columns(&spec.boards)?;
        let member = columns.integer_columns(std::slice::from_ref(&spec.member))?;
        let score = columns.integer_columns(&spec.score)?;
        let shown = columns.payload_columns(&spec.shown)?;
        if layers == Layers::Both {
            check_reserved_columns(file, spec.score.iter().chain(&spec.shown))?;
        }
        let filters = columns.payload_columns(&spec.filters)?;
        let weight = columns.integer_columns(spec.weight.as_slice())?;
        let achievements = achievement_boards(file, &spec, &boards, layers)?;
        let records_daily_counts = parse_history(file, &spec, layers)?;
        let counting = parse_counting(file, &spec, source, layers)?;
        let payload = KeyShape(shown.0.iter().chain(&filters.0).cloned().collect());
        let fields: Vec<Field> = [&key, &boards, &member, &score, &payload, &weight]
            .into_iter()
            .flat_map(|shape| &shape.0)
            .map(KeyColumn::field)
            .collect();
        // The engine infers column types, and rows are stored with them. So other types are another
        // view.
        let column_types = format!("{fields:?}");
        Ok(Self {
            view: format!(
                "{name}@{}",
                definition_hash(file.text, query.sql, Some(&column_types))
            ),
            name: name.to_owned(),
            source,
            over: None,
            layers,
            schema: Arc::new(Schema::new(fields)),
            sql: query.sql.to_owned(),
            kind: Board {
                board: spec.board.into_inner(),
                key,
                boards,
                member,
                score,
                shown,
                payload,
                weight: weight.0.into_iter().next().map(|column| column.name),
                achievements,
                records_daily_counts,
                counting,
            },
        })
    }
}

/// The member column of every entity source.
const MEMBER_COLUMN: &str = "athlete_id";

/// Maximum boards with achievements. Each change of a key reads all of them.
const ACHIEVEMENT_BOARDS_MAX: usize = 8;

/// Only views of both layers are served, each under a unique name.
fn check_unique_name(
    file: &File<'_>,
    spec: &BoardSpec,
    layers: Layers,
    others: &[Arc<Job<Board>>],
) -> Result<()> {
    let twin = others.iter().find(|other| {
        (other.layers, layers) == (Layers::Both, Layers::Both)
            && other.board() == spec.board.get_ref()
    });
    match twin {
        Some(twin) => {
            let what = format!("board: job {:?} already uses this name", twin.name());
            Err(file.error_at(&spec.board, what))
        }
        None => Ok(()),
    }
}

/// Key and member must be the columns that identify the groups of the source.
fn check_group_columns(file: &File<'_>, spec: &BoardSpec, source: Source) -> Result<()> {
    for (field, expected, what) in [
        (&spec.key, entities::key_column(source), "key"),
        (&spec.member, MEMBER_COLUMN, "member"),
    ] {
        if field.get_ref() != expected {
            let what =
                format!("{what}: must be {expected:?}, which identifies the groups of {source}");
            return Err(file.error_at(field, what));
        }
    }
    Ok(())
}

/// Rejects shown columns that have the name of a response field.
fn check_reserved_columns<'a>(
    file: &File<'_>,
    mut shown: impl Iterator<Item = &'a Spanned<String>>,
) -> Result<()> {
    let Some(field) = shown.find(|field| RESERVED_COLUMNS.contains(&field.get_ref().as_str()))
    else {
        return Ok(());
    };
    let what = format!(
        "column {:?}: responses have another field with this name; rename the column",
        field.get_ref()
    );
    Err(file.error_at(field, what))
}

/// Parses the boards with achievements, in the order of the file.
fn achievement_boards(
    file: &File<'_>,
    spec: &BoardSpec,
    boards: &KeyShape,
    layers: Layers,
) -> Result<Vec<AchievementBoard>> {
    let mut listed: Vec<_> = spec.achievements.iter().collect();
    listed.sort_by_key(|(_, values)| values.span().start);
    let mut found: Vec<AchievementBoard> = Vec::new();
    for (name, values) in listed {
        let wrong = |what: String| Err(file.error_at(values, format!("achievements: {what}")));
        if layers != Layers::Both {
            return wrong("a board with achievements needs layers = \"both\"".to_owned());
        }
        if spec.score.is_empty() {
            return wrong("a board with achievements needs a score".to_owned());
        }
        if found.len() >= ACHIEVEMENT_BOARDS_MAX {
            return wrong(format!(
                "at most {ACHIEVEMENT_BOARDS_MAX} boards can have achievements"
            ));
        }
        let count = values.get_ref().len();
        if count != boards.0.len() {
            return wrong(format!(
                "{name:?} has {count} values for the {} columns of `boards`",
                boards.0.len()
            ));
        }
        let key: Vec<KeyValue> = values
            .get_ref()
            .iter()
            .copied()
            .map(KeyValue::Int)
            .collect();
        let Ok(board) = boards.encode_values(&key) else {
            return wrong(format!("the values of {name:?} do not identify a board"));
        };
        if found.iter().any(|other| other.board == board) {
            return wrong(format!("the board of {name:?} already has another name"));
        }
        found.push(AchievementBoard {
            name: name.clone(),
            board,
        });
    }
    Ok(found)
}

/// Parses whether daily counts are recorded.
fn parse_history(file: &File<'_>, spec: &BoardSpec, layers: Layers) -> Result<bool> {
    let Some(history) = &spec.history else {
        return Ok(false);
    };
    let wrong = |what: &str| Err(file.error_at(history, format!("history: {what}")));
    if layers == Layers::Speed {
        return wrong("batch runs record it, and this board has none; use layers = \"both\"");
    }
    if !spec.boards.is_empty() {
        return wrong("a key with several boards has no single count");
    }
    if lines_outside(file.text, &[HISTORY]).count() == file.text.lines().count() {
        return wrong("write it as a separate section [history]; it is not part of the version");
    }
    let counts = &history.get_ref().counts;
    if counts.get_ref() != "day" {
        return Err(file.error_at(counts, "counts: expected \"day\""));
    }
    Ok(true)
}

/// Parses the counting classes.
fn parse_counting(
    file: &File<'_>,
    spec: &BoardSpec,
    source: Source,
    layers: Layers,
) -> Result<Counting> {
    let Some(first) = spec.counting.first() else {
        return Ok(Counting::default());
    };
    let wrong = |what: &str| Err(file.error_at(first, format!("counting: {what}")));
    if let Err(what) = check_recountable(source, layers, spec.boards.len()) {
        return wrong(what);
    }
    let is_counting_head = |line: &&str| {
        let (head, _) = line.split_once('#').unwrap_or((line, ""));
        head.trim() == COUNTING
    };
    if file.text.lines().filter(is_counting_head).count() != spec.counting.len() {
        return wrong("write separate sections [[counting]]; they are not part of the version");
    }
    counting_classes(file, &spec.counting)
}

/// Checks that the entity store can count the members of each key. The error says why it cannot.
fn check_recountable(source: Source, layers: Layers, boards: usize) -> Result<(), &'static str> {
    if source != Source::Authorizations {
        return Err("counting classes need source = \"authorizations\"");
    }
    if layers != Layers::Both {
        return Err("counting classes need layers = \"both\"");
    }
    if boards > 0 {
        return Err("a key with several boards has no single count");
    }
    Ok(())
}

/// The columns of a query's result, looked up by the definition.
struct QueryColumns<'a> {
    file: &'a File<'a>,
    found: &'a SchemaRef,
    used: Vec<String>,
}

impl QueryColumns<'_> {
    /// Integer columns that are never null.
    fn integer_columns(&mut self, fields: &[Spanned<String>]) -> Result<KeyShape> {
        let columns = fields.iter().map(|field| {
            let found = self.take_column(field)?;
            if found != DataType::Int64 {
                let what = format!("column {:?} must be a BIGINT, not {found}", field.get_ref());
                return Err(self.file.error_at(field, what));
            }
            Ok(KeyColumn {
                name: field.get_ref().clone(),
                kind: KeyKind::Int,
                nullable: false,
            })
        });
        Ok(KeyShape(columns.collect::<Result<_>>()?))
    }

    /// Columns of any storable type.
    fn payload_columns(&mut self, fields: &[Spanned<String>]) -> Result<KeyShape> {
        let columns = fields.iter().map(|field| {
            let found = self.take_column(field)?;
            let kind = KeyKind::from_data_type(&found).ok_or_else(|| {
                let what = format!("column {:?} is {found}: cast it", field.get_ref());
                self.file.error_at(field, what)
            })?;
            Ok(KeyColumn {
                name: field.get_ref().clone(),
                kind,
                nullable: true,
            })
        });
        Ok(KeyShape(columns.collect::<Result<_>>()?))
    }

    fn take_column(&mut self, field: &Spanned<String>) -> Result<DataType> {
        let name = field.get_ref();
        let Ok(found) = self.found.field_with_name(name) else {
            let names: Vec<&str> = self
                .found
                .fields()
                .iter()
                .map(|f| f.name().as_str())
                .collect();
            let what = format!(
                "the query returns no column {name:?}; it returns {}",
                names.join(", ")
            );
            return Err(self.file.error_at(field, what));
        };
        if self.used.contains(name) {
            let what = format!("column {name:?} is listed twice");
            return Err(self.file.error_at(field, what));
        }
        self.used.push(name.clone());
        Ok(found.data_type().clone())
    }
}
