//! What scripts rely on whatever the command: exit statuses, the two streams, `--quiet`, colours.

use std::io::Read;
use std::process::{Command, Stdio};

use crate::command::{Folder, args, done, milwright, refused, run};
use crate::support::folders::test_package;

#[test]
fn results_go_to_standard_output_and_notes_to_standard_error() {
    let package = test_package("attention_block");
    for arguments in [
        args!["print", package],
        args!["print", "--format", "summary", package],
        args!["list"],
        args!["explain", "pow-to-mul"],
    ] {
        let ran = done(arguments);
        assert_ne!(ran.stdout, "");
        assert_eq!(ran.stderr, "");
    }
    let ran = done(args!["optimize", "--dry-run", package]);
    assert_eq!(ran.stdout, "");
    assert!(ran.stderr.contains("29 rewrites"), "{}", ran.stderr);
    let ran = done(args![
        "why",
        test_package("rmsnorm_ios16"),
        "fold-rsqrt-epsilon"
    ]);
    assert!(ran.stdout.contains("subnormal_inverse"), "{}", ran.stdout);
    assert!(ran.stderr.contains("1 near match"), "{}", ran.stderr);
}

#[test]
fn quiet_leaves_results_and_errors() {
    let folder = Folder::new();
    let out = folder.join("out.mlpackage");
    let ran = done(args![
        "optimize",
        "-q",
        test_package("unknown_op"),
        "-o",
        out
    ]);
    assert_eq!((ran.stdout.as_str(), ran.stderr.as_str()), ("", ""));
    let ran = done(args![
        "--quiet",
        "why",
        test_package("rmsnorm_ios16"),
        "fold-rsqrt-epsilon"
    ]);
    assert!(ran.stdout.contains("subnormal_inverse"));
    assert_eq!(ran.stderr, "");
    refused(
        args!["optimize", "-q", test_package("unknown_op"), "-o", out],
        &["exists"],
    );
}

#[test]
fn usage_that_is_wrong_has_status_2_and_writes_nothing() {
    let package = test_package("metadata");
    for arguments in [
        args![],
        args!["optimise"],
        args!["optimize"],
        args!["optimize", package],
        args!["optimize", package, "--no-such-option"],
        args!["optimize", package, "--max-rewrites", "many", "--dry-run"],
        args!["print", package, "--format", "yaml"],
        args!["why", package],
        args!["explain"],
        args!["list", "-q", "-v"],
    ] {
        let ran = run(&arguments);
        assert_eq!(ran.status, 2, "{arguments:?}: {ran:?}");
        assert_eq!(ran.stdout, "", "{arguments:?}");
    }
    let ran = run(args!["optimise"]);
    assert!(ran.stderr.contains("'optimize'"), "{}", ran.stderr);
}

#[test]
fn help_and_version_are_results() {
    for arguments in [args!["--help"], args!["optimize", "--help"], args!["-V"]] {
        let ran = done(&arguments);
        assert!(ran.stdout.contains("milwright"), "{arguments:?}");
        assert_eq!(ran.stderr, "");
    }
}

#[test]
fn colours_are_for_terminals_unless_asked_for() {
    let missing = Folder::new().join("missing.mlpackage");
    let plain = run(args!["print", missing]);
    assert!(plain.stderr.starts_with("error: "), "{}", plain.stderr);
    let never = run(args!["--color", "never", "print", missing]);
    assert_eq!(never.stderr, plain.stderr);
    let always = run(args!["print", missing, "--color", "always"]);
    assert!(always.stderr.starts_with("\u{1b}["), "{}", always.stderr);
}

/// As `milwright print MODEL | head` does.
#[cfg(unix)]
#[test]
fn a_reader_that_leaves_early_is_no_error() {
    let package = test_package("attention_block");
    for arguments in [
        args!["print", package],
        args!["print", "--format", "json", package],
        args!["print", "--format", "dot", package],
        args!["optimize", "--dry-run", "-q", "--print", "after", package],
        args!["explain", "pow-to-mul"],
    ] {
        let mut child = Command::new(milwright().get_program())
            .args(&arguments)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        drop(child.stdout.take());
        let mut errors = String::new();
        let mut stderr = child.stderr.take().unwrap();
        stderr.read_to_string(&mut errors).unwrap();
        let status = child.wait().unwrap();
        assert_eq!(errors, "", "{arguments:?}");
        assert_eq!(status.code(), Some(0), "{arguments:?}");
    }
}

#[test]
fn a_standard_output_that_cannot_be_written_is_an_error() {
    let Ok(full) = std::fs::OpenOptions::new().write(true).open("/dev/full") else {
        println!("skipped: there is no /dev/full here");
        return;
    };
    let output = Command::new(milwright().get_program())
        .args(args!["print", test_package("attention_block")])
        .stdout(full)
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(2));
    let errors = String::from_utf8(output.stderr).unwrap();
    assert!(errors.starts_with("error: "), "{errors}");
    assert_eq!(errors.lines().count(), 1, "{errors}");
}
