//! The modules of a crate import each other in one direction: each can be read after those that it
//! imports, and moved without those that import it.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// The modules that each module imports, with one file that does.
type Imports = BTreeMap<String, BTreeMap<String, PathBuf>>;

#[test]
fn modules_do_not_import_each_other_in_a_circle() {
    let repository = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut modules = 0;
    for sources in [
        "src",
        "protocol/src",
        "protocol/client/src",
        "protocol/metrics/src",
        "broker/src",
        "broker/cluster/src",
        "broker/concurrent/src",
        "broker/log/src",
        "broker/queue/src",
        "broker/rate-limit/src",
        "egress/src",
        "egress/signature/src",
        "subscriber/src",
        "subscriber/browser/src",
        "subscriber/database/src",
        "subscriber/documents/src",
        "connectors/src",
        "bench/src",
        "bench/load/src",
    ] {
        let imports = read_imports(&repository.join(sources));
        modules += imports.len();
        if let Some(circle) = find_circle(&imports) {
            panic!("{sources}: modules import each other:\n{circle}");
        }
    }
    assert!(modules >= 100, "{modules} modules found");
}

#[test]
fn a_circle_is_found_and_a_chain_is_none() {
    let imports = |edges: &[(&str, &str)]| {
        let mut imports = Imports::new();
        for (from, to) in edges {
            imports.entry((*to).to_owned()).or_default();
            let from = imports.entry((*from).to_owned()).or_default();
            from.insert((*to).to_owned(), PathBuf::from("file.rs"));
        }
        imports
    };
    assert_eq!(find_circle(&imports(&[("a", "b"), ("a", "c"), ("b", "c")])), None);
    let circle = find_circle(&imports(&[("a", "b"), ("b", "c"), ("c", "b")])).unwrap();
    assert_eq!(circle, "  b imports c (file.rs)\n  c imports b (file.rs)");
    let code = "use crate::one::A;\n// crate::two\nuse crate::{four, three::B};\n#[cfg(test)]\nmod tests {\n    use crate::five;\n}\n";
    assert_eq!(imported_modules(code), ["four", "one", "three"].map(str::to_owned).into());
}

/// The imports between the modules directly below the root of a crate, without those of tests.
fn read_imports(sources: &Path) -> Imports {
    let mut imports = Imports::new();
    let mut open = vec![sources.to_owned()];
    while let Some(path) = open.pop() {
        let name = path.file_stem().unwrap().to_str().unwrap();
        let is_for_tests = ["tests", "testing", "fuzzing", "bin"].contains(&name);
        if path.is_dir() {
            if !is_for_tests {
                open.extend(fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
            }
            continue;
        }
        let inner = path.strip_prefix(sources).unwrap();
        let module = Path::new(inner.iter().next().unwrap()).file_stem().unwrap().to_str().unwrap();
        let is_root = ["lib", "main"].contains(&module);
        if is_for_tests || is_root || path.extension().is_none_or(|extension| extension != "rs") {
            continue;
        }
        let found = imported_modules(&fs::read_to_string(&path).unwrap());
        let entry = imports.entry(module.to_owned()).or_default();
        for imported in found.into_iter().filter(|imported| imported != module) {
            entry.insert(imported, inner.to_owned());
        }
    }
    // Other names are items that the root defines or exports.
    let modules: BTreeSet<_> = imports.keys().cloned().collect();
    for imported in imports.values_mut() {
        imported.retain(|name, _| modules.contains(name));
    }
    imports
}

/// The first names behind `crate::` in the code above its tests.
fn imported_modules(code: &str) -> BTreeSet<String> {
    let code = code.split("#[cfg(test)]\nmod tests {").next().unwrap();
    let lines = code.lines().map(|line| line.split("//").next().unwrap());
    let code = lines.collect::<Vec<_>>().join("\n");
    let name = |text: &str| {
        let text = text.trim_start();
        let end = text.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(text.len());
        text[..end].to_owned()
    };
    let mut names = BTreeSet::new();
    for path in code.split("crate::").skip(1) {
        match path.strip_prefix('{') {
            Some(list) => names.extend(list.split('}').next().unwrap().split(',').map(name)),
            None => _ = names.insert(name(path)),
        }
    }
    names.remove("");
    names
}

/// One circle, a line for each import in it.
fn find_circle(imports: &Imports) -> Option<String> {
    let mut finished = BTreeSet::new();
    imports.keys().find_map(|module| visit(imports, module, &mut Vec::new(), &mut finished))
}

fn visit<'a>(
    imports: &'a Imports,
    module: &'a str,
    path: &mut Vec<&'a str>,
    finished: &mut BTreeSet<&'a str>,
) -> Option<String> {
    if let Some(start) = path.iter().position(|earlier| *earlier == module) {
        let circle = path[start..].iter().zip(path[start + 1..].iter().chain([&module]));
        let line = |(from, to): (&&str, &&str)| {
            format!("  {from} imports {to} ({})", imports[*from][*to].display())
        };
        return Some(circle.map(line).collect::<Vec<_>>().join("\n"));
    }
    if !finished.contains(module) {
        path.push(module);
        let found = imports[module].keys().find_map(|next| visit(imports, next, path, finished));
        if found.is_some() {
            return found;
        }
        path.pop();
        finished.insert(module);
    }
    None
}
