//! Expected achievements: sorts the board before and after each change of a group. Shares no code
//! with the jobs or the layers.

use std::collections::BTreeMap;

use jiff::civil::Date;
use serde_json::{Value, json};

use crate::expected_boards::{BoardQuery, ExpectedEntities};

/// The boards with achievements; personal records are on the first.
pub const BOARDS: [&str; 3] = ["overall", "gender:F", "gender:M"];

/// The achievements of athletes after a sequence of group changes.
#[derive(Debug, Default)]
pub struct ExpectedAchievements {
    /// The current entries of athletes, by segment and board.
    rows: BTreeMap<(i64, &'static str), BTreeMap<i64, Value>>,
    achievements_by_athlete: BTreeMap<i64, Vec<Value>>,
}

/// Returns a board of a segment for all time.
#[must_use]
pub fn board_of(truth: &ExpectedEntities, segment: i64, board: &str) -> Vec<Value> {
    truth.board(&BoardQuery {
        segment,
        board: board.to_owned(),
        window: "all".to_owned(),
        date: Date::default(),
        club: None,
        following: None,
    })
}

fn int(row: &Value, name: &str) -> i64 {
    row[name].as_i64().expect(name)
}

fn sort_rows(rows: &BTreeMap<i64, Value>) -> Vec<&Value> {
    let mut sorted: Vec<&Value> = rows.values().collect();
    sorted.sort_by_key(|row| (int(row, "elapsed_time"), int(row, "effort_id")));
    sorted
}

impl ExpectedAchievements {
    /// Records a change of a group to its state in `truth`, notified at this position of the log.
    pub fn change(
        &mut self,
        truth: &ExpectedEntities,
        segment: i64,
        athlete: i64,
        partition: u32,
        offset: i64,
    ) {
        for board in BOARDS {
            let entries = board_of(truth, segment, board);
            let entry = entries
                .into_iter()
                .find(|row| int(row, "athlete_id") == athlete);
            let before = self
                .rows
                .get(&(segment, board))
                .cloned()
                .unwrap_or_default();
            let mut after = before.clone();
            match entry {
                Some(entry) => drop(after.insert(athlete, entry)),
                None => drop(after.remove(&athlete)),
            }
            let mut achievements = compare(&before, &after, athlete, board == BOARDS[0]);
            for achievement in &mut achievements {
                achievement["segment_id"] = json!(segment);
                achievement["board"] = json!(board);
                achievement["position"] =
                    json!({"source": "efforts", "partition": partition, "offset": offset});
                let athlete = int(achievement, "athlete_id");
                let of_athlete = self.achievements_by_athlete.entry(athlete).or_default();
                of_athlete.push(achievement.clone());
            }
            self.rows.insert((segment, board), after);
        }
    }

    /// Returns all achievements of an athlete, sorted independently of the system.
    #[must_use]
    pub fn achievements(&self, athlete: i64) -> Vec<Value> {
        let achievements = self.achievements_by_athlete.get(&athlete);
        let mut achievements = achievements.cloned().unwrap_or_default();
        achievements.sort_by_key(Value::to_string);
        achievements
    }

    /// Returns the number of achievements of a kind.
    #[must_use]
    pub fn count(&self, kind: &str) -> usize {
        let achievements = self.achievements_by_athlete.values().flatten();
        achievements
            .filter(|achievement| achievement["kind"] == kind)
            .count()
    }
}

fn compare(
    before: &BTreeMap<i64, Value>,
    after: &BTreeMap<i64, Value>,
    changed: i64,
    has_records: bool,
) -> Vec<Value> {
    let (old, new) = (sort_rows(before), sort_rows(after));
    let rank = |athlete: i64| {
        let position = new
            .iter()
            .take(10)
            .position(|row| int(row, "athlete_id") == athlete);
        position.map(|position| position + 1)
    };
    let achievement = |kind: &str, row: &Value| {
        let mut achievement = row.clone();
        achievement["kind"] = json!(kind);
        achievement["rank"] = json!(rank(int(row, "athlete_id")));
        achievement
    };
    let mut achievements = Vec::new();
    let first = |rows: &[&Value]| rows.first().map(|row| int(row, "athlete_id"));
    if first(&old) != first(&new) {
        if let Some(lost) = old.first() {
            let mut lost = achievement("crown_lost", lost);
            lost["taken_by"] = json!(first(&new));
            achievements.push(lost);
        }
        achievements.extend(new.first().map(|row| achievement("crown", row)));
    }
    let sort_key = |row: &Value| (int(row, "elapsed_time"), int(row, "effort_id"));
    for row in new.iter().take(10).skip(1) {
        let athlete = int(row, "athlete_id");
        let old_entry = old
            .iter()
            .take(10)
            .find(|old| int(old, "athlete_id") == athlete);
        let is_better = athlete == changed
            && old_entry.is_some_and(|old_entry| sort_key(row) < sort_key(old_entry));
        if old_entry.is_none() || is_better {
            achievements.push(achievement("top_ten", row));
        }
    }
    if has_records
        && let (Some(old_entry), Some(new_entry)) = (before.get(&changed), after.get(&changed))
        && int(new_entry, "elapsed_time") < int(old_entry, "elapsed_time")
    {
        achievements.push(achievement("personal_record", new_entry));
    }
    achievements
}
