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
use crate::counting::CountingClasses;
use crate::job::{Job, Layers, hash_definition, lines_outside, parse_layers, parse_source};
use crate::plan::{QueryText, infer_query_schema};
use crate::spec::{BoardSpec, COUNTING, File, HISTORY, parse_counting_classes};

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
    counting: CountingClasses,
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

    /// Returns the name that serves this view: the `NAME` of `/boards/NAME/…`.
    #[must_use]
    pub fn board(&self) -> &str {
        &self.kind.board
    }

    /// Returns the key column. It decides the log partition.
    #[must_use]
    pub const fn key(&self) -> &KeyShape {
        &self.kind.key
    }

    /// Returns the columns that distinguish the boards of a key; empty if a key has one board.
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

    /// Returns the member column.
    #[must_use]
    pub const fn member(&self) -> &KeyShape {
        &self.kind.member
    }

    /// Returns the columns that rank members, lowest first; empty for a board without ranks.
    #[must_use]
    pub const fn score(&self) -> &KeyShape {
        &self.kind.score
    }

    /// Returns the other columns that responses show.
    #[must_use]
    pub const fn shown(&self) -> &KeyShape {
        &self.kind.shown
    }

    /// Returns the stored columns: first the shown ones, then those for filters. All are nullable.
    #[must_use]
    pub const fn payload(&self) -> &KeyShape {
        &self.kind.payload
    }

    /// Replaces the filter columns of a payload by null.
    ///
    /// # Errors
    /// If the payload does not decode.
    pub fn without_filter_columns(&self, payload: &[u8]) -> Result<Vec<u8>, KeyError> {
        self.kind
            .payload
            .with_nulls_from(payload, self.kind.shown.0.len())
    }

    /// Returns the column with the number of source rows of an entry. `None` counts one for each
    /// entry.
    #[must_use]
    pub fn weight(&self) -> Option<&str> {
        self.kind.weight.as_deref()
    }

    /// Returns the boards with achievements. Personal records are published for the first one only.
    #[must_use]
    pub fn achievement_boards(&self) -> &[AchievementBoard] {
        &self.kind.achievements
    }

    /// Returns whether the number of members of each key is recorded for every day.
    #[must_use]
    pub const fn records_daily_counts(&self) -> bool {
        self.kind.records_daily_counts
    }

    /// Returns the classes of keys that are also recounted in the entity store. The board counts
    /// all members in any case.
    #[must_use]
    pub const fn counting(&self) -> &CountingClasses {
        &self.kind.counting
    }

    /// Returns whether the entity store can count the members of a key: the athletes connected to
    /// each application.
    pub(crate) fn can_be_recounted(&self) -> bool {
        check_recountable(self.source, self.layers, self.kind.boards.0.len()).is_ok()
    }

    /// Replaces the counting classes of the definition.
    pub(crate) fn set_counting(&mut self, counting: CountingClasses) {
        self.kind.counting = counting;
    }

    /// Parses and checks a definition together with its query, which determines the column types.
    pub(crate) fn parse(
        name: &str,
        file: &File<'_>,
        query: &QueryText<'_>,
        others: &[Arc<Self>],
    ) -> Result<Self> {
        let spec: BoardSpec = file.parse()?;
        let source = parse_source(file, &spec.source, "board", SourceKind::Entities)?;
        let layers = parse_layers(file, &spec.layers)?;
        check_unique_name(file, &spec, layers, others)?;
        check_group_columns(file, &spec, source)?;
        let input = entities::schema(source).unwrap_or_else(|| Arc::new(Schema::empty()));
        let schema = infer_query_schema(source.name(), &input, query)?;
        let mut columns = QueryColumns {
            file,
            schema: &schema,
            used: Vec::new(),
        };
        let key = columns.take_integer_columns(std::slice::from_ref(&spec.key))?;
        let boards = columns.take_integer_columns(&spec.boards)?;
        let member = columns.take_integer_columns(std::slice::from_ref(&spec.member))?;
        let score = columns.take_integer_columns(&spec.score)?;
        let shown = columns.take_payload_columns(&spec.shown)?;
        if layers == Layers::Both {
            check_reserved_columns(file, spec.score.iter().chain(&spec.shown))?;
        }
        let filters = columns.take_payload_columns(&spec.filters)?;
        let weight = columns.take_integer_columns(spec.weight.as_slice())?;
        let achievements = parse_achievement_boards(file, &spec, &boards, layers)?;
        let records_daily_counts = parse_daily_counts(file, &spec, layers)?;
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
                hash_definition(file.text, query.sql, Some(&column_types))
            ),
            name: name.to_owned(),
            source,
            input_job: None,
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

/// Checks that the name is unique. Only views of both layers are served, each under its name.
fn check_unique_name(
    file: &File<'_>,
    spec: &BoardSpec,
    layers: Layers,
    others: &[Arc<Job<Board>>],
) -> Result<()> {
    let namesake = others.iter().find(|other| {
        (other.layers, layers) == (Layers::Both, Layers::Both)
            && other.board() == spec.board.get_ref()
    });
    match namesake {
        Some(namesake) => {
            let reason = format!("board: job {:?} already uses this name", namesake.name());
            Err(file.error_at(&spec.board, reason))
        }
        None => Ok(()),
    }
}

/// Checks that key and member are the columns that identify the groups of the source.
fn check_group_columns(file: &File<'_>, spec: &BoardSpec, source: Source) -> Result<()> {
    for (field, expected, field_name) in [
        (&spec.key, entities::key_column(source), "key"),
        (&spec.member, MEMBER_COLUMN, "member"),
    ] {
        if field.get_ref() != expected {
            let reason = format!(
                "{field_name}: must be {expected:?}, which identifies the groups of {source}"
            );
            return Err(file.error_at(field, reason));
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
    let reason = format!(
        "column {:?}: responses have another field with this name; rename the column",
        field.get_ref()
    );
    Err(file.error_at(field, reason))
}

/// Parses the boards with achievements, in the order of the file.
fn parse_achievement_boards(
    file: &File<'_>,
    spec: &BoardSpec,
    boards: &KeyShape,
    layers: Layers,
) -> Result<Vec<AchievementBoard>> {
    let mut fields: Vec<_> = spec.achievements.iter().collect();
    fields.sort_by_key(|(_, values)| values.span().start);
    let mut achievement_boards: Vec<AchievementBoard> = Vec::new();
    for (name, values) in fields {
        let error = |reason: String| Err(file.error_at(values, format!("achievements: {reason}")));
        if layers != Layers::Both {
            return error("a board with achievements needs layers = \"both\"".to_owned());
        }
        if spec.score.is_empty() {
            return error("a board with achievements needs a score".to_owned());
        }
        if achievement_boards.len() >= ACHIEVEMENT_BOARDS_MAX {
            return error(format!(
                "at most {ACHIEVEMENT_BOARDS_MAX} boards can have achievements"
            ));
        }
        let count = values.get_ref().len();
        if count != boards.0.len() {
            return error(format!(
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
            return error(format!("the values of {name:?} do not identify a board"));
        };
        if achievement_boards.iter().any(|other| other.board == board) {
            return error(format!("the board of {name:?} already has another name"));
        }
        achievement_boards.push(AchievementBoard {
            name: name.clone(),
            board,
        });
    }
    Ok(achievement_boards)
}

/// Parses whether daily counts are recorded.
fn parse_daily_counts(file: &File<'_>, spec: &BoardSpec, layers: Layers) -> Result<bool> {
    let Some(history) = &spec.history else {
        return Ok(false);
    };
    let error = |reason: &str| Err(file.error_at(history, format!("history: {reason}")));
    if layers == Layers::Speed {
        return error("batch runs record it, and this board has none; use layers = \"both\"");
    }
    if !spec.boards.is_empty() {
        return error("a key with several boards has no single count");
    }
    if lines_outside(file.text, &[HISTORY]).count() == file.text.lines().count() {
        return error("write it as a separate section [history]; it is not part of the version");
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
) -> Result<CountingClasses> {
    let Some(first) = spec.counting.first() else {
        return Ok(CountingClasses::default());
    };
    let error = |reason: &str| Err(file.error_at(first, format!("counting: {reason}")));
    if let Err(reason) = check_recountable(source, layers, spec.boards.len()) {
        return error(reason);
    }
    let is_counting_header = |line: &&str| {
        let (header, _) = line.split_once('#').unwrap_or((line, ""));
        header.trim() == COUNTING
    };
    if file.text.lines().filter(is_counting_header).count() != spec.counting.len() {
        return error("write separate sections [[counting]]; they are not part of the version");
    }
    parse_counting_classes(file, &spec.counting)
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
    schema: &'a SchemaRef,
    used: Vec<String>,
}

impl QueryColumns<'_> {
    /// Takes integer columns, which are never null.
    fn take_integer_columns(&mut self, fields: &[Spanned<String>]) -> Result<KeyShape> {
        let columns = fields.iter().map(|field| {
            let data_type = self.take_column(field)?;
            if data_type != DataType::Int64 {
                let reason = format!(
                    "column {:?} must be a BIGINT, not {data_type}",
                    field.get_ref()
                );
                return Err(self.file.error_at(field, reason));
            }
            Ok(KeyColumn {
                name: field.get_ref().clone(),
                kind: KeyKind::Int,
                nullable: false,
            })
        });
        Ok(KeyShape(columns.collect::<Result<_>>()?))
    }

    /// Takes columns of any storable type.
    fn take_payload_columns(&mut self, fields: &[Spanned<String>]) -> Result<KeyShape> {
        let columns = fields.iter().map(|field| {
            let data_type = self.take_column(field)?;
            let kind = KeyKind::from_data_type(&data_type).ok_or_else(|| {
                let reason = format!("column {:?} is {data_type}: cast it", field.get_ref());
                self.file.error_at(field, reason)
            })?;
            Ok(KeyColumn {
                name: field.get_ref().clone(),
                kind,
                nullable: true,
            })
        });
        Ok(KeyShape(columns.collect::<Result<_>>()?))
    }

    /// Marks a column as used and returns its type.
    fn take_column(&mut self, field: &Spanned<String>) -> Result<DataType> {
        let name = field.get_ref();
        let Ok(column) = self.schema.field_with_name(name) else {
            let names: Vec<&str> = self
                .schema
                .fields()
                .iter()
                .map(|f| f.name().as_str())
                .collect();
            let reason = format!(
                "the query returns no column {name:?}; it returns {}",
                names.join(", ")
            );
            return Err(self.file.error_at(field, reason));
        };
        if self.used.contains(name) {
            let reason = format!("column {name:?} is listed twice");
            return Err(self.file.error_at(field, reason));
        }
        self.used.push(name.clone());
        Ok(column.data_type().clone())
    }
}
