//! Boards: sets of members under a key, each with an optional score and a payload, at most one row
//! a member.
//!
//! A key (a segment, an application) has one or more boards, told apart by the columns `boards` of
//! the definition. What is read and written together is the *group*: all rows of one member under
//! one key. The query's result over a group's rows is the group's whole new state.

mod live_sum;
mod podium;
mod rows;
mod section;
mod standings;
mod state;

use std::sync::Arc;

use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use schemas::entities;
use schemas::key::{KeyColumn, KeyError, KeyKind, KeyShape, KeyValue};
use schemas::source::{Source, SourceKind};
use toml::Spanned;

pub use live_sum::LiveSum;
pub use podium::{Event, Podium};
pub use rows::BoardRows;
pub use section::{Section, SectionError, Test};
pub use standings::{
    Before, ChangedMembers, Head, LiveState, OnBoard, Ranked, ReadError, Sheet, Standings,
    member_key, rank_key,
};
pub use state::{GroupState, Place, StateError};

use crate::Result;
use crate::counting::Counting;
use crate::job::{Job, Layers, layers, outside, source, version};
use crate::plan::output_schema;
use crate::spec::{BoardSpec, COUNTING, File, HISTORY, counting_classes};

/// What answers tell of a place beside the columns of a view.
const TOLD: [&str; 4] = ["rank", "total", "previous_rank", "change"];

/// What makes a view a set of boards.
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
    achievements: Vec<Achieving>,
    keeps_counts: bool,
    counting: Counting,
}

/// A board on which something can be achieved.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Achieving {
    /// The name under which it is told.
    pub name: String,
    /// Which board of the key, encoded.
    pub board: Vec<u8>,
}

impl Job<Board> {
    /// What the board of a key is called, encoded, where there is only one.
    pub const ONLY_BOARD: &[u8] = &[];

    /// The name under which it is served: the `NAME` of `/boards/NAME/…`.
    #[must_use]
    pub fn board(&self) -> &str {
        &self.kind.board
    }

    /// The column by which it is asked for; it decides the log partition.
    #[must_use]
    pub const fn key(&self) -> &KeyShape {
        &self.kind.key
    }

    /// The columns that tell the boards of a key apart; none if there is only one.
    #[must_use]
    pub const fn boards(&self) -> &KeyShape {
        &self.kind.boards
    }

    /// Whether sums of live states are kept ([`LiveSum`]): of boards of which a key has only one, since
    /// these are asked for their size, and of others each state would change many sums.
    #[must_use]
    pub const fn keeps_sums(&self) -> bool {
        self.kind.boards.0.is_empty()
    }

    /// The member's column.
    #[must_use]
    pub const fn member(&self) -> &KeyShape {
        &self.kind.member
    }

    /// The columns that rank members, lowest first; none for a board without ranks.
    #[must_use]
    pub const fn score(&self) -> &KeyShape {
        &self.kind.score
    }

    /// The columns that are told of a row besides.
    #[must_use]
    pub const fn shown(&self) -> &KeyShape {
        &self.kind.shown
    }

    /// What is stored of a row besides: what is shown, then what can be filtered by. All of it may
    /// be null.
    #[must_use]
    pub const fn payload(&self) -> &KeyShape {
        &self.kind.payload
    }

    /// A payload with null in the place of what can be filtered by.
    ///
    /// # Errors
    /// If it does not decode.
    pub fn shown_of(&self, payload: &[u8]) -> Result<Vec<u8>, KeyError> {
        self.kind
            .payload
            .null_from(payload, self.kind.shown.0.len())
    }

    /// The column that says how many of the source's rows stand behind a row; each counts one where
    /// there is none.
    #[must_use]
    pub fn weight(&self) -> Option<&str> {
        self.kind.weight.as_deref()
    }

    /// The boards on which something can be achieved; personal records are told of the first.
    #[must_use]
    pub fn achievements(&self) -> &[Achieving] {
        &self.kind.achievements
    }

    /// Whether it is kept how many members each key had, day by day.
    #[must_use]
    pub const fn keeps_counts(&self) -> bool {
        self.kind.keeps_counts
    }

    /// How the members of some keys are counted otherwise than by this board. It counts them all the same.
    #[must_use]
    pub const fn counting(&self) -> &Counting {
        &self.kind.counting
    }

    /// Whether its members are what the canonical store can count by itself: the athletes connected to each
    /// application.
    pub(crate) fn can_be_recounted(&self) -> bool {
        recountable(self.source, self.layers, self.kind.boards.0.len()).is_ok()
    }

    /// Counts in other classes than the definition says.
    pub(crate) fn count_by(&mut self, counting: Counting) {
        self.kind.counting = counting;
    }

    /// Checks a definition together with its query, which gives the columns their types.
    pub(crate) fn check(
        name: &str,
        file: &File<'_>,
        (sql, query_file): (&str, &str),
        others: &[Arc<Self>],
    ) -> Result<Self> {
        let spec: BoardSpec = file.spec()?;
        let source = source(file, &spec.source, "board", SourceKind::Entities)?;
        let layers = layers(file, &spec.layers)?;
        // Only views of both layers are served, each under a name of its own.
        let twin = others.iter().find(|other| {
            (other.layers, layers) == (Layers::Both, Layers::Both)
                && other.board() == spec.board.get_ref()
        });
        if let Some(twin) = twin {
            let what = format!("board: job {:?} is served under this name", twin.name());
            return Err(file.error_at(&spec.board, what));
        }
        for (field, expected, what) in [
            (&spec.key, entities::key_column(source), "key"),
            (&spec.member, MEMBER, "member"),
        ] {
            if field.get_ref() != expected {
                let what = format!("{what}: the groups of {source} are told apart by {expected:?}");
                return Err(file.error_at(field, what));
            }
        }
        let input = entities::schema(source).unwrap_or_else(|| Arc::new(Schema::empty()));
        let found = output_schema(source.name(), &input, sql, query_file)?;
        let mut columns = Columns {
            file,
            found: &found,
            seen: Vec::new(),
        };
        let key = columns.ids(std::slice::from_ref(&spec.key))?;
        let boards = columns.ids(&spec.boards)?;
        let member = columns.ids(std::slice::from_ref(&spec.member))?;
        let score = columns.ids(&spec.score)?;
        let shown = columns.payload(&spec.shown)?;
        if layers == Layers::Both {
            stand_apart(file, spec.score.iter().chain(&spec.shown))?;
        }
        let filters = columns.payload(&spec.filters)?;
        let weight = columns.ids(spec.weight.as_slice())?;
        let achievements = achieving(file, &spec, (&boards, &score), layers)?;
        let keeps_counts = keeps_counts(file, &spec, layers)?;
        let counting = counting(file, &spec, (source, layers))?;
        let payload = KeyShape(shown.0.iter().chain(&filters.0).cloned().collect());
        let fields: Vec<Field> = [&key, &boards, &member, &score, &payload, &weight]
            .into_iter()
            .flat_map(|shape| &shape.0)
            .map(KeyColumn::field)
            .collect();
        // Types that the engine infers are stored with the rows: other ones are another view.
        let rests_on = format!("{fields:?}");
        Ok(Self {
            view: format!("{name}@{}", version(file.text, sql, Some(&rests_on))),
            name: name.to_owned(),
            source,
            over: None,
            layers,
            schema: Arc::new(Schema::new(fields)),
            sql: sql.to_owned(),
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
                keeps_counts,
                counting,
            },
        })
    }
}

/// The column of every source's members.
const MEMBER: &str = "athlete_id";

/// Boards on which something can be achieved, at most: each change of a key looks at all of them.
const ACHIEVING_MAX: usize = 8;

/// Columns that answers show must not be called what answers tell of a place.
fn stand_apart<'a>(
    file: &File<'_>,
    mut shown: impl Iterator<Item = &'a Spanned<String>>,
) -> Result<()> {
    let Some(field) = shown.find(|field| TOLD.contains(&field.get_ref().as_str())) else {
        return Ok(());
    };
    let what = format!(
        "column {:?}: answers tell something else of a place under this name; call the column otherwise",
        field.get_ref()
    );
    Err(file.error_at(field, what))
}

/// The boards on which something can be achieved, in the order of the file.
fn achieving(
    file: &File<'_>,
    spec: &BoardSpec,
    (boards, score): (&KeyShape, &KeyShape),
    layers: Layers,
) -> Result<Vec<Achieving>> {
    let mut listed: Vec<_> = spec.achievements.iter().collect();
    listed.sort_by_key(|(_, values)| values.span().start);
    let mut found: Vec<Achieving> = Vec::new();
    for (name, values) in listed {
        let wrong = |what: String| Err(file.error_at(values, format!("achievements: {what}")));
        if layers != Layers::Both {
            return wrong("only boards of both layers have any".to_owned());
        }
        if score.0.is_empty() {
            return wrong("a board without a score has no first place".to_owned());
        }
        if found.len() >= ACHIEVING_MAX {
            return wrong(format!("there are more than {ACHIEVING_MAX} boards"));
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
            return wrong(format!("{name:?} names no board"));
        };
        if found.iter().any(|other| other.board == board) {
            return wrong(format!("{name:?} is a board that has another name too"));
        }
        found.push(Achieving {
            name: name.clone(),
            board,
        });
    }
    Ok(found)
}

/// Whether the counts of keys are kept by day.
fn keeps_counts(file: &File<'_>, spec: &BoardSpec, layers: Layers) -> Result<bool> {
    let Some(history) = &spec.history else {
        return Ok(false);
    };
    let wrong = |what: &str| Err(file.error_at(history, format!("history: {what}")));
    if layers == Layers::Speed {
        return wrong("batch runs keep it, and none makes this board");
    }
    if !spec.boards.is_empty() {
        return wrong("a key with several boards has no one count");
    }
    if outside(file.text, &[HISTORY]).count() == file.text.lines().count() {
        return wrong("write it as a section of its own, [history]: it is no part of the version");
    }
    let counts = &history.get_ref().counts;
    if counts.get_ref() != "day" {
        return Err(file.error_at(counts, "counts: expected \"day\""));
    }
    Ok(true)
}

/// How the members of some keys are counted besides.
fn counting(
    file: &File<'_>,
    spec: &BoardSpec,
    (source, layers): (Source, Layers),
) -> Result<Counting> {
    let Some(first) = spec.counting.first() else {
        return Ok(Counting::default());
    };
    let wrong = |what: &str| Err(file.error_at(first, format!("counting: {what}")));
    if let Err(what) = recountable(source, layers, spec.boards.len()) {
        return wrong(what);
    }
    let heads = |line: &&str| {
        let (head, _) = line.split_once('#').unwrap_or((line, ""));
        head.trim() == COUNTING
    };
    if file.text.lines().filter(heads).count() != spec.counting.len() {
        return wrong("write sections of their own, [[counting]]: they are no part of the version");
    }
    counting_classes(file, &spec.counting)
}

/// Whether the canonical store can count the members of each key by itself; if not, why.
fn recountable(source: Source, layers: Layers, boards: usize) -> Result<(), &'static str> {
    if source != Source::Authorizations {
        return Err("only athletes who are connected to applications are counted in classes");
    }
    if layers != Layers::Both {
        return Err("only a board of both layers is served");
    }
    if boards > 0 {
        return Err("a key with several boards has no one count");
    }
    Ok(())
}

/// The columns of a query's result, as a definition names them.
struct Columns<'a> {
    file: &'a File<'a>,
    found: &'a SchemaRef,
    seen: Vec<String>,
}

impl Columns<'_> {
    /// Whole numbers that are never null.
    fn ids(&mut self, fields: &[Spanned<String>]) -> Result<KeyShape> {
        let columns = fields.iter().map(|field| {
            let found = self.find(field)?;
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

    /// Values of any kind that can be stored.
    fn payload(&mut self, fields: &[Spanned<String>]) -> Result<KeyShape> {
        let columns = fields.iter().map(|field| {
            let found = self.find(field)?;
            let kind = KeyKind::of(&found).ok_or_else(|| {
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

    fn find(&mut self, field: &Spanned<String>) -> Result<DataType> {
        let name = field.get_ref();
        let Ok(found) = self.found.field_with_name(name) else {
            let have: Vec<&str> = self
                .found
                .fields()
                .iter()
                .map(|f| f.name().as_str())
                .collect();
            let what = format!(
                "the query gives no column {name:?}; it gives {}",
                have.join(", ")
            );
            return Err(self.file.error_at(field, what));
        };
        if self.seen.contains(name) {
            let what = format!("column {name:?} stands here twice");
            return Err(self.file.error_at(field, what));
        }
        self.seen.push(name.clone());
        Ok(found.data_type().clone())
    }
}
