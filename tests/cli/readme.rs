//! The README's examples print what it says that they print.

use std::fs;
use std::path::Path;
use std::process::Command;

use crate::command::Folder;
use crate::support::folders::root;

/// The sections with examples, and how many they have.
const SECTIONS: [(&str, usize); 4] = [
    ("The pipelines", 3),
    ("Linting a model", 1),
    ("Running a model, and proving that it is still the same", 3),
    ("fp16: see the overflow, then remove it", 2),
];

#[test]
#[cfg(unix)]
fn the_examples_print_what_the_readme_shows() {
    for (title, examples) in SECTIONS {
        the_section_prints_what_it_shows(title, examples);
    }
}

#[cfg(unix)]
fn the_section_prints_what_it_shows(title: &str, expected: usize) {
    let path = root().join("README.md");
    let readme = fs::read_to_string(&path).unwrap();
    let heading = format!("\n## {title}\n");
    let start = readme.find(&heading).unwrap() + heading.len();
    let length = readme[start..].find("\n## ").unwrap();
    let folder = Folder::new();
    std::os::unix::fs::symlink(root().join("tests"), folder.join("tests")).unwrap();
    let mut section = String::new();
    let mut rest = &readme[start..start + length];
    let mut examples = 0;
    while let Some((before, after)) = rest.split_once("```sh\n") {
        let (commands, after) = after.split_once("```\n").unwrap();
        let (between, after) = after.split_once("```text\n").unwrap();
        let (_, after) = after.split_once("```\n").unwrap();
        let printed = shell(folder.path(), commands);
        let shown = [
            before,
            "```sh\n",
            commands,
            "```\n",
            between,
            "```text\n",
            &printed,
            "```\n",
        ];
        section.push_str(&shown.concat());
        rest = after;
        examples += 1;
    }
    section += rest;
    assert_eq!(examples, expected);
    if section == readme[start..start + length] {
        return;
    }
    if std::env::var_os("MILWRIGHT_UPDATE").is_some_and(|value| value == "1") {
        let (head, tail) = (&readme[..start], &readme[start + length..]);
        fs::write(&path, format!("{head}{section}{tail}")).unwrap();
        return;
    }
    panic!(
        "README.md shows something else than what is printed; run \
         `MILWRIGHT_UPDATE=1 cargo test --test cli -- readme` and review it: {section}"
    );
}

/// What shell commands print on both streams; they must end well.
fn shell(folder: &Path, commands: &str) -> String {
    let own = Path::new(env!("CARGO_BIN_EXE_milwright")).parent().unwrap();
    let path = format!("{}:{}", own.display(), std::env::var("PATH").unwrap());
    let output = Command::new("sh")
        .args(["-e", "-c", &format!("exec 2>&1\n{commands}")])
        .current_dir(folder)
        .env("PATH", path)
        .env("NO_COLOR", "1")
        .output()
        .unwrap();
    let printed = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{printed}");
    printed
}
