//! Compares random histories of entities with the rules on plain maps.

use std::collections::{BTreeMap, BTreeSet};

use arrow::array::RecordBatch;
use futures::TryStreamExt;
use schemas::entities::{
    Application, Athlete, Authorization, Effort, Entity, Follow, Gender, Group, Membership,
};
use schemas::source::Source;
use stores::Result;
use stores::admin::{ApplicationChange, EntityAdmin};
use stores::entities::{AuthorizeOutcome, Notification, RevokeOutcome};

use super::entities::pending;
use super::entity_admin_model::{AdminModel, ApplicationState};
use super::entity_calls::{Call, shift_ids};
use super::entity_rows::{
    AuthorizationRow, EffortRow, athlete, authorization, authorization_rows, effort_rows,
};

/// Ids of one history are smaller than this; the next history starts at a multiple of it.
const IDS: i64 = 1000;
/// Ids of applications are smaller than this.
const APPLICATIONS: i64 = 3;

/// The expected contents of a store.
#[derive(Debug, Default)]
struct Model {
    efforts: BTreeMap<i64, Effort>,
    athletes: BTreeMap<i64, Athlete>,
    clubs: BTreeMap<(i64, i64), Membership>,
    follows: BTreeMap<(i64, i64), Follow>,
    authorizations: BTreeMap<i64, Authorization>,
    applications: BTreeMap<i64, Application>,
    admin: AdminModel,
    outbox: BTreeMap<i64, (Source, Group)>,
    /// The largest number in the outbox so far.
    last_id: i64,
}

type TouchedGroups = BTreeSet<(Source, Group)>;

/// The columns of an athlete that views read: gender, year of birth, weight, and whether the
/// athlete is deleted or disqualified.
type AthleteColumns = (Option<&'static str>, Option<i64>, Option<f64>, (bool, bool));

impl Model {
    /// Applies a row, or returns the column that rejects it.
    fn apply_row(&mut self, row: Entity, touched: &mut TouchedGroups) -> Option<&'static str> {
        match row {
            Entity::Effort(row) => {
                if let Some(stored) = self.efforts.get(&row.id) {
                    if stored.segment_id != row.segment_id {
                        return Some("segment_id");
                    }
                    if stored.athlete_id != row.athlete_id {
                        return Some("athlete_id");
                    }
                    if stored.version > row.version {
                        return None;
                    }
                }
                let group = Group {
                    key: row.segment_id,
                    member: row.athlete_id,
                };
                touched.insert((Source::Efforts, group));
                self.efforts.insert(row.id, row);
            }
            Entity::Authorization(row) => {
                if let Some(stored) = self.authorizations.get(&row.id) {
                    if stored.application_id != row.application_id {
                        return Some("application_id");
                    }
                    if stored.athlete_id != row.athlete_id {
                        return Some("athlete_id");
                    }
                    if stored.version > row.version {
                        return None;
                    }
                }
                let group = Group {
                    key: row.application_id,
                    member: row.athlete_id,
                };
                touched.insert((Source::Authorizations, group));
                self.authorizations.insert(row.id, row);
            }
            Entity::Athlete(row) => {
                put(&mut self.athletes, row.id, row, |row| row.version);
            }
            Entity::Membership(row) => {
                let id = (row.club_id, row.athlete_id);
                put(&mut self.clubs, id, row, |row| row.version);
            }
            Entity::Follow(row) => {
                let id = (row.follower_id, row.followed_id);
                put(&mut self.follows, id, row, |row| row.version);
            }
            Entity::Application(row) => {
                put(&mut self.applications, row.id, row, |row| row.version);
            }
        }
        None
    }

    /// Returns the columns that views read of each athlete with efforts.
    fn read_columns(&self) -> BTreeMap<i64, AthleteColumns> {
        let unknown = athlete(0);
        let ids = self.efforts.values().map(|row| row.athlete_id);
        ids.chain(self.athletes.keys().copied())
            .map(|id| {
                let row = self.athletes.get(&id).unwrap_or(&unknown);
                let gender = row.gender.map(Gender::letter);
                let flags = (row.is_deleted, row.is_disqualified);
                (id, (gender, row.birth_year, row.weight_kg, flags))
            })
            .collect()
    }

    fn effort_rows(&self) -> Vec<EffortRow> {
        let athletes = self.read_columns();
        let mut rows: Vec<EffortRow> = self
            .efforts
            .values()
            .map(|row| {
                let (gender, birth_year, weight_kg, flags) = athletes[&row.athlete_id];
                let started_at =
                    jiff::Timestamp::from_microsecond(row.started_at_us).expect("a time");
                let date = started_at.in_tz(&row.tz).expect("a zone").date();
                EffortRow {
                    id: row.id,
                    segment_id: row.segment_id,
                    athlete_id: row.athlete_id,
                    activity_id: row.activity_id,
                    elapsed_time_s: row.elapsed_time_s,
                    started_at_us: row.started_at_us,
                    day: date
                        .strftime("%Y%m%d")
                        .to_string()
                        .parse()
                        .expect("a number"),
                    is_hidden: row.is_hidden,
                    is_deleted: row.is_deleted,
                    gender: gender.map(str::to_owned),
                    birth_year,
                    weight_kg,
                    athlete_is_deleted: flags.0,
                    athlete_is_disqualified: flags.1,
                }
            })
            .collect();
        rows.sort_by_key(|row| (row.segment_id, row.athlete_id, row.id));
        rows
    }

    fn authorization_rows(&self) -> Vec<AuthorizationRow> {
        let rows = self.authorizations.values().map(|row| AuthorizationRow {
            id: row.id,
            application_id: row.application_id,
            athlete_id: row.athlete_id,
            created_at_us: row.created_at_us,
            revoked_at_us: row.revoked_at_us,
            athlete_is_deleted: self.is_deleted(row.athlete_id),
        });
        let mut rows: Vec<AuthorizationRow> = rows.collect();
        rows.sort_by_key(|row| (row.application_id, row.athlete_id, row.id));
        rows
    }

    fn is_deleted(&self, athlete_id: i64) -> bool {
        let row = self.athletes.get(&athlete_id);
        row.is_some_and(|row| row.is_deleted)
    }

    /// Recomputes the athletes connected to an application.
    fn connected(&self, application_id: i64) -> BTreeSet<i64> {
        let is_connected = |row: &&Authorization| {
            row.application_id == application_id
                && row.revoked_at_us.is_none()
                && !self.is_deleted(row.athlete_id)
        };
        let rows = self.authorizations.values().filter(is_connected);
        rows.map(|row| row.athlete_id).collect()
    }

    fn capacity(&self, id: i64) -> Option<i64> {
        self.applications.get(&id).map(|row| row.athlete_capacity)
    }

    fn set_capacity(&mut self, id: i64, capacity: Option<i64>) {
        let row = self.applications.get_mut(&id);
        if let (Some(row), Some(capacity)) = (row, capacity) {
            row.athlete_capacity = capacity;
        }
    }

    /// Returns an application as an administrator sees it, and its connected athletes.
    fn application(&self, id: i64) -> (ApplicationState, BTreeSet<i64>) {
        let connected = self.connected(id);
        let state = ApplicationState {
            capacity: self.capacity(id),
            connected: connected.len(),
        };
        (state, connected)
    }

    /// Checks the notifications against the touched groups and adds them to the outbox.
    fn record_notifications(&mut self, notifications: &[Notification], touched: &TouchedGroups) {
        for notification in notifications {
            assert!(notification.id > self.last_id, "numbers increase");
            self.last_id = notification.id;
            self.outbox
                .insert(notification.id, (notification.source, notification.group));
        }
        let groups: TouchedGroups = notifications
            .iter()
            .map(|notification| (notification.source, notification.group))
            .collect();
        assert_eq!(&groups, touched, "the touched groups are notified");
        assert_eq!(groups.len(), notifications.len(), "each group once");
    }
}

fn put<K: Ord, T>(rows: &mut BTreeMap<K, T>, id: K, row: T, version: impl Fn(&T) -> i64) {
    let is_older = rows
        .get(&id)
        .is_some_and(|stored| version(stored) > version(&row));
    if !is_older {
        rows.insert(id, row);
    }
}

/// Runs `calls` on a store and compares its results and contents with the plain rules after each
/// call. Every history of one store needs its own number.
///
/// # Errors
/// Errors of the store.
pub async fn follows_the_model(
    entities: &dyn EntityAdmin,
    number: i64,
    calls: &[Call],
) -> Result<()> {
    let base = number * IDS;
    let mut model = Model::default();
    // Histories that share a store share its outbox.
    let leftover = pending(entities, usize::MAX).await?;
    let leftover: Vec<i64> = leftover
        .iter()
        .map(|notification| notification.id)
        .collect();
    entities.remove_notifications(&leftover).await?;
    for (now_ms, (index, call)) in (1000..).zip(calls.iter().enumerate()) {
        let before = [0, 1, 2].map(|id| model.application(base + id));
        run(entities, base, &mut model, call, now_ms).await?;
        for (id, (before, connected)) in (base..).zip(before) {
            let (after, connected_after) = model.application(id);
            // Athletes connected before, after or by the call may all have been connected for a
            // moment.
            let lines = match call {
                Call::Apply(rows) => rows.as_slice(),
                _ => &[],
            };
            let active = lines.iter().filter_map(|row| match row {
                Entity::Authorization(row) if row.revoked_at_us.is_none() => Some(row),
                _ => None,
            });
            let active = active.filter(|row| row.application_id + base == id);
            let peak: BTreeSet<i64> = active
                .map(|row| row.athlete_id + base)
                .chain(connected)
                .chain(connected_after)
                .collect();
            let admin = &mut model.admin;
            admin
                .check_notices(entities, id, before, after, peak.len())
                .await?;
        }
        if index % 3 == 0 || index + 1 == calls.len() {
            compare(entities, base, &model).await?;
        }
    }
    Ok(())
}

async fn run(
    entities: &dyn EntityAdmin,
    base: i64,
    model: &mut Model,
    call: &Call,
    now_ms: i64,
) -> Result<()> {
    match call {
        Call::Apply(rows) => {
            let rows = rows.iter().map(|row| shift_ids(row.clone(), base));
            apply(entities, model, rows.collect(), now_ms).await?;
        }
        Call::Authorize(key, member) => {
            authorize(entities, model, key + base, member + base, now_ms).await?;
        }
        Call::Revoke(key, member) => {
            revoke(entities, model, key + base, member + base, now_ms).await?;
        }
        Call::SetCapacity(key, capacity) => {
            let (id, change) = (key + base, ApplicationChange::capacity(*capacity));
            let before = model.capacity(id);
            let after = model.admin.change(entities, id, change, before, now_ms);
            let after = after.await?;
            model.set_capacity(id, after);
        }
        Call::Enforce(key, is_on) => {
            let (id, change) = (key + base, ApplicationChange::enforced(*is_on));
            let capacity = model.capacity(id);
            let after = model.admin.change(entities, id, change, capacity, now_ms);
            after.await?;
        }
        Call::RequestCapacity(key, requested) => {
            let (id, requested) = (key + base, *requested);
            let capacity = model.capacity(id);
            let asking = model
                .admin
                .request_capacity(entities, id, requested, capacity, now_ms);
            asking.await?;
        }
        Call::Decide(nth, decision) => {
            let capacities = model.applications.clone();
            let capacity = |id: i64| capacities.get(&id).map(|row| row.athlete_capacity);
            let decided = model
                .admin
                .decide(entities, *nth, *decision, capacity, now_ms);
            if let Some((id, after)) = decided.await? {
                model.set_capacity(id, Some(after));
            }
        }
        Call::RemoveNotifications(count, oldest) => {
            let ids = model.outbox.keys().copied();
            let ids: Vec<i64> = if *oldest {
                ids.take(*count).collect()
            } else {
                ids.rev().take(*count).collect()
            };
            entities.remove_notifications(&ids).await?;
            model.outbox.retain(|id, _| !ids.contains(id));
        }
    }
    Ok(())
}

async fn apply(
    entities: &dyn EntityAdmin,
    model: &mut Model,
    rows: Vec<Entity>,
    now_ms: i64,
) -> Result<()> {
    let applied = entities.apply(&rows, now_ms).await?;
    let before = model.read_columns();
    let applications: Vec<_> = model.applications.values().cloned().collect();
    let mut touched = TouchedGroups::new();
    let mut rejected = Vec::new();
    let row_count = rows.len();
    for (index, row) in rows.into_iter().enumerate() {
        rejected.extend(
            model
                .apply_row(row, &mut touched)
                .map(|column| (index, column)),
        );
    }
    for before in applications {
        if let Some(after) = model.applications.get(&before.id) {
            model.admin.record_line(&before, after);
        }
    }
    for (id, columns) in model.read_columns() {
        let unknown = AthleteColumns::default();
        let before = before.get(&id).unwrap_or(&unknown);
        if before == &columns {
            continue;
        }
        if before.3.0 != columns.3.0 {
            let active = model.authorizations.values();
            let active = active.filter(|row| row.athlete_id == id && row.revoked_at_us.is_none());
            touched.extend(active.map(|row| {
                let group = Group {
                    key: row.application_id,
                    member: id,
                };
                (Source::Authorizations, group)
            }));
        }
        let efforts = model.efforts.values().filter(|row| row.athlete_id == id);
        touched.extend(efforts.map(|row| {
            let group = Group {
                key: row.segment_id,
                member: id,
            };
            (Source::Efforts, group)
        }));
    }
    let actual = applied.rejected.iter().map(|(index, reason)| {
        let column = reason.split(':').next().unwrap_or_default();
        (*index, column)
    });
    assert_eq!(
        actual.collect::<Vec<_>>(),
        rejected,
        "{:?}",
        applied.rejected
    );
    assert_eq!(applied.accepted, (row_count - rejected.len()) as u64);
    assert!(!applied.more_pending);
    model.record_notifications(&applied.notifications, &touched);
    Ok(())
}

async fn authorize(
    entities: &dyn EntityAdmin,
    model: &mut Model,
    key: i64,
    member: i64,
    now_ms: i64,
) -> Result<()> {
    let connected = model.connected(key);
    let capacity = model.capacity(key);
    let is_enforced = model.admin.is_enforced(key);
    let outcome = entities.authorize(key, member, now_ms).await?;
    let expected = match capacity {
        None => AuthorizeOutcome::UnknownApplication,
        Some(_) if model.is_deleted(member) => AuthorizeOutcome::AthleteDeleted,
        Some(_) if connected.contains(&member) => AuthorizeOutcome::AlreadyConnected,
        Some(capacity) if is_enforced && connected.len() as i64 >= capacity => {
            AuthorizeOutcome::CapacityReached {
                connected: connected.len() as i64,
                capacity,
            }
        }
        Some(_) => {
            let AuthorizeOutcome::New { id, notification } = outcome else {
                panic!("there is room for {member} in {key}: {outcome:?}");
            };
            let row = Authorization {
                created_at_us: now_ms * 1000,
                ..authorization(id, key, member)
            };
            assert!(model.authorizations.insert(id, row).is_none(), "a new id");
            let touched = (Source::Authorizations, Group { key, member });
            model.record_notifications(&[notification], &[touched].into());
            return Ok(());
        }
    };
    assert_eq!(outcome, expected, "{member} to {key}");
    Ok(())
}

async fn revoke(
    entities: &dyn EntityAdmin,
    model: &mut Model,
    key: i64,
    member: i64,
    now_ms: i64,
) -> Result<()> {
    let outcome = entities.revoke(key, member, now_ms).await?;
    if !model.applications.contains_key(&key) {
        assert_eq!(outcome, RevokeOutcome::UnknownApplication);
        return Ok(());
    }
    // An authorization of a deleted athlete can be revoked too.
    let mut was_active = false;
    for row in model.authorizations.values_mut() {
        let is_requested = row.application_id == key && row.athlete_id == member;
        if is_requested && row.revoked_at_us.is_none() {
            row.revoked_at_us = Some(now_ms * 1000);
            was_active = true;
        }
    }
    let RevokeOutcome::Done(notifications) = outcome else {
        panic!("application {key} is known");
    };
    let touched = (Source::Authorizations, Group { key, member });
    let touched: TouchedGroups = was_active.then_some(touched).into_iter().collect();
    model.record_notifications(notifications.as_slice(), &touched);
    Ok(())
}

async fn compare(entities: &dyn EntityAdmin, base: i64, model: &Model) -> Result<()> {
    let history_ids = base..base + IDS;
    let efforts = model.effort_rows();
    let authorizations = model.authorization_rows();
    for (keys, batch_rows) in [(None, 4), (Some(vec![base + 2, base, base + 9, base]), 2)] {
        let is_requested = |key: i64| keys.as_ref().is_none_or(|keys| keys.contains(&key));
        let dump = entities
            .dump(Source::Efforts, keys.as_deref(), batch_rows)
            .await?;
        let actual: Vec<RecordBatch> = dump.try_collect().await?;
        let mut actual: Vec<EffortRow> = actual.iter().flat_map(effort_rows).collect();
        actual.retain(|row| history_ids.contains(&row.segment_id));
        let mut expected = efforts.clone();
        expected.retain(|row| is_requested(row.segment_id));
        assert_eq!(actual, expected, "efforts of {keys:?}");

        let dump = entities
            .dump(Source::Authorizations, keys.as_deref(), batch_rows)
            .await?;
        let actual: Vec<RecordBatch> = dump.try_collect().await?;
        let mut actual: Vec<AuthorizationRow> =
            actual.iter().flat_map(authorization_rows).collect();
        actual.retain(|row| history_ids.contains(&row.application_id));
        let mut expected = authorizations.clone();
        expected.retain(|row| is_requested(row.application_id));
        assert_eq!(actual, expected, "authorizations of {keys:?}");
    }
    let requested: Vec<Group> = [(3, 4), (0, 0), (1, 1), (2, 2), (0, 3), (1, 1), (50, 60)]
        .map(|(key, member)| Group {
            key: key + base,
            member: member + base,
        })
        .into();
    let actual = effort_rows(&entities.groups(Source::Efforts, &requested).await?);
    let is_requested = |key: i64, member: i64| requested.contains(&Group { key, member });
    let mut expected = efforts;
    expected.retain(|row| is_requested(row.segment_id, row.athlete_id));
    assert_eq!(actual, expected, "groups of efforts");
    let actual = authorization_rows(&entities.groups(Source::Authorizations, &requested).await?);
    let mut expected = authorizations;
    expected.retain(|row| is_requested(row.application_id, row.athlete_id));
    assert_eq!(actual, expected, "groups of authorizations");
    compare_lists(entities, base, model).await
}

async fn compare_lists(entities: &dyn EntityAdmin, base: i64, model: &Model) -> Result<()> {
    for id in base..base + 4 {
        let members = model.clubs.values();
        let members = members.filter(|row| row.club_id == id && !row.is_deleted);
        let members: Vec<i64> = members.map(|row| row.athlete_id).collect();
        assert_eq!(entities.club_members(id).await?, members, "club {id}");
        let followed = model.follows.values();
        let followed = followed.filter(|row| row.follower_id == id && !row.is_deleted);
        let followed: Vec<i64> = followed.map(|row| row.followed_id).collect();
        assert_eq!(
            entities.followed_athletes(id).await?,
            followed,
            "followed by {id}"
        );
        let known = model.applications.get(&id);
        assert_eq!(entities.application(id).await?.as_ref(), known);
    }
    let mut listed = entities.applications(Some(base - 1), 10).await?;
    listed.retain(|row| row.id < base + IDS);
    let expected: Vec<Application> = model.applications.values().cloned().collect();
    assert_eq!(listed, expected);
    let next_page = entities.applications(Some(base), 1).await?;
    let next_page = next_page.first().filter(|row| row.id < base + IDS);
    assert_eq!(next_page, expected.iter().find(|row| row.id > base));

    for id in base..base + APPLICATIONS {
        let (state, _) = model.application(id);
        model.admin.compare(entities, id, state).await?;
    }
    let pending = pending(entities, 100_000).await?;
    let expected: Vec<Notification> = model
        .outbox
        .iter()
        .map(|(id, (source, group))| Notification {
            id: *id,
            source: *source,
            group: *group,
        })
        .collect();
    assert_eq!(pending, expected, "the pending outbox entries");
    Ok(())
}
