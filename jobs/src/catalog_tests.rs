use std::path::Path;

use super::*;
use crate::Rollup;

const DEFINITION: &str = "kind = \"aggregate\"
metric = \"plays\"
source = \"plays\"
layers = \"both\"
group = [\"owner_id\"]
bucket = \"hour\"
partition = \"day\"
dimensions = [\"kind\"]
";
const SQL: &str =
    "SELECT owner_id, date_bin(INTERVAL '1 hour', at) AS bucket, kind, sum(amount) AS count
FROM plays
GROUP BY owner_id, date_bin(INTERVAL '1 hour', at), kind
";

/// Writes the folder of a view.
pub(crate) fn write_view(root: &Path, name: &str, definition: &str, sql: &str) {
    let folder = root.join(name);
    std::fs::create_dir_all(&folder).unwrap();
    std::fs::write(folder.join("job.toml"), definition).unwrap();
    std::fs::write(folder.join("query.sql"), sql).unwrap();
}

/// The error message for a definition and its query.
fn message_for(definition: &str, sql: &str) -> String {
    let root = tempfile::tempdir().unwrap();
    write_view(root.path(), "hours", definition, sql);
    let error = Catalog::read(root.path()).unwrap_err().to_string();
    error.replace(&root.path().display().to_string(), "")
}

#[test]
fn built_in_views_are_valid() {
    let catalog = Catalog::built_in().unwrap();
    assert_eq!(catalog.jobs().len(), 26);
    for (index, job) in catalog.jobs().iter().enumerate() {
        let earlier_jobs = &catalog.jobs()[..index];
        let input_job = job.input_job();
        assert!(
            input_job.is_none_or(|name| earlier_jobs.iter().any(|job| job.name() == name)),
            "{}",
            job.name()
        );
        // A view without live deltas must have a roll-up, so that requests can read live data.
        let is_live = job.layers() == Layers::Both;
        let rollup = Rollup::find(job, catalog.jobs());
        assert_eq!(rollup.is_none(), is_live, "{}", job.name());
    }
}

#[test]
fn an_invalid_definition_is_reported_with_file_and_line() {
    for (from, to, position, word) in [
        (
            "\"aggregate\"",
            "\"heap\"",
            "/hours/job.toml:1: ",
            "aggregate",
        ),
        (
            "source = \"plays\"",
            "source = \"songs\"",
            "/hours/job.toml:3: ",
            "songs",
        ),
        ("\"both\"", "\"none\"", "/hours/job.toml:4: ", "speed"),
        ("[\"owner_id\"]", "[]", "/hours/job.toml:5: ", "group"),
        (
            "[\"owner_id\"]",
            "[\"owner\"]",
            "/hours/job.toml:5: ",
            "owner_id",
        ),
        ("[\"owner_id\"]", "[\"at\"]", "/hours/job.toml:5: ", "key"),
        ("\"hour\"", "\"minute\"", "/hours/job.toml:6: ", "quarter"),
        (
            "partition = \"day\"",
            "partition = \"hour\"",
            "/hours/job.toml:7: ",
            "day",
        ),
        (
            "[\"kind\"]",
            "[\"kind\", \"owner_id\"]",
            "/hours/job.toml:8: ",
            "twice",
        ),
        (
            "dimensions = [\"kind\"]",
            "dimensions = [\"kind\"]\ncolour = 1",
            "/hours/job.toml:9: ",
            "colour",
        ),
        ("metric = \"plays\"\n", "", "/hours/job.toml:1: ", "metric"),
        ("\"both\"", "\"both", "/hours/job.toml:4: ", ""),
        (
            "layers",
            "over = \"nothing\"\nlayers",
            "/hours/job.toml:4: ",
            "nothing",
        ),
    ] {
        assert!(DEFINITION.contains(from), "{from}");
        let message = message_for(&DEFINITION.replacen(from, to, 1), SQL);
        assert!(
            message.starts_with(position) && message.contains(word),
            "{to}: {message}"
        );
    }
}

#[test]
fn an_invalid_query_is_reported_with_its_file() {
    for (from, to, word) in [
        ("sum(amount)", "sum(amunt)", "amunt"),
        ("FROM plays", "FROM songs", "songs"),
        ("SELECT", "SELEKT", ""),
        ("AS bucket", "AS hour", "bucket"),
        ("sum(amount) AS count", "sum(amount) AS n", "count"),
        (", kind, sum", ", nullif(kind, 'play') AS kind, sum", "kind"),
    ] {
        assert!(SQL.contains(from), "{from}");
        let message = message_for(DEFINITION, &SQL.replacen(from, to, 1));
        assert!(
            message.starts_with("/hours/query.sql:") && message.contains(word),
            "{to}: {message}"
        );
    }
    let message = message_for(DEFINITION, "DROP TABLE plays");
    assert!(message.starts_with("/hours/query.sql:"), "{message}");
}

#[test]
fn served_boards_need_unique_names() {
    let root = tempfile::tempdir().unwrap();
    let definition = "kind = \"board\"\nboard = \"routes\"\nsource = \"efforts\"\nlayers = \"both\"
key = \"segment_id\"\nmember = \"athlete_id\"\n";
    let sql = "SELECT DISTINCT segment_id, athlete_id FROM efforts";
    write_view(root.path(), "first", definition, sql);
    write_view(root.path(), "second", definition, sql);
    let error = Catalog::read(root.path()).unwrap_err().to_string();
    assert!(
        error.contains("second/job.toml:2: board: job \"first\""),
        "{error}"
    );
    let definition = definition.replace("both", "batch");
    write_view(root.path(), "second", &definition, sql);
    assert_eq!(Catalog::read(root.path()).unwrap().boards().len(), 2);
}

#[test]
fn columns_must_not_have_names_of_response_fields() {
    for name in ["rank", "total", "previous_rank", "change"] {
        let definition = format!(
            "kind = \"board\"\nboard = \"routes\"\nsource = \"efforts\"\nlayers = \"both\"
key = \"segment_id\"\nmember = \"athlete_id\"\nscore = [\"{name}\"]\n"
        );
        let sql = format!(
            "SELECT segment_id, athlete_id, min(elapsed_time) AS {name} FROM efforts GROUP BY 1, 2"
        );
        let message = message_for(&definition, &sql);
        assert!(
            message.starts_with("/hours/job.toml:7: ") && message.contains(name),
            "{message}"
        );
        let other = (definition.replace(name, "best"), sql.replace(name, "best"));
        let root = tempfile::tempdir().unwrap();
        write_view(root.path(), "hours", &other.0, &other.1);
        assert!(Catalog::read(root.path()).is_ok(), "{name}");
    }
}

/// Custom views may read built-in views.
#[test]
fn custom_views_are_added_to_built_in_views() {
    let root = tempfile::tempdir().unwrap();
    write_view(root.path(), "hours_of_mine", DEFINITION, SQL);
    let over = DEFINITION.replace(
        "layers = \"both\"",
        "over = \"plays_detail\"\nlayers = \"batch\"",
    );
    let sql = SQL
        .replace("FROM plays", "FROM plays_detail")
        .replace("at)", "bucket)")
        .replace("amount", "count");
    write_view(root.path(), "rolled_up", &over, &sql);
    std::fs::create_dir(root.path().join(".hidden")).unwrap();
    std::fs::write(root.path().join("README.md"), "mine").unwrap();
    let (all, built_in) = (
        Catalog::with_custom_views(root.path()).unwrap(),
        Catalog::built_in().unwrap(),
    );
    assert_eq!(all.jobs().len(), built_in.jobs().len() + 2);
    assert_eq!(all.boards().len(), built_in.boards().len());
    for job in built_in.jobs() {
        assert_eq!(all.job(job.name()).unwrap().view(), job.view());
    }
    let error_for = |name: &str| {
        let root = tempfile::tempdir().unwrap();
        write_view(root.path(), name, DEFINITION, SQL);
        let error = Catalog::with_custom_views(root.path())
            .unwrap_err()
            .to_string();
        assert!(error.contains(&format!("{name}/job.toml:1: ")), "{error}");
        error
    };
    assert!(error_for("plays_detail").contains("built-in"));
    for name in ["Hours", "1st", "my-hours", "_hours", &"h".repeat(49)] {
        assert!(error_for(name).contains("lower-case"), "{name}");
    }
    let nowhere = root.path().join("nowhere");
    let error = Catalog::with_custom_views(&nowhere)
        .unwrap_err()
        .to_string();
    assert!(error.contains("nowhere"), "{error}");
}

#[test]
fn a_missing_file_is_reported() {
    let root = tempfile::tempdir().unwrap();
    std::fs::create_dir(root.path().join("empty")).unwrap();
    let error = Catalog::read(root.path()).unwrap_err().to_string();
    assert!(error.contains("empty/job.toml: No such file"), "{error}");
    assert!(error.contains("views_dir names a folder"), "{error}");
}

/// The version follows the definition, the query and the job that is read, but not comments.
#[test]
fn the_version_ignores_comments_only() {
    let view = |definition: &str, sql: &str| {
        let root = tempfile::tempdir().unwrap();
        write_view(root.path(), "hours", definition, sql);
        Catalog::read(root.path()).unwrap().jobs()[0]
            .view()
            .to_owned()
    };
    let version = view(DEFINITION, SQL);
    assert_eq!(
        version,
        view(
            &format!("# a comment\n\n{DEFINITION}"),
            &format!("-- another\n{SQL}")
        )
    );
    assert_ne!(
        version,
        view(
            &DEFINITION.replace("partition = \"day\"", "partition = \"month\""),
            SQL
        )
    );
    assert_ne!(
        version,
        view(DEFINITION, &SQL.replace("sum(amount)", "sum(amount + 0)"))
    );
}

/// The earlier name of aggregates is still valid, and both names give the version that it had.
#[test]
fn the_kind_tally_is_an_alias_with_the_same_version() {
    let view = |kind: &str| {
        let root = tempfile::tempdir().unwrap();
        let definition = DEFINITION.replace("kind = \"aggregate\"", kind);
        write_view(root.path(), "hours", &definition, SQL);
        Catalog::read(root.path()).unwrap().jobs()[0]
            .view()
            .to_owned()
    };
    let former = view("kind = \"tally\"");
    assert_eq!(view("kind = \"aggregate\""), former);
    assert_eq!(
        view("kind= \"aggregate\" # counts"),
        view("kind= \"tally\" # counts")
    );
    assert_eq!(view("kind = 'aggregate'"), view("kind = 'tally'"));
}

/// The section `[history]` does not change a board's version, at any position. Errors name the
/// reason.
#[test]
fn daily_counts_are_not_part_of_the_version() {
    const BOARD: &str =
        "kind = \"board\"\nboard = \"routes\"\nsource = \"efforts\"\nlayers = \"both\"
key = \"segment_id\"\nmember = \"athlete_id\"\nscore = [\"elapsed_time\"]\n";
    const ACHIEVED: &str = "[achievements]\noverall = []\n";
    const HISTORY: &str = "[history] # of days\ncounts = \"day\"\n";
    let sql = "SELECT segment_id, athlete_id, min(elapsed_time) AS elapsed_time, 1 AS division
FROM efforts GROUP BY segment_id, athlete_id";
    let read = |definition: &str| {
        let root = tempfile::tempdir().unwrap();
        write_view(root.path(), "routes", definition, sql);
        let catalog = Catalog::read(root.path()).map_err(|error| error.to_string())?;
        Ok::<_, String>(Arc::clone(&catalog.boards()[0]))
    };
    let without = read(&format!("{BOARD}{ACHIEVED}")).unwrap();
    assert!(!without.records_daily_counts());
    for order in [[BOARD, HISTORY, ACHIEVED], [BOARD, ACHIEVED, HISTORY]] {
        let with = read(&order.concat()).unwrap();
        assert!(with.records_daily_counts());
        assert_eq!(with.view(), without.view());
    }
    for (definition, words) in [
        (format!("{BOARD}[history]\n"), "counts"),
        (
            format!("{BOARD}[history]\ncounts = \"hour\"\n"),
            "job.toml:9: counts: expected \"day\"",
        ),
        (format!("{BOARD}[history]\ncounts = \"day\"\nx = 1\n"), "x"),
        (
            format!("{BOARD}history = {{ counts = \"day\" }}\n"),
            "a separate section",
        ),
        (
            format!("{BOARD}boards = [\"division\"]\n{HISTORY}"),
            "has no single count",
        ),
        (
            format!("{BOARD}{HISTORY}").replace("both", "speed"),
            "batch runs record it",
        ),
    ] {
        let message = read(&definition).unwrap_err();
        assert!(message.contains(words), "{definition}: {message}");
    }
}

/// Counting classes do not change a view's version. Errors name the line.
#[test]
fn counting_classes_are_not_part_of_the_version() {
    const BOARD: &str =
        "kind = \"board\"\nboard = \"applications\"\nsource = \"authorizations\"\nlayers = \"both\"
key = \"application_id\"\nmember = \"athlete_id\"\n";
    const CLASS: &str = "[[counting]] # of large ones
class = \"large\"
strategy = \"recount\"
capacity_from = 10000
large_size = 1000
events_per_athlete_per_day = 1
recounts_per_day = 24
";
    const EXACT: &str =
        "[[counting]]\nclass = \"exact\"\nstrategy = \"increments\"\napplications = [7]\n";
    let sql = "SELECT DISTINCT application_id, athlete_id FROM authorizations";
    let read = |definition: &str| {
        let root = tempfile::tempdir().unwrap();
        write_view(root.path(), "connected", definition, sql);
        Catalog::read(root.path()).map_err(|error| error.to_string())
    };
    let without = read(BOARD).unwrap();
    assert!(!without.counting().has_recount_class());
    let with = read(&[BOARD, EXACT, CLASS].concat()).unwrap();
    assert_eq!(with.boards()[0].view(), without.boards()[0].view());
    assert!(with.counting().find_policy(1, 10_000).is_some());
    assert!(with.counting().find_policy(7, 10_000).is_none());
    let other = without.clone().with_counting(&with.counting());
    assert_eq!(other.counting(), with.counting());
    assert!(!without.counting().has_recount_class());

    for (from, to, words) in [
        (
            "\"recount\"",
            "\"sum\"",
            "job.toml:9: counting: strategy: expected",
        ),
        (
            "= 1000\n",
            "= -1\n",
            "job.toml:11: counting: large_size: expected",
        ),
        (
            "day = 24",
            "day = 0",
            "job.toml:13: counting: recounts_per_day: expected",
        ),
        ("day = 1\n", "day = \"1\"\n", "job.toml:12: "),
        ("capacity_from", "capacity_up", "job.toml:10: "),
        ("[[counting]] # of large ones", "[counting]", "job.toml:7: "),
    ] {
        let text = [BOARD, CLASS].concat();
        assert!(text.contains(from), "{from}");
        let message = read(&text.replacen(from, to, 1)).unwrap_err();
        assert!(message.contains(words), "{to}: {message}");
    }
    for (text, words) in [
        (
            format!(
                "{BOARD}counting = [{{ class = \"a\", strategy = \"increments\", applications = [1] }}]\n"
            ),
            "separate sections",
        ),
        (
            format!("{BOARD}{CLASS}").replace("\"both\"", "\"batch\""),
            "need layers",
        ),
    ] {
        let message = read(&text).unwrap_err();
        assert!(message.contains(words), "{message}");
    }
}
