//! Tests that the files of a crate do not depend on each other in a cycle.
//!
//! A file depends on the file that defines a name which it imports, or names by a path of the crate. A re-export of a
//! child's names is no dependency of the parent.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use petgraph::algo::tarjan_scc;
use petgraph::graphmap::DiGraphMap;
use syn::visit::{self, Visit};
use syn::{Attribute, Item, UseTree, Visibility};

use crate::tidy::{find_sources, root};

const CRATES: [&str; 9] = [
    "schemas", "jobs", "stores", "speed", "batch", "serving", "scale", "showcase", "cli",
];
/// Files of each crate that may still be in cycles. These numbers only go down.
const ALLOWED: [(&str, usize); 0] = [];

/// The path of a module within its crate.
type Module = Vec<String>;

#[test]
fn files_do_not_depend_on_each_other_in_cycles() {
    let mut failures = Vec::new();
    for name in CRATES {
        let cycles = cycles(&Files::read(name).dependencies());
        let allowed = ALLOWED.iter().find(|(allowed, _)| *allowed == name);
        let count: usize = cycles.iter().map(Vec::len).sum();
        if count > allowed.map_or(0, |(_, count)| *count) {
            failures.push(format!("{name}: {count} files in {cycles:#?}"));
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

#[test]
fn cycles_are_found() {
    let files = Files::parse([
        (vec![], "mod a; mod b; mod c; pub use a::{A, Both};"),
        (
            vec!["a"],
            "use super::b::{self, B}; pub struct A(B); pub struct Both;",
        ),
        (vec!["b"], "use crate::c::C; pub struct B(C);"),
        (vec!["c"], "pub struct C; fn f() -> crate::A { todo!() }"),
        (
            vec!["d"],
            "use crate::Both; #[cfg(test)] mod tests { use super::super::e::E; }",
        ),
        (vec!["e"], "use crate::d::D;"),
    ]);
    let module = |name: &str| vec![name.to_owned()];
    assert_eq!(
        cycles(&files.dependencies()),
        [vec![module("a"), module("b"), module("c")]]
    );
}

/// The files of a crate, without test modules.
struct Files {
    modules: BTreeMap<Module, Names>,
}

/// Names that a file imports, re-exports, or uses by their path.
#[derive(Default)]
struct Names {
    paths: Vec<Vec<String>>,
    /// Path of each re-exported name.
    exports: BTreeMap<String, Vec<String>>,
}

impl Files {
    fn read(name: &str) -> Self {
        let folder = root().join(name).join("src");
        let mut paths = Vec::new();
        find_sources(&folder, &mut paths);
        let is_test = |path: &Path| {
            let text = path.to_string_lossy();
            text.ends_with("tests.rs") || text.contains("/tests/")
        };
        let files = paths.iter().filter(|path| !is_test(path)).map(|path| {
            let inner = path.strip_prefix(&folder).expect("a file of the crate");
            let mut module: Vec<String> = inner
                .with_extension("")
                .iter()
                .map(|part| part.to_string_lossy().into_owned())
                .collect();
            module.pop_if(|last| ["mod", "lib", "main"].contains(&last.as_str()));
            (
                module,
                std::fs::read_to_string(path).expect("a source file"),
            )
        });
        Self::from_texts(files)
    }

    fn parse<const N: usize>(files: [(Vec<&str>, &str); N]) -> Self {
        Self::from_texts(files.into_iter().map(|(module, text)| {
            let module = module.into_iter().map(str::to_owned).collect();
            (module, text.to_owned())
        }))
    }

    fn from_texts(files: impl Iterator<Item = (Module, String)>) -> Self {
        let modules = files.map(|(module, text)| {
            let file = syn::parse_file(&text).expect("Rust source");
            let mut names = Names::default();
            names.visit_file(&file);
            (module, names)
        });
        Self {
            modules: modules.collect(),
        }
    }

    fn dependencies(&self) -> BTreeMap<&Module, BTreeSet<&Module>> {
        let dependencies = self.modules.iter().map(|(module, names)| {
            let imports = names
                .paths
                .iter()
                .filter_map(|path| self.resolve(module, path));
            let exports = names
                .exports
                .values()
                .filter_map(|path| self.resolve(module, path));
            let exports = exports.filter(|export| !export.starts_with(module));
            let modules = imports.chain(exports).filter(|other| *other != module);
            (module, modules.collect())
        });
        dependencies.collect()
    }

    /// The file that defines the name at the end of a path, or `None` for a name of another crate.
    fn resolve(&self, from: &Module, path: &[String]) -> Option<&Module> {
        let mut remaining = path;
        let mut module = Module::new();
        match path.first()?.as_str() {
            "crate" => remaining = &path[1..],
            "self" => (module, remaining) = (from.clone(), &path[1..]),
            "super" => {
                module.clone_from(from);
                while remaining.first().is_some_and(|part| part == "super") {
                    module.pop();
                    remaining = &remaining[1..];
                }
            }
            first => {
                module.clone_from(from);
                module.push(first.to_owned());
                if !self.modules.contains_key(&module) {
                    return None;
                }
                remaining = &path[1..];
            }
        }
        while let Some((next, further)) = remaining.split_first() {
            module.push(next.clone());
            if !self.modules.contains_key(&module) {
                module.pop();
                break;
            }
            remaining = further;
        }
        let (module, names) = self.modules.get_key_value(&module)?;
        let export = remaining.first().and_then(|name| names.exports.get(name));
        // A re-export may only rename a path of another crate.
        let target = export.filter(|export| *export != path);
        target
            .and_then(|export| self.resolve(module, export))
            .or(Some(module))
    }
}

impl Names {
    fn add_use(&mut self, tree: &UseTree, prefix: &[String], is_export: bool) {
        let mut path = prefix.to_vec();
        match tree {
            UseTree::Path(inner) => {
                path.push(inner.ident.to_string());
                self.add_use(&inner.tree, &path, is_export);
            }
            UseTree::Group(group) => {
                for tree in &group.items {
                    self.add_use(tree, &path, is_export);
                }
            }
            UseTree::Name(name) => {
                if name.ident != "self" {
                    path.push(name.ident.to_string());
                }
                self.add_name(path.last().cloned().unwrap_or_default(), path, is_export);
            }
            UseTree::Rename(rename) => {
                path.push(rename.ident.to_string());
                self.add_name(rename.rename.to_string(), path, is_export);
            }
            UseTree::Glob(_) => self.paths.push(path),
        }
    }

    fn add_name(&mut self, name: String, path: Vec<String>, is_export: bool) {
        if is_export {
            self.exports.insert(name, path);
        } else {
            self.paths.push(path);
        }
    }
}

impl<'ast> Visit<'ast> for Names {
    fn visit_item(&mut self, item: &'ast Item) {
        match item {
            Item::Mod(module) if is_test(&module.attrs) => {}
            Item::Use(import) if is_test(&import.attrs) => {}
            Item::Use(import) => {
                let is_export = !matches!(import.vis, Visibility::Inherited);
                self.add_use(&import.tree, &[], is_export);
            }
            item => visit::visit_item(self, item),
        }
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        let parts: Vec<String> = path
            .segments
            .iter()
            .map(|segment| segment.ident.to_string())
            .collect();
        if parts.len() > 1 && ["crate", "super"].contains(&parts[0].as_str()) {
            self.paths.push(parts);
        }
        visit::visit_path(self, path);
    }
}

fn is_test(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|attribute| {
        let mut is_test = false;
        if attribute.path().is_ident("cfg") {
            // A name such as `unix` in the condition has no nested part.
            let _parsed = attribute.parse_nested_meta(|meta| {
                is_test |= meta.path.is_ident("test");
                Ok(())
            });
        }
        is_test
    })
}

/// Groups of several files that depend on each other.
fn cycles(dependencies: &BTreeMap<&Module, BTreeSet<&Module>>) -> Vec<Vec<Module>> {
    let edges = dependencies
        .iter()
        .flat_map(|(from, targets)| targets.iter().map(|to| (*from, *to)));
    let graph: DiGraphMap<&Module, ()> = edges.collect();
    let groups = tarjan_scc(&graph)
        .into_iter()
        .filter(|group| group.len() > 1);
    let mut cycles: Vec<Vec<Module>> = groups
        .map(|group| {
            let mut group: Vec<Module> = group.into_iter().cloned().collect();
            group.sort();
            group
        })
        .collect();
    cycles.sort();
    cycles
}
