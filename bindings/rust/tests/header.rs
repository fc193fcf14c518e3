// SPDX-License-Identifier: Apache-2.0
//! src/lib.rs says what the header says: the same enumerators, structs, fields, functions and types, each by its name.
//! Both are read as text, so that a missing name is seen too.
use std::collections::{BTreeMap, BTreeSet};

mod source;

type Names = BTreeMap<String, String>;

fn squeezed(text: &str) -> String {
    text.split_whitespace().collect::<String>().replace(",)", ")")
}

/// Parts of a list, at commas that are not inside of brackets.
fn parts(list: &str) -> Vec<&str> {
    let (mut found, mut depth, mut start) = (Vec::new(), 0, 0);
    for (at, c) in list.char_indices() {
        match c {
            '(' | '<' | '[' => depth += 1,
            ')' | '>' | ']' if !list[..at].ends_with('-') => depth -= 1,
            ',' if depth == 0 => {
                found.push(list[start..at].trim());
                start = at + 1;
            }
            _ => {}
        }
    }
    found.push(list[start..].trim());
    found.retain(|part| !part.is_empty());
    found
}

/// What stands between two texts, again and again, with what follows the name before it.
fn between<'a>(text: &'a str, open: &'a str, close: &'a str) -> impl Iterator<Item = &'a str> {
    text.split(open).skip(1).map(move |rest| rest.split(close).next().unwrap())
}

// ---- The header ----

/// Without comments and lines of the preprocessor.
fn header() -> String {
    let text = source::read("include/epigrad/epigrad.h");
    let mut code = String::new();
    for (i, part) in text.split("/*").enumerate() {
        code += if i == 0 { part } else { part.split_once("*/").unwrap().1 };
    }
    let lines: Vec<&str> = code.lines().filter(|line| !line.starts_with('#')).collect();
    lines.join("\n")
}

fn rust_type(c: &str) -> String {
    let (is_const, c) = c.trim().strip_prefix("const ").map_or((false, c.trim()), |rest| (true, rest));
    let base = match c.trim_end_matches(['*', ' ']) {
        "size_t" => "usize",
        "int64_t" => "i64",
        "uint64_t" => "u64",
        "int" => "c_int",
        "double" => "f64",
        "char" => "c_char",
        "void" => "c_void",
        other => other,
    };
    let inner = if is_const { "*const" } else { "*mut" };
    match c.matches('*').count() {
        0 => base.into(),
        1 => format!("{inner}{base}"),
        _ => format!("*mut{inner}{base}"),
    }
}

fn rust_arrow(c: &str) -> String {
    if c.trim() == "void" {
        String::new()
    } else {
        format!("->{}", rust_type(c))
    }
}

/// "const eg_layer *layer" is a name and a type; of several names, as in "int64_t m, k", all have it.
fn declared(c: &str) -> Vec<(String, String)> {
    if let Some((result, rest)) = c.split_once("(*") {
        let (name, list) = rest.split_once(")(").unwrap();
        let types: Vec<String> =
            parts(list.trim_end_matches(')')).iter().flat_map(|part| declared(part)).map(|(_, kind)| kind).collect();
        let kind = format!("Option<unsafeextern\"C\"fn({}){}>", types.join(","), rust_arrow(result));
        return vec![(name.into(), kind)];
    }
    let names = parts(c);
    let at = names[0].rfind([' ', '*']).expect(c) + 1;
    let kind = rust_type(&names[0][..at]);
    names
        .iter()
        .enumerate()
        .map(|(i, name)| (if i == 0 { &name[at..] } else { name }.to_string(), kind.clone()))
        .collect()
}

fn typed(list: Vec<(String, String)>) -> String {
    list.iter().map(|(name, kind)| format!("{name}:{kind}")).collect::<Vec<_>>().join(",")
}

fn functions_of_header(code: &str) -> Names {
    let mut found = Names::new();
    for (mark, end) in [("\nEG_API ", ";"), ("\nEG_CONSTRUCTOR ", "{")] {
        for prototype in between(code, mark, end) {
            let (before, list) = prototype.trim().trim_end_matches(')').split_once('(').unwrap();
            let at = before.rfind([' ', '*']).unwrap() + 1;
            let list = if list == "void" { Vec::new() } else { parts(list).iter().flat_map(|p| declared(p)).collect() };
            found.insert(before[at..].into(), format!("({}){}", typed(list), rust_arrow(&before[..at])));
        }
    }
    found
}

fn structs_of_header(code: &str) -> Names {
    let mut found = Names::new();
    for body in between(code, "\ntypedef struct ", "\n}").filter(|body| body.contains('{')) {
        let (name, fields) = body.split_once('{').unwrap();
        let fields = fields.split(';').map(str::trim).filter(|field| !field.is_empty());
        found.insert(name.trim().into(), typed(fields.flat_map(declared).collect()));
    }
    for pointer in between(code, "\ntypedef void ", ";") {
        let (name, kind) = declared(&format!("void {pointer}")).remove(0);
        found.insert(name, kind);
    }
    found
}

fn enumerators_of_header(code: &str) -> Names {
    let mut found = Names::new();
    for body in between(code, "\ntypedef enum ", "}") {
        let (name, list) = body.split_once('{').unwrap();
        for (enumerator, number) in parts(list).iter().filter_map(|part| part.split_once(" = ")) {
            found.insert(enumerator.into(), format!("{}={number}", name.trim()));
        }
    }
    for row in between(&source::read("include/epigrad/activation.h"), "\n    X(", "\"") {
        let words: Vec<&str> = row.split(", ").collect();
        found.insert(format!("EG_ACT_{}", words[0]), format!("eg_activation={}", words[2]));
    }
    found
}

// ---- The crate ----

fn crate_text() -> &'static str {
    include_str!("../src/lib.rs")
}

fn functions_of_crate() -> Names {
    let mut found = Names::new();
    for prototype in between(crate_text(), " fn eg_", ";").chain(between(crate_text(), "\npub fn eg_", "{")) {
        let prototype = squeezed(prototype.split('{').next().unwrap());
        let (name, rest) = prototype.split_once('(').unwrap();
        found.insert(format!("eg_{name}"), format!("({rest}"));
    }
    found
}

fn structs_of_crate() -> Names {
    let mut found = Names::new();
    for body in between(crate_text(), "\npub struct ", "\n}") {
        let (name, fields) = body.split_once('{').unwrap();
        found.insert(name.trim().into(), squeezed(fields).replace("pub", "").trim_end_matches(',').into());
    }
    for alias in between(crate_text(), "\npub type ", ";").filter(|alias| alias.contains("fn(")) {
        let (name, kind) = alias.split_once('=').unwrap();
        found.insert(name.trim().into(), squeezed(kind));
    }
    found
}

fn enumerators_of_crate() -> Names {
    let constants = between(crate_text(), "\npub const ", ";").map(|line| line.split_once(": ").unwrap());
    constants.map(|(name, number)| (name.to_string(), squeezed(number))).collect()
}

// ---- The comparison ----

fn compare(what: &str, least: usize, header: Names, here: Names) {
    assert!(header.len() >= least, "only {} {what} were read of the header", header.len());
    let names: BTreeSet<_> = header.keys().chain(here.keys()).collect();
    let different: Vec<_> = names.into_iter().filter(|name| header.get(*name) != here.get(*name)).collect();
    for name in &different {
        println!("{name}\n  header: {:?}\n  crate:  {:?}", header.get(*name), here.get(*name));
    }
    assert!(different.is_empty(), "{what} that differ: {different:?}");
}

#[test]
fn enumerators() {
    compare("enumerators", 35, enumerators_of_header(&header()), enumerators_of_crate());
}

#[test]
fn structs() {
    compare("structs", 13, structs_of_header(&header()), structs_of_crate());
}

#[test]
fn functions() {
    compare("functions", 37, functions_of_header(&header()), functions_of_crate());
}

#[test]
fn version() {
    let text = source::read("include/epigrad/epigrad.h");
    let numbers = ["MAJOR", "MINOR", "PATCH"]
        .map(|part| between(&text, &format!("#define EG_VERSION_{part} "), "\n").next().unwrap().to_string());
    assert_eq!(env!("CARGO_PKG_VERSION"), numbers.join("."));
}
