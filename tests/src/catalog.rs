//! Catalogs with more views than the built-in ones, as of a newer build.

use std::path::Path;

use jobs::Catalog;

/// Builds a catalog of the built-in views and `more`, each given by its folder name, definition and
/// query. A view with the name of a built-in one replaces it.
///
/// # Panics
/// If a folder cannot be written or a definition is invalid.
#[must_use]
pub fn catalog_with(more: &[(&str, &str, &str)]) -> Catalog {
    let views = Path::new(env!("CARGO_MANIFEST_DIR")).join("../jobs/views");
    let folder = tempfile::tempdir().expect("a folder");
    for view in std::fs::read_dir(views).expect("the views").flatten() {
        let text = |file: &str| std::fs::read_to_string(view.path().join(file)).expect("a file");
        let (definition, query) = (text("job.toml"), text("query.sql"));
        write(&folder.path().join(view.file_name()), &definition, &query);
    }
    for (name, definition, query) in more {
        write(&folder.path().join(name), definition, query);
    }
    Catalog::read(folder.path()).expect("the views")
}

fn write(folder: &Path, definition: &str, query: &str) {
    std::fs::create_dir_all(folder).expect("a folder");
    std::fs::write(folder.join("job.toml"), definition).expect("a definition");
    std::fs::write(folder.join("query.sql"), query).expect("a query");
}
