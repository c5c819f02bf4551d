use std::io::Write;

use jobs::counting::CountingSection;

use super::*;

fn variables(pairs: &[(&str, &str)]) -> std::vec::IntoIter<(String, String)> {
    pairs
        .iter()
        .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
        .collect::<Vec<_>>()
        .into_iter()
}

fn write_file(text: &str) -> tempfile::NamedTempFile {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(text.as_bytes()).unwrap();
    file
}

fn load_error(text: Option<&str>, pairs: &[(&str, &str)], flags: &Flags) -> String {
    let file = text.map(write_file);
    let error = load(file.as_ref().map(|f| f.path()), variables(pairs), flags).unwrap_err();
    assert!(error.is::<crate::failure::UsageError>());
    match file {
        Some(file) => error
            .to_string()
            .replace(&file.path().display().to_string(), "FILE"),
        None => error.to_string(),
    }
}

#[test]
fn later_origins_win() {
    let file = write_file("data_dir = \"/a\"\n[log]\npartitions = 2\n[speed]\nrecords_max = 7\n");
    let env = [
        ("BACKSTITCH__LOG__PARTITIONS", "3"),
        ("BACKSTITCH__DATA_DIR", "/b"),
        ("OTHER", "x"),
    ];
    let flags = Flags::from([("data_dir", Value::from("/c"))]);
    let loaded = load(Some(file.path()), variables(&env), &flags).unwrap();
    assert_eq!(loaded.settings.data_dir, Path::new("/c"));
    assert_eq!(loaded.settings.log.partitions, 3);
    assert_eq!(loaded.settings.speed.records_max, 7);
    assert_eq!(loaded.origins["data_dir"], "--data-dir");
    assert_eq!(
        loaded.origins["log.partitions"],
        "environment variable BACKSTITCH__LOG__PARTITIONS"
    );
    assert!(loaded.origins["speed.records_max"].ends_with(":5"));
    assert!(!loaded.is_set("query.threads"));
}

#[test]
fn unknown_keys_are_rejected_with_their_origin() {
    let none = Flags::new();
    assert!(
        load_error(Some("\n[log]\npartition = 2\n"), &[], &none).starts_with(
            "FILE:3: unknown setting \"log.partition\"; known settings: log.partitions"
        )
    );
    assert!(
        load_error(Some("[kafka]\nx = 2\n"), &[], &none).starts_with("FILE:2: unknown setting")
    );
}

#[test]
fn variables_that_nearly_name_a_setting_are_warned_about() {
    let warnings = |name: &str| {
        let loaded = load(None, variables(&[(name, "271828")]), &Flags::new()).unwrap();
        assert!(loaded.origins.is_empty(), "{name}");
        loaded.warnings
    };
    for (name, expected) in [
        (
            "BACKSTITCH__LOG__PARTITION",
            "did you mean BACKSTITCH__LOG__PARTITIONS?",
        ),
        (
            "BACKSTITCH__LOGS__PARTITIONS",
            "did you mean BACKSTITCH__LOG__PARTITIONS?",
        ),
        (
            "BACKSTITCH__REDIS__PASSWORD_FILES",
            "did you mean BACKSTITCH__REDIS__PASSWORD_FILE?",
        ),
        (
            "BACKSTITCH__DATA_DIRS",
            "did you mean BACKSTITCH__DATA_DIR?",
        ),
        ("BACKSTITCH__LOG__SIZE", "lists the settings of log"),
        (
            "BACKSTITCH__REDIS__PASSWORD__X",
            "did you mean BACKSTITCH__REDIS__PASSWORD?",
        ),
    ] {
        let warnings = warnings(name);
        assert_eq!(warnings.len(), 1, "{name}");
        assert!(warnings[0].ends_with(expected), "{}", warnings[0]);
        assert!(warnings[0].starts_with(&format!("environment variable {name} ")));
        assert!(!warnings[0].contains("271828"));
    }
    for name in [
        "BACKSTITCH__OPERATOR_VERSION",
        "BACKSTITCH__CI__JOB",
        "BACKSTITCH_LOG",
    ] {
        assert_eq!(warnings(name), Vec::<String>::new(), "{name}");
    }
}

#[test]
fn invalid_values_are_rejected_with_their_origin() {
    let none = Flags::new();
    for (text, expected) in [
        (
            "[log]\npartitions = \"many\"",
            "FILE:2: log.partitions: the value must be an integer",
        ),
        (
            "[log]\npartitions = -1",
            "FILE:2: log.partitions: the value must be an integer from 0 to",
        ),
        (
            "[log]\npartitions = 1.5",
            "FILE:2: log.partitions: the value must be an integer",
        ),
        (
            "[log]\npartitions = 0",
            "FILE:2: log.partitions: 0 is out of range; expected 1 to 1024",
        ),
        (
            "[query]\nmemory_bytes = 5",
            "FILE:2: query.memory_bytes: 5 is out of range; expected at least 67108864",
        ),
        (
            "[speed]\nlook_interval_ms = 0",
            "FILE:2: speed.look_interval_ms: 0 is out of range; expected 1 to",
        ),
        (
            "[telemetry]\nlog_format = \"xml\"",
            "FILE:2: telemetry.log_format: the value must be",
        ),
        ("log = 3", "FILE:1: unknown setting \"log\""),
        ("\nx = [", "FILE:2:6: "),
    ] {
        let error = load_error(Some(text), &[], &none);
        assert!(error.starts_with(expected), "{error}");
        assert!(!error.contains('\n'));
    }
    assert!(
        load_error(None, &[("BACKSTITCH__LOG__PARTITIONS", "many")], &none)
            .starts_with("environment variable BACKSTITCH__LOG__PARTITIONS: log.partitions: ")
    );
    let missing = load(Some(Path::new("/nowhere.toml")), variables(&[]), &none).unwrap_err();
    assert!(missing.to_string().starts_with("--config /nowhere.toml: "));
}

#[test]
fn printed_settings_can_be_read_again() {
    let loaded = load(None, variables(&[]), &Flags::new()).unwrap();
    let text = loaded.effective_settings().unwrap().to_toml();
    assert!(text.contains("partitions = 4  # default"), "{text}");
    let file = write_file(&text);
    let again = load(Some(file.path()), variables(&[]), &Flags::new()).unwrap();
    assert_eq!(
        serde_json::to_value(&again.settings).unwrap(),
        serde_json::to_value(&loaded.settings).unwrap()
    );
}

const CLASSES: &str = "[applications]
[[applications.counting]]
class = \"exact\"
strategy = \"increments\"
applications = [7]

[[applications.counting]]
class = \"large\"
strategy = \"recount\"
capacity_from = 10000
large_size = 1000
events_per_athlete_per_day = 0.2
recounts_per_day = 24
";

#[test]
fn classes_of_applications_are_read_and_shown() {
    let classes = write_file(CLASSES);
    let loaded = load(Some(classes.path()), variables(&[]), &Flags::new()).unwrap();
    let classes_of = |loaded: &Loaded| {
        loaded
            .settings
            .applications
            .parse_counting()
            .unwrap()
            .unwrap()
    };
    assert!(classes_of(&loaded).find_policy(1, 10_000).is_some());
    assert!(classes_of(&loaded).find_policy(7, 10_000).is_none());
    assert_eq!(loaded.count_set(), 1);
    assert!(loaded.origins["applications.counting"].ends_with(":2"));
    let printed = write_file(&loaded.effective_settings().unwrap().to_toml());
    let again = load(Some(printed.path()), variables(&[]), &Flags::new()).unwrap();
    assert_eq!(classes_of(&again), classes_of(&loaded));
    let json = "[{\"class\": \"a\", \"strategy\": \"increments\", \"capacity_from\": 0}]";
    let variable = [("BACKSTITCH__APPLICATIONS__COUNTING", json)];
    let overridden = load(Some(classes.path()), variables(&variable), &Flags::new()).unwrap();
    assert_eq!(
        classes_of(&overridden).find_class(1, 1).unwrap().name(),
        "a"
    );
    let none = load(None, variables(&[]), &Flags::new()).unwrap();
    assert!(
        none.settings
            .applications
            .parse_counting()
            .unwrap()
            .is_none()
    );
}

/// The schema is written by hand: it has every field, and no other.
#[test]
fn the_schema_has_every_field_of_a_class() {
    let section = CountingSection {
        capacity_from: Some(1),
        applications: vec![1],
        large_size: Some(1),
        events_per_athlete_per_day: Some(1.0),
        recounts_per_day: Some(1),
        ..CountingSection::default()
    };
    let section = serde_json::to_value(section).unwrap();
    let schema = serde_json::to_value(crate::settings::build_schema()).unwrap();
    let pointer = "/$defs/ApplicationsSection/properties/counting/items/properties";
    let described = schema.pointer(pointer).unwrap();
    let names = |value: &Value| {
        value
            .as_object()
            .unwrap()
            .keys()
            .cloned()
            .collect::<Vec<_>>()
    };
    assert_eq!(names(described), names(&section));
}

#[test]
fn invalid_classes_are_rejected_with_file_and_line() {
    for (from, to, expected) in [
        (
            "\"recount\"",
            "\"sum\"",
            "FILE:9: applications.counting[1].strategy: expected",
        ),
        (
            "day = 24",
            "day = 0",
            "FILE:13: applications.counting[1].recounts_per_day: expected 1 to",
        ),
        (
            "size = 1000",
            "size = \"x\"",
            "FILE:11: applications.counting[1].large_size: the value must be",
        ),
        (
            "[7]",
            "[7]\nlarge_size = 1",
            "FILE:6: applications.counting[0].large_size: applies only to strategy",
        ),
        (
            "capacity_from",
            "capacity_up",
            "FILE:10: applications.counting[1].capacity_up: the field capacity_up is unknown",
        ),
        (
            "class = \"large\"\n",
            "",
            "FILE:7: applications.counting[1]: the required field class is missing",
        ),
        (
            "applications = [7]\n",
            "",
            "FILE:3: applications.counting[0].class: the class needs",
        ),
        (
            "[7]",
            "[7,\n\"x\"]",
            "FILE:6: applications.counting[0].applications[1]: the value must be",
        ),
        (
            "0.2",
            "nan",
            "FILE:12: applications.counting[1].events_per_athlete_per_day: expected a finite number",
        ),
        (
            "large_size = 1000\n",
            "",
            "FILE:7: applications.counting[1].large_size: strategy",
        ),
    ] {
        assert!(CLASSES.contains(from), "{from}");
        let error = load_error(Some(&CLASSES.replacen(from, to, 1)), &[], &Flags::new());
        assert!(error.starts_with(expected), "{error}");
    }
    let single = "[applications.counting]\nclass = \"a\"\n";
    let error = load_error(Some(single), &[], &Flags::new());
    assert!(
        error.starts_with(
            "FILE:2: applications.counting is a list; write [[applications.counting]]"
        ),
        "{error}"
    );
    let broken = [("BACKSTITCH__APPLICATIONS__COUNTING", "[{\"class\": \"a\",")];
    let error = load_error(None, &broken, &Flags::new());
    assert!(
        error.contains("COUNTING: applications.counting: expected a JSON list: not JSON: "),
        "{error}"
    );
}

#[test]
fn the_schema_has_every_setting() {
    let schema = serde_json::to_string(&crate::settings::build_schema()).unwrap();
    let defaults = flatten_settings(&Settings::default()).unwrap();
    for key in defaults.keys() {
        let name = key.rsplit('.').next().unwrap();
        assert!(schema.contains(&format!("\"{name}\":{{")), "{key}");
    }
}

#[test]
fn secrets_come_from_files_and_are_never_shown() {
    for secret in SECRETS {
        let file = write_file("open sesame, open sesame, open sesame\n");
        let path = file.path().display().to_string();
        let name = format!(
            "BACKSTITCH__{}_FILE",
            secret.replace('.', "__").to_uppercase()
        );
        let loaded = load(None, variables(&[(&name, &path)]), &Flags::new()).unwrap();
        assert_eq!(
            loaded.origins[secret],
            format!("environment variable {name} ({path})")
        );
        let printed = loaded.effective_settings().unwrap().to_toml();
        assert!(printed.contains("(hidden)"), "{secret}: {printed}");
        assert!(!format!("{printed}{:?}", loaded.settings).contains("sesame"));
        let error = load_error(None, &[(&name, "/nowhere")], &Flags::new());
        assert!(
            error.starts_with(&format!("environment variable {name}: {secret}_file: "))
                && error.contains("No such file"),
            "{error}"
        );
    }
    let loaded = load(
        None,
        variables(&[("BACKSTITCH__S3__SECRET_ACCESS_KEY", "open sesame")]),
        &Flags::new(),
    );
    assert_eq!(
        loaded.unwrap().settings.s3.secret_access_key.reveal(),
        "open sesame"
    );
}

/// An error about an invalid secret names its origin and does not contain it.
#[test]
fn errors_do_not_contain_secrets() {
    const SECRET: &str = "271828182";
    const FORMS: [&str; 22] = [
        "KEY = hunter271828182",
        "KEY = 271828182hunter",
        "KEY = 271828182",
        "KEY = 27182818271828182718281828",
        "KEY = 2.271828182",
        "KEY = 1e271828182",
        "KEY = -271828182",
        "KEY = 0x271828182",
        "KEY = 271828182:00",
        "KEY = [\"271828182\"]",
        "KEY = [271828182]",
        "KEY = { \"271828182\" = 1 }",
        "KEY = { x = \"271828182\" }",
        "KEY = \"271828182",
        "KEY = '271828182",
        "KEY = \"\"\"271828182",
        "KEY = \"\\q271828182\"",
        "KEY = \"271828182\"271828182\"",
        "KEY \"271828182\"",
        "KEY: 271828182",
        "KEY = \"271828182\"\nKEY = \"271828182\"",
        "KEY.x = 271828182",
    ];
    for secret in SECRETS {
        let (section, key) = secret.split_once('.').unwrap();
        for key in [key.to_owned(), format!("{key}_file")] {
            for form in FORMS {
                let text = format!("[{section}]\n{}\n", form.replace("KEY", &key));
                let error = load_error(Some(&text), &[], &Flags::new());
                assert!(!error.contains(SECRET), "{text}{error}");
                assert!(error.starts_with("FILE:"), "{text}{error}");
            }
        }
        let error = load_error(
            Some(&format!("[{section}]\n{key} = 271828182")),
            &[],
            &Flags::new(),
        );
        assert!(
            error.starts_with(&format!("FILE:2: {secret}: expected a text")),
            "{error}"
        );
        let text = format!("[{section}]\n{key}_file = \"271828182\"");
        let error = load_error(Some(&text), &[], &Flags::new());
        assert!(!error.contains(SECRET), "{error}");
    }
}

/// The same holds for environment variables, also for those that are not a setting.
#[test]
fn messages_about_variables_do_not_contain_secrets() {
    const SECRET: &str = "271828182";
    for secret in SECRETS {
        let (section, _) = secret.split_once('.').unwrap();
        let name = format!("BACKSTITCH__{}", secret.replace('.', "__").to_uppercase());
        for name in [
            format!("{name}_FILE"),
            format!("{name}__X"),
            format!("{name}_FILE__X"),
            format!("{name}_"),
            format!("BACKSTITCH__{}", section.to_uppercase()),
        ] {
            // A variable that is not a setting causes a warning or nothing.
            let load_message = |pairs: &[(&str, &str)]| {
                load(None, variables(pairs), &Flags::new()).map_or_else(
                    |error| error.to_string(),
                    |loaded| loaded.warnings.join("\n"),
                )
            };
            let message = load_message(&[(&name, SECRET)]);
            assert!(!message.contains(SECRET), "{name}: {message}");
            assert!(
                message.is_empty() || message.contains(&name),
                "{name}: {message}"
            );
            let pairs = [
                (name.as_str(), SECRET),
                ("BACKSTITCH__LOG__PARTITIONS", "x"),
            ];
            let error = load_error(None, &pairs, &Flags::new());
            assert!(!error.contains(SECRET), "{name}: {error}");
        }
        // From the environment a number is a text.
        let long = SECRET.repeat(4);
        let loaded = load(None, variables(&[(&name, &long)]), &Flags::new()).unwrap();
        let printed = loaded.effective_settings().unwrap().to_toml();
        assert!(!printed.contains(SECRET), "{printed}");
    }
}

#[test]
fn invalid_namespaces_are_rejected() {
    let error = load_error(Some("namespace = \"A b\"\n"), &[], &Flags::new());
    assert!(
        error.starts_with("FILE:1: namespace: \"A b\" is not a valid namespace"),
        "{error}"
    );
}

#[test]
fn serving_options_are_checked() {
    let none = Flags::new();
    for (text, expected) in [
        (
            "[serving]\nsession_secret = \"too short\"\n",
            "FILE:2: serving.session_secret: 9 characters is invalid; set it to at least 32 random",
        ),
        (
            "[serving]\nrequests_max = 0\n",
            "FILE:2: serving.requests_max: 0 is invalid; set it to 1 or more",
        ),
        (
            "[serving]\ncors_origins = [\"app.example.org\"]\n",
            "FILE:2: serving.cors_origins: app.example.org is invalid; write each origin",
        ),
    ] {
        let error = load_error(Some(text), &[], &none);
        assert!(error.starts_with(expected), "{error}");
        assert!(!error.contains("too short"), "{error}");
    }
    let shortest = format!("[serving]\nsession_secret = \"{}\"\n", "x".repeat(32));
    let file = write_file(&shortest);
    load(Some(file.path()), variables(&[]), &none).unwrap();
}
