//! `new pass` in a skeleton of a source tree. That what it writes compiles, and that its cases pass,
//! `.ci/run` shows in a copy of the whole tree.

use std::fs;
use std::path::{Path, PathBuf};

use crate::command::{Folder, Ran, milwright};
use crate::support::folders::content;

/// A registry as it is laid out in this tree, with passes of two families.
const REGISTRY: &str = "//! All passes.

use crate::pass::Pass;

#[path = \"cleanup/dead-code/mod.rs\"]
mod dead_code;
#[path = \"numerics/fold-rsqrt-epsilon/mod.rs\"]
mod fold_rsqrt_epsilon;
#[path = \"cleanup/forward-slices/mod.rs\"]
mod forward_slices;
#[path = \"numerics/pow-to-mul/mod.rs\"]
mod pow_to_mul;

/// Every pass, by family and then by id.
pub static ALL: &[&dyn Pass] = &[
    &dead_code::DeadCode,
    &forward_slices::ForwardSlices,
    &fold_rsqrt_epsilon::FoldRsqrtEpsilon,
    &pow_to_mul::PowToMul,
];

/// The pass with this id.
pub fn by_id(id: &str) {}
";

/// A tree with that registry, and a folder of a pass in it.
fn tree() -> Folder {
    let folder = Folder::new();
    fs::create_dir_all(folder.join("passes/cleanup/dead-code")).unwrap();
    fs::write(folder.join("passes/mod.rs"), REGISTRY).unwrap();
    folder
}

fn new_pass(inside: &Path, name: &str) -> Ran {
    let output = milwright()
        .args(["new", "pass", name])
        .current_dir(inside)
        .output()
        .unwrap();
    Ran {
        status: output.status.code().unwrap_or(-1),
        stdout: String::from_utf8(output.stdout).unwrap(),
        stderr: String::from_utf8(output.stderr).unwrap(),
    }
}

/// It says no with these words, and the tree stays as it was.
fn refuses(tree: &Folder, name: &str, words: &[&str]) {
    let everything = |tree: &Folder| (content(tree.path()), folders(tree.path()));
    let before = everything(tree);
    let ran = new_pass(tree.path(), name);
    assert_eq!(
        (ran.status, ran.stdout.as_str()),
        (2, ""),
        "{name}: {ran:?}"
    );
    assert_eq!(ran.stderr.lines().count(), 1, "{name}: {}", ran.stderr);
    for word in words {
        assert!(
            ran.stderr.contains(word),
            "{name}: {word:?} is not in {}",
            ran.stderr
        );
    }
    assert!(everything(tree) == before, "{name}: something was written");
}

/// All folders below a folder.
fn folders(root: &Path) -> Vec<PathBuf> {
    let mut found = vec![root.to_owned()];
    let mut at = 0;
    while let Some(folder) = found.get(at) {
        let entries = fs::read_dir(folder).unwrap();
        let inner: Vec<_> = entries.map(|entry| entry.unwrap().path()).collect();
        found.extend(inner.into_iter().filter(|path| path.is_dir()));
        at += 1;
    }
    found.sort();
    found
}

/// The lines that the second text has and the first has not.
fn added<'a>(before: &str, after: &'a str) -> Vec<&'a str> {
    let mut before = before.lines().peekable();
    let new = after
        .lines()
        .filter(|line| before.next_if_eq(line).is_none());
    let new: Vec<&str> = new.collect();
    assert_eq!(before.next(), None, "a line was lost");
    new
}

#[test]
fn a_pass_is_a_module_a_page_two_cases_and_their_snapshots() {
    let tree = tree();
    let before = content(tree.path());
    let ran = new_pass(tree.path(), "cleanup/fold-relus");
    assert_eq!(ran.status, 0, "{}", ran.stderr);
    assert!(ran.stderr.contains("cargo insta test"), "{}", ran.stderr);
    let mut files = content(tree.path());
    for path in before.keys().filter(|path| !path.ends_with("mod.rs")) {
        files.remove(path);
    }
    let names: Vec<&str> = files.keys().map(|path| path.to_str().unwrap()).collect();
    let expected = [
        "passes/cleanup/fold-relus/README.md",
        "passes/cleanup/fold-relus/cases/no_two_outputs.mil",
        "passes/cleanup/fold-relus/cases/relu_of_relu.mil",
        "passes/cleanup/fold-relus/mod.rs",
        "passes/mod.rs",
        "snapshots/fold-relus/no_two_outputs.snap",
        "snapshots/fold-relus/relu_of_relu.snap",
    ];
    assert_eq!(names, expected);
    for name in expected {
        assert!(ran.stdout.contains(name), "{name} is not in {}", ran.stdout);
        let text = fs::read_to_string(tree.join(name)).unwrap();
        for placeholder in ["@id@", "@Name@", "@family@", "@Family@"] {
            assert!(!text.contains(placeholder), "{name}: {placeholder}");
        }
    }
    let module = fs::read_to_string(tree.join(expected[3])).unwrap();
    for part in [
        "struct FoldRelus;",
        "id: \"fold-relus\",",
        "Family::Cleanup",
    ] {
        assert!(module.contains(part), "{part} is not in {module}");
    }
    // What can be opened is a program.
    for case in [expected[1], expected[2]] {
        let printed = milwright()
            .arg("print")
            .arg(tree.join(case))
            .output()
            .unwrap();
        assert!(printed.status.success(), "{printed:?}");
    }
}

#[test]
fn the_registry_gets_three_lines_in_their_places() {
    for (name, lines, before, after) in [
        (
            "cleanup/fold-relus",
            [
                "#[path = \"cleanup/fold-relus/mod.rs\"]",
                "mod fold_relus;",
                "    &fold_relus::FoldRelus,",
            ],
            [
                "#[path = \"numerics/fold-rsqrt-epsilon/mod.rs\"]",
                "    &forward_slices::ForwardSlices,",
            ],
            ["mod dead_code;", "    &dead_code::DeadCode,"],
        ),
        (
            "cleanup/a",
            ["#[path = \"cleanup/a/mod.rs\"]", "mod a;", "    &a::A,"],
            [
                "#[path = \"cleanup/dead-code/mod.rs\"]",
                "    &dead_code::DeadCode,",
            ],
            ["", "pub static ALL: &[&dyn Pass] = &["],
        ),
        (
            "integrity/z2-y",
            [
                "#[path = \"integrity/z2-y/mod.rs\"]",
                "mod z2_y;",
                "    &z2_y::Z2Y,",
            ],
            ["", "];"],
            ["mod pow_to_mul;", "    &pow_to_mul::PowToMul,"],
        ),
    ] {
        let tree = tree();
        assert_eq!(new_pass(tree.path(), name).status, 0, "{name}");
        let registry = fs::read_to_string(tree.join("passes/mod.rs")).unwrap();
        assert_eq!(added(REGISTRY, &registry), lines, "{name}");
        let all: Vec<&str> = registry.lines().collect();
        let at = |line: &str| all.iter().position(|own| *own == line).unwrap();
        assert_eq!(all[at(lines[1]) + 1], before[0], "{name}");
        assert_eq!(all[at(lines[0]) - 1], after[0], "{name}");
        assert_eq!(all[at(lines[2]) + 1], before[1], "{name}");
        assert_eq!(all[at(lines[2]) - 1], after[1], "{name}");
    }
}

#[test]
fn the_registry_of_this_tree_is_laid_out_like_that() {
    let registry = include_str!("../../passes/mod.rs");
    let tree = tree();
    fs::write(tree.join("passes/mod.rs"), registry).unwrap();
    let ran = new_pass(tree.path(), "state/no-such-pass-yet");
    assert_eq!(ran.status, 0, "{}", ran.stderr);
    let found = fs::read_to_string(tree.join("passes/mod.rs")).unwrap();
    assert_eq!(added(registry, &found).len(), 3, "{found}");
}

#[test]
fn a_second_pass_stands_beside_the_first() {
    let tree = tree();
    for name in ["state/b-c", "state/a-b", "placement/b-d"] {
        assert_eq!(new_pass(tree.path(), name).status, 0, "{name}");
    }
    let registry = fs::read_to_string(tree.join("passes/mod.rs")).unwrap();
    let lines = added(REGISTRY, &registry);
    let listed = ["    &a_b::AB,", "    &b_c::BC,", "    &b_d::BD,"];
    assert_eq!(lines[lines.len() - 3..], listed);
}

#[test]
fn the_tree_is_found_from_any_folder_in_it() {
    let tree = tree();
    let inside = tree.join("passes/cleanup/dead-code");
    assert_eq!(new_pass(&inside, "cleanup/fold-relus").status, 0);
    assert!(tree.join("passes/cleanup/fold-relus/mod.rs").is_file());
    assert_eq!(folders(&inside).len(), 1);
    let elsewhere = Folder::new();
    refuses(
        &elsewhere,
        "cleanup/fold-relus",
        &["no source tree", "passes/mod.rs"],
    );
}

#[test]
fn a_name_that_is_none_is_refused() {
    let tree = tree();
    for name in [
        "cleanup/",
        "cleanup/FoldRelus",
        "cleanup/fold_relus",
        "cleanup/fold--relus",
        "cleanup/-relus",
        "cleanup/relus-",
        "cleanup/2-relus",
        "cleanup/fold relus",
        "cleanup/../relus",
        "cleanup/fold/relus",
        "cleanup/.",
        "cleanup/rélus",
    ] {
        refuses(&tree, name, &["no id of a pass", "fuse-casts"]);
    }
    refuses(&tree, "fold-relus", &["FAMILY/NAME", "cleanup/fold-relus"]);
    refuses(&tree, "", &["FAMILY/NAME"]);
    refuses(&tree, "numeric/fold-relus", &["did you mean `numerics`?"]);
    refuses(&tree, "/fold-relus", &["attention, state"]);
    refuses(&tree, "tidy/fold-relus", &["cleanup, numerics"]);
    refuses(
        &tree,
        &format!("cleanup/{}", "a".repeat(41)),
        &["longer than 40"],
    );
    for taken in ["cleanup/default", "cleanup/ane-direct"] {
        refuses(&tree, taken, &["is a pipeline"]);
    }
    // A keyword, and names of types that the code uses.
    for taken in ["loop", "matcher", "option-map", "box", "some"] {
        refuses(
            &tree,
            &format!("cleanup/{taken}"),
            &["means something else"],
        );
    }
}

#[test]
fn what_is_there_is_not_replaced() {
    let tree = tree();
    refuses(&tree, "cleanup/dead-code", &["dead-code exists"]);
    refuses(&tree, "state/dead-code", &["dead-code exists"]);
    // Its folder is not in this tree, only the registry names it.
    refuses(&tree, "state/pow-to-mul", &["mod.rs", "pow-to-mul"]);
    fs::create_dir_all(tree.join("snapshots/fold-relus")).unwrap();
    refuses(&tree, "cleanup/fold-relus", &["fold-relus exists"]);
}

#[test]
fn a_registry_that_looks_otherwise_is_left_alone() {
    for (registry, words) in [
        (String::new(), "mod NAME;"),
        (
            REGISTRY.replace("pub static ALL", "pub static PASSES"),
            "pub static ALL",
        ),
        (
            REGISTRY.replace("    &dead_code::DeadCode,", "    // first"),
            "// first",
        ),
        (REGISTRY.replace("];\n", "\n"), "list of passes"),
    ] {
        let tree = tree();
        fs::write(tree.join("passes/mod.rs"), registry).unwrap();
        refuses(&tree, "integrity/fold-relus", &["passes/mod.rs", words]);
    }
}

#[test]
fn a_failure_on_the_way_leaves_nothing_behind() {
    let tree = tree();
    fs::write(tree.join("snapshots"), "a file where a folder should be").unwrap();
    refuses(
        &tree,
        "state/fold-relus",
        &["cannot make the pass `fold-relus`"],
    );
}
