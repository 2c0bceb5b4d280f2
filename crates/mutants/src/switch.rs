//! Puts mutants into a source text, each behind a test at run time whether it is chosen.
//!
//! `a + b` with two mutants becomes, on one line, `(if none(&[1, 2]) { a + b } else if is(1) { a -
//! b } else { a * b })`. The original stays in its place, so that mutants of its operands nest. The
//! operands of a mutated copy stay unchanged, since at most one mutant is on.

use std::collections::BTreeMap;
use std::ops::Range;

use syn::spanned::Spanned;
use syn::visit::{self, Visit};

use crate::list::{Genre, Mutant, Position};

/// The module whose functions say at run time which mutant is chosen. All mutated crates depend on
/// its crate.
const MODULE: &str = "::stillpoint_sync::mutant";

/// Source text to be put into `stillpoint-sync`: the functions that say which mutant is chosen.
pub(crate) const QUESTIONS: &str = r#"
/// Mutants, one of which the environment may choose.
pub mod mutant {
    static CHOSEN: std::sync::OnceLock<u32> = std::sync::OnceLock::new();
    /// Whether this mutant is the chosen one.
    #[inline]
    pub fn is(number: u32) -> bool {
        let read = || std::env::var("STILLPOINT_MUTANT").ok()?.parse().ok();
        *CHOSEN.get_or_init(|| read().unwrap_or(0)) == number
    }
    /// Whether none of these is the chosen one.
    #[inline]
    pub fn none(numbers: &[u32]) -> bool {
        !numbers.iter().any(|number| is(*number))
    }
}
"#;

/// A text with its mutants.
#[derive(Debug)]
pub(crate) struct Switched {
    pub text: String,
    /// Mutants that cannot be chosen at run time, such as those of constants.
    pub refused: Vec<u32>,
}

/// Puts `mutants` into `source`.
///
/// # Errors
/// The source is not Rust.
pub(crate) fn switch(source: &str, mutants: &[&Mutant]) -> syn::Result<Switched> {
    let mut sites = Sites::default();
    sites.visit_file(&syn::parse_file(source)?);
    let lines = line_starts(source);
    let mut edits = Edits::default();
    let mut refused = Vec::new();
    for mutant in mutants {
        let range =
            offset(source, &lines, mutant.span.start)..offset(source, &lines, mutant.span.end);
        if place(source, &sites, mutant, range, &mut edits).is_none() {
            refused.push(mutant.number);
        }
    }
    Ok(Switched { text: edits.apply(source), refused })
}

/// `text` between two marks that name the mutant, for [`marks`].
fn marked(number: u32, text: &str) -> String {
    format!("/*<{number}*/ {text} /*{number}>*/")
}

/// The ranges of a text with built-in mutants that the comments `/*<N` and `N>*/` enclose. Each range
/// has the number of its mutant.
pub(crate) fn marks(text: &str) -> Vec<(Range<usize>, u32)> {
    let mut found = Vec::new();
    for (start, _) in text.match_indices("/*<") {
        let rest = &text[start + 3..];
        let Some(number) = rest.split("*/").next().and_then(|digits| digits.parse().ok()) else {
            continue;
        };
        if let Some(len) = rest.find(&format!("/*{number}>*/")) {
            found.push((start..start + 3 + len, number));
        }
    }
    found
}

/// Notes the edits of one mutant. Returns `None` if the mutant cannot be chosen at run time.
fn place(
    source: &str,
    sites: &Sites,
    mutant: &Mutant,
    range: Range<usize>,
    edits: &mut Edits,
) -> Option<()> {
    let (number, with) = (mutant.number, &mutant.replacement);
    match mutant.genre {
        Genre::FnValue => {
            sites.bodies.get(&range.start)?;
            syn::parse_str::<syn::Expr>(with).ok()?;
            let end = marked(number, &format!("return {with};"));
            edits.insert(range.start, format!("if {MODULE}::is({number}) {{ {end} }} "));
        }
        Genre::BinaryOperator => {
            let whole = sites.operators.get(&range.start)?;
            let before = &source[whole.start..range.start];
            edits.replace(
                whole,
                number,
                format!("{before}{with}{}", &source[range.end..whole.end]),
            )?;
        }
        Genre::UnaryOperator => {
            let whole = sites.operators.get(&range.start)?;
            edits.replace(whole, number, source[range.end..whole.end].to_owned())?;
        }
        Genre::MatchArmGuard => {
            let whole = sites.guards.get(&range.start)?;
            edits.replace(whole, number, with.clone())?;
        }
        Genre::MatchArm => {
            let (pattern_end, guard_start) = sites.arms.get(&range.start)?;
            let question = format!("{MODULE}::none(&[{}])", marked(number, &number.to_string()));
            match guard_start {
                Some(start) => edits.insert(*start, format!("{question} && ")),
                None => edits.insert(*pattern_end, format!(" if {question}")),
            }
        }
        Genre::StructField => {
            let (whole, field_end) = sites.fields.get(&range.start)?;
            let kept = &source[whole.start..range.start];
            edits.replace(whole, number, format!("{kept}{}", &source[*field_end..whole.end]))?;
        }
    }
    Some(())
}

/// Places in a file where a mutant changes the text, by the offset of the changed text in bytes.
#[derive(Default)]
struct Sites {
    /// Offsets of the bodies of functions.
    bodies: BTreeMap<usize, ()>,
    /// Operator → the whole expression.
    operators: BTreeMap<usize, Range<usize>>,
    /// Start of a guard → its whole expression.
    guards: BTreeMap<usize, Range<usize>>,
    /// Arm → the end of its pattern, and the start of its guard.
    arms: BTreeMap<usize, (usize, Option<usize>)>,
    /// Field → the whole struct expression, and the end of the field with its comma.
    fields: BTreeMap<usize, (Range<usize>, usize)>,
}

fn bytes(node: &impl Spanned) -> Range<usize> {
    node.span().byte_range()
}

/// Whether a pattern is tested in `expr` itself, so that it cannot stand in a block.
fn binds(expr: &syn::Expr) -> bool {
    match expr {
        syn::Expr::Let(_) => true,
        syn::Expr::Binary(binary) => binds(&binary.left) || binds(&binary.right),
        syn::Expr::Paren(paren) => binds(&paren.expr),
        _ => false,
    }
}

impl Sites {
    fn body(&mut self, signature: &syn::Signature, block: &syn::Block) {
        let returns_impl = match &signature.output {
            syn::ReturnType::Type(_, kind) => matches!(**kind, syn::Type::ImplTrait(_)),
            syn::ReturnType::Default => false,
        };
        if let (false, Some(first)) = (returns_impl, block.stmts.first()) {
            self.bodies.insert(bytes(first).start, ());
        }
    }
}

impl<'ast> Visit<'ast> for Sites {
    fn visit_item_fn(&mut self, item: &'ast syn::ItemFn) {
        if item.sig.constness.is_none() {
            self.body(&item.sig, &item.block);
            visit::visit_item_fn(self, item);
        }
    }

    fn visit_impl_item_fn(&mut self, item: &'ast syn::ImplItemFn) {
        if item.sig.constness.is_none() {
            self.body(&item.sig, &item.block);
            visit::visit_impl_item_fn(self, item);
        }
    }

    fn visit_trait_item_fn(&mut self, item: &'ast syn::TraitItemFn) {
        if let Some(block) = &item.default {
            self.body(&item.sig, block);
        }
        visit::visit_trait_item_fn(self, item);
    }

    // Constants are evaluated by the compiler, so they ask nothing at run time.
    fn visit_item_const(&mut self, _: &'ast syn::ItemConst) {}
    fn visit_item_static(&mut self, _: &'ast syn::ItemStatic) {}
    fn visit_impl_item_const(&mut self, _: &'ast syn::ImplItemConst) {}
    fn visit_trait_item_const(&mut self, _: &'ast syn::TraitItemConst) {}
    fn visit_item_enum(&mut self, _: &'ast syn::ItemEnum) {}
    fn visit_type(&mut self, _: &'ast syn::Type) {}
    fn visit_pat(&mut self, _: &'ast syn::Pat) {}
    fn visit_expr_const(&mut self, _: &'ast syn::ExprConst) {}

    fn visit_expr_repeat(&mut self, repeat: &'ast syn::ExprRepeat) {
        self.visit_expr(&repeat.expr);
    }

    fn visit_expr_binary(&mut self, binary: &'ast syn::ExprBinary) {
        if !binds(&binary.left) && !binds(&binary.right) {
            self.operators.insert(bytes(&binary.op).start, bytes(binary));
        }
        visit::visit_expr_binary(self, binary);
    }

    fn visit_expr_unary(&mut self, unary: &'ast syn::ExprUnary) {
        self.operators.insert(bytes(&unary.op).start, bytes(unary));
        visit::visit_expr_unary(self, unary);
    }

    fn visit_arm(&mut self, arm: &'ast syn::Arm) {
        let guard = arm.guard.as_ref().map(|(_, guard)| guard);
        if let Some(guard) = guard
            && !binds(guard)
        {
            self.guards.insert(bytes(&**guard).start, bytes(&**guard));
        }
        let guard_start = guard.map(|guard| bytes(&**guard).start);
        self.arms.insert(bytes(arm).start, (bytes(&arm.pat).end, guard_start));
        visit::visit_arm(self, arm);
    }

    fn visit_expr_struct(&mut self, made: &'ast syn::ExprStruct) {
        for pair in made.fields.pairs() {
            let (field, comma) = (pair.value(), pair.punct());
            let end = comma.map_or(bytes(*field).end, |comma| bytes(*comma).end);
            self.fields.insert(bytes(*field).start, (bytes(made), end));
        }
        visit::visit_expr_struct(self, made);
    }
}

/// Changes of a source text.
#[derive(Default)]
struct Edits {
    inserts: Vec<(usize, String)>,
    /// Start and end of an expression → its mutated copies.
    replaced: BTreeMap<(usize, usize), Vec<(u32, String)>>,
}

impl Edits {
    fn insert(&mut self, at: usize, text: String) {
        self.inserts.push((at, text));
    }

    /// Another text for a whole expression. `None` if that text is no expression.
    fn replace(&mut self, whole: &Range<usize>, number: u32, text: String) -> Option<()> {
        syn::parse_str::<syn::Expr>(&text).ok()?;
        self.replaced.entry((whole.start, whole.end)).or_default().push((number, text));
        Some(())
    }

    fn apply(self, source: &str) -> String {
        // The order of the pieces at one offset. Texts that end there come first, the innermost
        // before the others. Insertions follow. Texts that begin there come last, the outermost
        // before the others.
        let mut pieces: Vec<((usize, u8, usize), String)> = Vec::new();
        for ((start, end), mutants) in self.replaced {
            let numbers: Vec<String> = mutants.iter().map(|(n, _)| n.to_string()).collect();
            let open = format!("(if {MODULE}::none(&[{}]) {{ ", numbers.join(", "));
            let mut close = " }".to_owned();
            let last = mutants.len() - 1;
            for (at, (number, text)) in mutants.iter().enumerate() {
                let question = match at == last {
                    true => String::new(),
                    false => format!("if {MODULE}::is({number}) "),
                };
                close += &format!(" else {question}{{ {} }}", marked(*number, text));
            }
            pieces.push(((start, 2, usize::MAX - end), open));
            pieces.push(((end, 0, usize::MAX - start), close + ")"));
        }
        pieces.extend(self.inserts.into_iter().map(|(at, text)| ((at, 1, 0), text)));
        pieces.sort_by_key(|(order, _)| *order);
        let mut out = String::with_capacity(source.len() * 2);
        let mut copied = 0;
        for ((at, ..), text) in pieces {
            out += &source[copied..at];
            out += &text;
            copied = at;
        }
        out + &source[copied..]
    }
}

fn line_starts(source: &str) -> Vec<usize> {
    let ends = source.match_indices('\n').map(|(at, _)| at + 1);
    std::iter::once(0).chain(ends).collect()
}

fn offset(source: &str, lines: &[usize], position: Position) -> usize {
    let start = lines.get(position.line - 1).copied().unwrap_or(source.len());
    let mut characters = source[start..].char_indices();
    start + characters.nth(position.column - 1).map_or(source.len() - start, |(at, _)| at)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::list::tests::mutant;

    fn switched(source: &str, mutants: &[Mutant]) -> Switched {
        let all: Vec<&Mutant> = mutants.iter().collect();
        let done = switch(source, &all).expect("Rust");
        syn::parse_file(&done.text).expect("still Rust");
        done
    }

    /// As [`switched`], without the text common to all.
    fn text(source: &str, mutants: &[Mutant]) -> String {
        let done = switched(source, mutants);
        assert!(done.refused.is_empty());
        done.text.replace("::stillpoint_sync::mutant::", "")
    }

    #[test]
    fn operators_nest() {
        let outer = mutant(Genre::BinaryOperator, 1, (12, 14), "!=");
        let inner = Mutant { number: 2, ..mutant(Genre::BinaryOperator, 1, (17, 18), "-") };
        let third = Mutant { number: 3, ..mutant(Genre::BinaryOperator, 1, (17, 18), "*") };
        assert_eq!(
            text("fn a() { b == c + d; }", &[outer, inner, third]),
            "fn a() { (if none(&[1]) { b == (if none(&[2, 3]) { c + d } else if is(2) \
             { /*<2*/ c - d /*2>*/ } else { /*<3*/ c * d /*3>*/ }) } \
             else { /*<1*/ b != c + d /*1>*/ }); }"
        );
    }

    #[test]
    fn a_body_returns_at_its_first_statement() {
        let body = mutant(Genre::FnValue, 1, (17, 18), "1");
        assert_eq!(
            text(
                "fn a() -> u8 { /*é*/ 0 }".replace("/*é*/ ", "é!").replace("é!", " ").as_str(),
                &[body]
            ),
            "fn a() -> u8 {  if is(1) { /*<1*/ return 1; /*1>*/ } 0 }"
        );
    }

    #[test]
    fn columns_count_characters() {
        let not = mutant(Genre::UnaryOperator, 1, (16, 17), "");
        assert_eq!(
            text("fn a() { (\"é\", !b); }", &[not]),
            "fn a() { (\"é\", (if none(&[1]) { !b } else { /*<1*/ b /*1>*/ })); }"
        );
    }

    #[test]
    fn guards_arms_and_fields() {
        let source = "fn a() {\nmatch b { C if d => 1, E => 2, _ => 3 };\nF { g, h: 1, ..i };\n}";
        let guard = mutant(Genre::MatchArmGuard, 2, (16, 17), "true");
        let arm = Mutant { number: 2, ..mutant(Genre::MatchArm, 2, (11, 22), "") };
        let plain = Mutant { number: 3, ..mutant(Genre::MatchArm, 2, (24, 30), "") };
        let field = Mutant { number: 4, ..mutant(Genre::StructField, 3, (5, 6), "") };
        assert_eq!(
            text(source, &[guard, arm, plain, field]),
            "fn a() {\nmatch b { C if none(&[/*<2*/ 2 /*2>*/]) && (if none(&[1]) { d } \
             else { /*<1*/ true /*1>*/ }) => 1, E if none(&[/*<3*/ 3 /*3>*/]) => 2, _ => 3 };\n\
             (if none(&[4]) { F { g, h: 1, ..i } } else { /*<4*/ F {  h: 1, ..i } /*4>*/ });\n}"
        );
    }

    #[test]
    fn what_cannot_be_asked_at_run_time_is_refused() {
        for (source, one) in [
            ("const A: u8 = 1 + 2;", mutant(Genre::BinaryOperator, 1, (17, 18), "-")),
            ("const fn a() { 1 + 2 }", mutant(Genre::BinaryOperator, 1, (18, 19), "-")),
            ("fn a() -> impl B { c() }", mutant(Genre::FnValue, 1, (20, 23), "d()")),
            ("fn a() { if let B = c && d {} }", mutant(Genre::BinaryOperator, 1, (23, 25), "||")),
            ("fn a() { b as u8 > c; }", mutant(Genre::BinaryOperator, 1, (18, 19), "<")),
        ] {
            let done = switched(source, &[one]);
            assert_eq!((done.refused, done.text), (vec![1], source.to_owned()), "{source}");
        }
    }

    #[test]
    fn marks_name_the_mutants_of_a_text() {
        let inner = mutant(Genre::BinaryOperator, 1, (12, 13), "-");
        let done = switched("fn a() { b + c; }", &[inner]);
        let [(range, 1)] = &marks(&done.text)[..] else {
            panic!("{}", done.text);
        };
        assert_eq!(&done.text[range.clone()], "/*<1*/ b - c ");
    }
}
