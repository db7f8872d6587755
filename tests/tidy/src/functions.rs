//! The length of functions: each fits a screen.

use proc_macro2::Span;
use syn::spanned::Spanned;
use syn::visit::{self, Visit};
use syn::{Attribute, ImplItemFn, ItemFn, ItemMod, Signature, TraitItemFn};

use crate::Problem;

/// Lines from the signature to the closing brace.
const MAX_LINES: usize = 70;

/// Checks the functions of one source file, reported as `path`. Code that is compiled for
/// tests only may be longer.
///
/// # Errors
/// A file that is no Rust.
pub fn check(path: &str, source: &str) -> Result<Vec<Problem>, Problem> {
    let file = syn::parse_file(source).map_err(|error| format!("{path}: {error}"))?;
    let mut found = Functions {
        path,
        problems: Vec::new(),
    };
    found.visit_file(&file);
    Ok(found.problems)
}

struct Functions<'a> {
    path: &'a str,
    problems: Vec<Problem>,
}

impl Functions<'_> {
    fn measure(&mut self, signature: &Signature, end: Span) {
        let first = signature.span().start().line;
        let lines = end.end().line - first + 1;
        if lines > MAX_LINES {
            self.problems.push(format!(
                "{}:{first}: fn {} has {lines} lines, at most {MAX_LINES}; divide it",
                self.path, signature.ident
            ));
        }
    }
}

impl<'ast> Visit<'ast> for Functions<'_> {
    fn visit_item_mod(&mut self, module: &'ast ItemMod) {
        if !is_for_tests(&module.attrs) {
            visit::visit_item_mod(self, module);
        }
    }

    fn visit_item_fn(&mut self, function: &'ast ItemFn) {
        if !is_for_tests(&function.attrs) {
            self.measure(&function.sig, function.block.span());
            visit::visit_item_fn(self, function);
        }
    }

    fn visit_impl_item_fn(&mut self, function: &'ast ImplItemFn) {
        if !is_for_tests(&function.attrs) {
            self.measure(&function.sig, function.block.span());
            visit::visit_impl_item_fn(self, function);
        }
    }

    fn visit_trait_item_fn(&mut self, function: &'ast TraitItemFn) {
        if let Some(block) = &function.default {
            self.measure(&function.sig, block.span());
        }
        visit::visit_trait_item_fn(self, function);
    }
}

/// Whether there is a `#[cfg(test)]` or a `#[test]`.
fn is_for_tests(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|attribute| {
        attribute.path().is_ident("test")
            || (attribute.path().is_ident("cfg")
                && attribute
                    .parse_args::<syn::Path>()
                    .is_ok_and(|path| path.is_ident("test")))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A function with this number of lines.
    fn function(lines: usize) -> String {
        format!("fn long() {{\n{}}}\n", "    f();\n".repeat(lines - 2))
    }

    fn problems(source: &str) -> Vec<Problem> {
        check("a.rs", source).unwrap()
    }

    #[test]
    fn function_at_the_limit_passes() {
        assert!(problems(&function(MAX_LINES)).is_empty());
        let documented = format!("{}{}", "/// Text.\n".repeat(80), function(MAX_LINES));
        assert!(problems(&documented).is_empty());
    }

    #[test]
    fn longer_functions_are_reported_in_any_item() {
        let long = function(MAX_LINES + 1);
        for (source, line) in [
            (long.clone(), 1),
            (format!("impl A {{\n{long}}}\n"), 2),
            (format!("trait A {{\n{long}}}\n"), 2),
            (format!("mod a {{\n\n{long}}}\n"), 3),
        ] {
            let found = problems(&source);
            let expected = format!("a.rs:{line}: fn long has 71 lines");
            assert!(
                found.len() == 1 && found[0].starts_with(&expected),
                "{found:?}"
            );
        }
    }

    #[test]
    fn tests_may_be_longer() {
        let long = function(MAX_LINES + 1);
        for source in [
            format!("#[test]\n{long}"),
            format!("#[cfg(test)]\nmod tests {{\n{long}}}\n"),
        ] {
            assert!(problems(&source).is_empty());
        }
    }
}
