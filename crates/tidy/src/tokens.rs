//! Facts about a Rust file for the rules, read from its token trees.
//!
//! Tokens, not lines: strings, comments, character literals and raw strings cannot
//! confuse them, and code inside macros is seen as well.

use std::ops::RangeInclusive;

use proc_macro2::{Delimiter, Group, TokenStream, TokenTree};

/// A function with a body.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Function {
    /// The function's name.
    pub name: String,
    /// Lines from `fn` to the closing brace, both counted from 1.
    pub lines: RangeInclusive<usize>,
}

/// The facts of one Rust file. Lines count from 1.
#[derive(Debug, Default)]
pub struct Facts {
    /// Every function with a body, nested ones too.
    pub functions: Vec<Function>,
    /// Lines that hold the keyword `unsafe`.
    pub unsafe_lines: Vec<usize>,
    /// Lines of items under `#[cfg(test)]` or `#[test]`, outermost only.
    pub test_items: Vec<RangeInclusive<usize>>,
    /// Every identifier with its line.
    pub idents: Vec<(String, usize)>,
    /// Paths that begin in `std`, two segments deep (`std::fs`), with their line.
    pub std_paths: Vec<(String, usize)>,
    /// Whether `#![cfg(test)]` makes the whole file test code.
    pub all_test: bool,
}

/// Reads the facts of a file.
///
/// # Errors
/// When the text is not a sequence of Rust tokens.
pub fn facts(text: &str) -> Result<Facts, String> {
    let stream: TokenStream =
        text.parse().map_err(|error| format!("cannot be read as Rust tokens: {error}"))?;
    let mut facts = Facts::default();
    walk(stream, false, &mut facts);
    Ok(facts)
}

fn walk(stream: TokenStream, in_test: bool, facts: &mut Facts) {
    let trees: Vec<TokenTree> = stream.into_iter().collect();
    let mut test_end = 0;
    for (at, tree) in trees.iter().enumerate() {
        let in_test = in_test || at < test_end;
        match tree {
            TokenTree::Ident(ident) => {
                let line = ident.span().start().line;
                let name = ident.to_string();
                match name.as_str() {
                    "unsafe" => facts.unsafe_lines.push(line),
                    "fn" => facts.functions.extend(function_at(&trees, at)),
                    "std" => std_paths_at(&trees, at, &mut facts.std_paths),
                    _ => {}
                }
                facts.idents.push((name, line));
            }
            TokenTree::Group(group) => walk(group.stream(), in_test, facts),
            TokenTree::Punct(punct) if punct.as_char() == '#' && !in_test => {
                match attribute_at(&trees, at) {
                    Some((true, group)) if is_test(&group) => facts.all_test = true,
                    Some((false, group)) if is_test(&group) => {
                        test_end = item_end(&trees, at + 2);
                        let last = trees[test_end - 1].span().end().line;
                        facts.test_items.push(punct.span().start().line..=last);
                    }
                    _ => {}
                }
            }
            _ => {}
        }
    }
}

fn function_at(trees: &[TokenTree], at: usize) -> Option<Function> {
    let TokenTree::Ident(name) = trees.get(at + 1)? else {
        return None;
    };
    let end = item_end(trees, at + 2);
    let TokenTree::Group(body) = trees.get(end - 1)? else {
        return None;
    };
    if body.delimiter() != Delimiter::Brace {
        return None;
    }
    let first = trees[at].span().start().line;
    Some(Function { name: name.to_string(), lines: first..=body.span_close().end().line })
}

/// Index behind the item that `from` lies in: behind its braces or its semicolon.
fn item_end(trees: &[TokenTree], from: usize) -> usize {
    for at in from..trees.len() {
        match &trees[at] {
            TokenTree::Punct(punct) if punct.as_char() == ';' => return at + 1,
            // `Name<{ N }>` opens a brace that is no body.
            TokenTree::Group(group)
                if group.delimiter() == Delimiter::Brace && !is_punct(trees, at - 1, '<') =>
            {
                return at + 1;
            }
            _ => {}
        }
    }
    trees.len()
}

fn is_punct(trees: &[TokenTree], at: usize, char: char) -> bool {
    matches!(trees.get(at), Some(TokenTree::Punct(punct)) if punct.as_char() == char)
}

/// The attribute that begins at `at`: whether it is an inner one, and its brackets.
fn attribute_at(trees: &[TokenTree], at: usize) -> Option<(bool, Group)> {
    let inner = is_punct(trees, at + 1, '!');
    match trees.get(at + 1 + usize::from(inner))? {
        TokenTree::Group(group) if group.delimiter() == Delimiter::Bracket => {
            Some((inner, group.clone()))
        }
        _ => None,
    }
}

/// Whether an attribute is `#[test]`, `#[cfg(test)]` or `#[cfg(all(test, …))]`. Attributes with
/// `not(test)` and `any(test, …)` are not.
fn is_test(attribute: &Group) -> bool {
    let text: String = attribute.stream().to_string().split_whitespace().collect();
    if text == "test" || text == "cfg(test)" {
        return true;
    }
    let all = text.strip_prefix("cfg(all(").and_then(|rest| rest.strip_suffix("))"));
    all.is_some_and(|arguments| arguments.split(',').any(|argument| argument == "test"))
}

/// Adds the path `std::x`, or the path of every `x` of `std::{x, y::z}`, to `found`.
fn std_paths_at(trees: &[TokenTree], at: usize, found: &mut Vec<(String, usize)>) {
    if !(is_punct(trees, at + 1, ':') && is_punct(trees, at + 2, ':')) {
        return;
    }
    match trees.get(at + 3) {
        Some(TokenTree::Ident(ident)) => {
            found.push((format!("std::{ident}"), ident.span().start().line));
        }
        Some(TokenTree::Group(group)) => {
            let mut begins = true;
            for tree in group.stream() {
                if let (true, TokenTree::Ident(ident)) = (begins, &tree) {
                    found.push((format!("std::{ident}"), ident.span().start().line));
                }
                begins = matches!(&tree, TokenTree::Punct(punct) if punct.as_char() == ',');
            }
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SAMPLE: &str = r##"
use std::{fs, io::Read};
/// unsafe in prose, fn not_here() {
pub fn outer<const N: usize>(x: Wrap<{ 3 }>) -> Wrap<{ 4 }>
where
    u8: Copy,
{
    let text = "unsafe fn in_a_string() { ' ";
    let raw = r#"fn raw() { " "#;
    let brace = '{'; /* unsafe } */
    fn inner() {}
}
trait T { fn declared(&self); }
macro_rules! made { () => { fn made_by_macro() { unsafe { } } } }
type Pointer = fn(u8) -> u8;
#[cfg(not(test))]
fn product() {}
#[cfg(test)]
mod tests {
    #[test]
    fn inside() {}
}
"##;

    #[test]
    fn functions_are_found_whatever_the_text_around_them() {
        let facts = facts(SAMPLE).expect("tokens");
        let names: Vec<&str> = facts.functions.iter().map(|f| f.name.as_str()).collect();
        assert_eq!(names, ["outer", "inner", "made_by_macro", "product", "inside"]);
        assert_eq!(facts.functions[0].lines, 4..=12);
    }

    #[test]
    fn unsafe_is_a_keyword_and_no_word_in_a_comment() {
        assert_eq!(facts(SAMPLE).expect("tokens").unsafe_lines, [14]);
    }

    #[test]
    fn test_items_are_outermost_and_not_test_is_none() {
        assert_eq!(facts(SAMPLE).expect("tokens").test_items, [18..=22]);
        assert!(facts("#![cfg(test)]\nfn a() {}").expect("tokens").all_test);
        let planted = facts("#[cfg(any(test, planted))]\nfn a() {}").expect("tokens");
        assert!(planted.test_items.is_empty());
        let both = facts("#[cfg(all(loom, test))]\nmod a;\nfn b() {}").expect("tokens");
        assert_eq!(both.test_items, [1..=2]);
    }

    #[test]
    fn paths_into_std_are_found_in_groups_too() {
        let found = facts(SAMPLE).expect("tokens").std_paths;
        assert_eq!(found, [("std::fs".to_owned(), 2), ("std::io".to_owned(), 2)]);
        assert_eq!(facts("std::fs::read(p)").expect("tokens").std_paths[0].0, "std::fs");
    }

    #[test]
    fn what_is_not_rust_is_an_error() {
        assert!(facts("fn a() { ( }").is_err());
    }
}
