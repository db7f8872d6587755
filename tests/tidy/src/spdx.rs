//! Licence expressions: whether permitted licences satisfy them.

/// Whether licences from `allowed` satisfy `expression` (SPDX, or the older `A/B`). An invalid
/// expression is not satisfied.
#[must_use]
pub fn is_met(expression: &str, allowed: &[&str]) -> bool {
    let spaced = expression
        .replace('/', " OR ")
        .replace('(', " ( ")
        .replace(')', " ) ");
    let words: Vec<&str> = spaced.split_whitespace().collect();
    let mut parser = Parser {
        words: &words,
        allowed,
    };
    parser.any() == Some(true) && parser.words.is_empty()
}

struct Parser<'a> {
    words: &'a [&'a str],
    allowed: &'a [&'a str],
}

impl<'a> Parser<'a> {
    /// `all (OR all)*`
    fn any(&mut self) -> Option<bool> {
        let mut met = self.all()?;
        while self.take("OR") {
            met |= self.all()?;
        }
        Some(met)
    }

    /// `one (AND one)*`, which has higher precedence.
    fn all(&mut self) -> Option<bool> {
        let mut met = self.one()?;
        while self.take("AND") {
            met &= self.one()?;
        }
        Some(met)
    }

    /// `( any )`, `licence` or `licence WITH exception`.
    fn one(&mut self) -> Option<bool> {
        if self.take("(") {
            let met = self.any()?;
            return self.take(")").then_some(met);
        }
        let licence = self
            .next()
            .filter(|word| !matches!(*word, "AND" | "OR" | "WITH" | ")"))?;
        if !self.take("WITH") {
            return Some(self.allowed.contains(&licence));
        }
        let whole = format!("{licence} WITH {}", self.next()?);
        Some(self.allowed.contains(&whole.as_str()))
    }

    fn next(&mut self) -> Option<&'a str> {
        let (word, rest) = self.words.split_first()?;
        self.words = rest;
        Some(word)
    }

    fn take(&mut self, wanted: &str) -> bool {
        let found = self.words.first() == Some(&wanted);
        if found {
            self.next();
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALLOWED: &[&str] = &[
        "MIT",
        "Apache-2.0",
        "Apache-2.0 WITH LLVM-exception",
        "Zlib",
    ];

    #[test]
    fn met() {
        for expression in [
            "MIT",
            "MIT OR GPL-2.0",
            "GPL-2.0/MIT",
            "Apache-2.0 WITH LLVM-exception",
            "(MIT OR GPL-2.0) AND Zlib",
            "GPL-2.0 AND MIT OR Zlib",
        ] {
            assert!(is_met(expression, ALLOWED), "{expression}");
        }
    }

    #[test]
    fn not_met() {
        for expression in [
            "",
            "GPL-2.0",
            "MIT AND GPL-2.0",
            "MIT WITH Some-exception",
            "Zlib AND (GPL-2.0 OR MPL-2.0)",
        ] {
            assert!(!is_met(expression, ALLOWED), "{expression}");
        }
    }

    #[test]
    fn invalid_expression_is_not_satisfied() {
        for expression in ["MIT OR", "(MIT", "MIT)", "MIT Zlib", "OR MIT", "MIT WITH"] {
            assert!(!is_met(expression, ALLOWED), "{expression}");
        }
    }
}
