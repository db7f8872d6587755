//! Cycles of modules of a crate that import each other.
//!
//! Only modules directly below the root of a crate count. A module imports another one if a
//! path in it begins with `crate::`, or resolves to it by `super::`. A name that the root
//! re-exports counts as an import of the module of its definition. Code for tests may
//! import any module.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use syn::visit::{self, Visit};
use syn::{Attribute, Item, ItemFn, ItemImpl, ItemMod, ItemUse, UseTree};

use crate::Problem;

/// The imports of each module.
type Imports = BTreeMap<String, BTreeSet<String>>;

/// Checks the source files of the crate in `folder`: paths below its `src`, and texts.
///
/// # Errors
/// A file that is no Rust.
pub fn check(folder: &str, files: &[(String, String)]) -> Result<Vec<Problem>, Problem> {
    let shown = |cycle: BTreeSet<String>| Vec::from_iter(cycle).join(", ");
    let found = cycles(&imports(folder, files)?).into_iter().map(|cycle| {
        format!(
            "{folder}: these modules import each other in a cycle: {}; move what they share \
             into a module of its own",
            shown(cycle)
        )
    });
    Ok(found.collect())
}

/// The imports between the modules below the root.
fn imports(folder: &str, files: &[(String, String)]) -> Result<Imports, Problem> {
    let mut parsed = Vec::new();
    for (path, text) in files {
        let file = syn::parse_file(text).map_err(|error| format!("{folder}/{path}: {error}"))?;
        parsed.push((modules_of(path), file));
    }
    let root = parsed.iter().find(|(modules, _)| modules.is_empty());
    let passed_on = root.map_or_else(BTreeMap::new, |(_, root)| passed_on(&root.items));
    let for_tests: BTreeSet<String> = root
        .into_iter()
        .flat_map(|(_, root)| &root.items)
        .filter_map(|item| match item {
            Item::Mod(module) if is_for_tests(&module.attrs) => Some(module.ident.to_string()),
            _ => None,
        })
        .collect();
    let mut imports = Imports::new();
    for (modules, _) in &parsed {
        if let Some(module) = modules.first() {
            imports.entry(module.clone()).or_default();
        }
    }
    for (modules, file) in parsed {
        let Some(own) = modules.first().cloned() else {
            continue;
        };
        let is_test = |module: &String| module == "tests" || for_tests.contains(module);
        if modules.iter().any(is_test) {
            continue;
        }
        let mut paths = Paths {
            modules,
            found: BTreeSet::new(),
        };
        paths.visit_file(&file);
        for name in paths.found {
            let module = passed_on.get(&name).unwrap_or(&name);
            if *module != own && imports.contains_key(module) {
                imports
                    .entry(own.clone())
                    .or_default()
                    .insert(module.clone());
            }
        }
    }
    Ok(imports)
}

/// The modules that lead to the file: none to the root, `a` and `b` to `a/b.rs`.
fn modules_of(path: &str) -> Vec<String> {
    let path = Path::new(path).with_extension("");
    let names = path.components().map(|one| one.as_os_str());
    let names: Vec<_> = names
        .map(|one| one.to_string_lossy().into_owned())
        .collect();
    match names.split_last() {
        Some((last, [])) if ["lib", "main"].contains(&last.as_str()) => Vec::new(),
        Some((last, folders)) if last == "mod" => folders.to_vec(),
        _ => names,
    }
}

/// Names that the root takes from its modules, and from which.
fn passed_on(items: &[Item]) -> BTreeMap<String, String> {
    let mut found = BTreeMap::new();
    for item in items {
        let Item::Use(item) = item else {
            continue;
        };
        let mut all = Vec::new();
        flatten(&item.tree, &mut Vec::new(), &mut all);
        for path in all {
            let path: Vec<_> = path.iter().map(String::as_str).collect();
            match path.as_slice() {
                ["crate" | "self", module, .., name] | [module, .., name] => {
                    found.insert((*name).to_owned(), (*module).to_owned());
                }
                _ => {}
            }
        }
    }
    found
}

/// The paths of a tree of imports, one for each name.
fn flatten(tree: &UseTree, before: &mut Vec<String>, all: &mut Vec<Vec<String>>) {
    let mut name = |name: String| {
        let mut path = before.clone();
        path.push(name);
        all.push(path);
    };
    match tree {
        UseTree::Name(it) => name(it.ident.to_string()),
        UseTree::Rename(it) => name(it.ident.to_string()),
        UseTree::Glob(_) => name("*".to_owned()),
        UseTree::Group(group) => {
            for tree in &group.items {
                flatten(tree, before, all);
            }
        }
        UseTree::Path(path) => {
            before.push(path.ident.to_string());
            flatten(&path.tree, before, all);
            before.pop();
        }
    }
}

/// Gathers what paths of one file name right below the root.
struct Paths {
    /// Those that lead to the place that is looked at.
    modules: Vec<String>,
    found: BTreeSet<String>,
}

impl Paths {
    fn add(&mut self, path: &[String]) {
        let mut at = self.modules.as_slice();
        let mut names = path.iter().map(String::as_str);
        let first = match names.next() {
            Some("crate") => {
                at = &[];
                names.next()
            }
            Some("super") => {
                let mut name = Some("super");
                while name == Some("super") {
                    at = at.split_last().map_or(at, |(_, above)| above);
                    name = names.next();
                }
                name
            }
            _ => return,
        };
        if let (true, Some(name)) = (at.is_empty(), first) {
            self.found.insert(name.to_owned());
        }
    }
}

impl<'ast> Visit<'ast> for Paths {
    fn visit_item_mod(&mut self, module: &'ast ItemMod) {
        if !is_for_tests(&module.attrs) {
            self.modules.push(module.ident.to_string());
            visit::visit_item_mod(self, module);
            self.modules.pop();
        }
    }

    fn visit_item_fn(&mut self, function: &'ast ItemFn) {
        if !is_for_tests(&function.attrs) {
            visit::visit_item_fn(self, function);
        }
    }

    fn visit_item_impl(&mut self, block: &'ast ItemImpl) {
        if !is_for_tests(&block.attrs) {
            visit::visit_item_impl(self, block);
        }
    }

    fn visit_item_use(&mut self, item: &'ast ItemUse) {
        if is_for_tests(&item.attrs) {
            return;
        }
        let mut all = Vec::new();
        flatten(&item.tree, &mut Vec::new(), &mut all);
        for path in all {
            self.add(&path);
        }
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        let names = path.segments.iter().map(|one| one.ident.to_string());
        self.add(&names.collect::<Vec<_>>());
        visit::visit_path(self, path);
    }
}

/// Whether there is a `#[cfg(test)]`.
fn is_for_tests(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|attribute| {
        let is_test = |path: syn::Path| path.is_ident("test");
        attribute.path().is_ident("cfg") && attribute.parse_args().is_ok_and(is_test)
    })
}

/// The largest sets of modules of which each imports every other one, in however many
/// steps.
fn cycles(imports: &Imports) -> BTreeSet<BTreeSet<String>> {
    let reached = |from: &String| {
        let mut reached = BTreeSet::new();
        let mut next = vec![from];
        while let Some(one) = next.pop() {
            for to in imports.get(one).into_iter().flatten() {
                if reached.insert(to.clone()) {
                    next.push(to);
                }
            }
        }
        reached
    };
    let all: BTreeMap<_, _> = imports.keys().map(|one| (one, reached(one))).collect();
    let cycle_of = |(module, reached): (&&String, &BTreeSet<String>)| {
        let back = |to: &&String| all.get(to).is_some_and(|all| all.contains(*module));
        let cycle: BTreeSet<_> = reached.iter().filter(back).cloned().collect();
        (!cycle.is_empty()).then_some(cycle)
    };
    all.iter().filter_map(cycle_of).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problems(files: &[(&str, &str)]) -> Vec<Problem> {
        let owned = |(path, text): &(&str, &str)| ((*path).to_owned(), (*text).to_owned());
        let files: Vec<_> = files.iter().map(owned).collect();
        check("x", &files).unwrap()
    }

    fn refused(files: &[(&str, &str)], words: &str) {
        let found = problems(files);
        assert!(
            found.len() == 1 && found[0].contains(words),
            "{words}: {found:?}"
        );
    }

    #[test]
    fn acyclic_imports_pass() {
        let files = [
            ("lib.rs", "mod a; mod b; pub use a::A; pub use b::B;"),
            ("a.rs", "use crate::b::B; fn f() { super::b::g() }"),
            ("b/mod.rs", "mod c; use c::C; #[cfg(test)] mod tests;"),
            ("b/c.rs", "use super::D; use crate::b::E;"),
            ("b/tests.rs", "use crate::a::A;"),
        ];
        assert!(problems(&files).is_empty());
    }

    #[test]
    fn cycles_are_found_in_any_notation() {
        let lib = ("lib.rs", "mod a; mod b; mod c; pub use a::{A, x::Y};");
        for import in [
            "use crate::a::A;",
            "use crate::A;",
            "use crate::{Y, c::C};",
            "use super::a::{self, A};",
            "fn f() -> crate::A { g() }",
            "mod inner { use super::super::a; }",
        ] {
            refused(
                &[lib, ("a.rs", "use crate::b::B;"), ("b.rs", import)],
                "a, b;",
            );
        }
        let around = [
            lib,
            ("a.rs", "use crate::b::B;"),
            ("b/mod.rs", "mod d;"),
            ("b/d.rs", "use crate::c::C;"),
            ("c.rs", "use crate::a::A;"),
        ];
        refused(&around, "a, b, c;");
    }

    #[test]
    fn imports_of_tests_are_ignored() {
        let files = [
            ("lib.rs", "mod a; mod b; #[cfg(test)] mod testing;"),
            ("a.rs", "use crate::b::B;"),
            (
                "b.rs",
                "#[cfg(test)] mod tests { use crate::a::A; } #[cfg(test)] use crate::a;",
            ),
            ("testing.rs", "use crate::a::A;"),
        ];
        assert!(problems(&files).is_empty());
    }
}
