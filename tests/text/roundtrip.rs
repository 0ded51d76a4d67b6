//! Text in, text out: what the printer writes, the parser reads back, and nothing is lost.
//!
//! Over the test packages, and over all packages and compiled models below `MILWRIGHT_CORPUS`.

use std::fs;
use std::path::Path;

use milwright::ir::Program;
use milwright::model::{Model, Placements};
use milwright::text::{Dialect, ParseError, PrintOptions, parse, program_text};

use crate::support::folders::{corpus, found_below, test_packages};

fn print(program: &Program, dialect: Option<Dialect>) -> String {
    let options = PrintOptions {
        dialect,
        ..PrintOptions::default()
    };
    program_text(program, &options).expect("no function is asked for")
}

fn read(text: &str, origin: &str) -> Program {
    let show = |errors: Vec<ParseError>| {
        let lines: Vec<String> = errors.iter().map(ToString::to_string).collect();
        panic!("{}", lines.join("\n"))
    };
    parse(text, origin).unwrap_or_else(show).program
}

/// Checks one model file; gives the number of programs in it.
fn check_model(path: &Path) -> usize {
    let origin = path.display().to_string();
    let bytes = fs::read(path).expect("the file was listed");
    // Some files in the folders are other kinds of model.
    let Ok(model) = Model::decode(&bytes) else {
        return 0;
    };
    let expected = model.encode(&Placements::default());
    let mut through_text = model.clone();
    let mut count = 0;
    for program in through_text.programs_mut() {
        for dialect in [Dialect::Program10, Dialect::Program13] {
            let text = print(program, Some(dialect));
            let parsed = read(&text, &origin);
            assert_eq!(print(&parsed, Some(dialect)), text, "{origin}");
            *program = parsed;
        }
        count += 1;
    }
    let Ok(expected) = expected else {
        // The file holds what is not written; its text has been compared.
        return count;
    };
    let encoded = through_text
        .encode(&Placements::default())
        .expect("it could be encoded before");
    assert!(
        encoded == expected,
        "{origin}: the program changed in its text"
    );
    count
}

#[test]
fn test_packages_go_through_their_text_unchanged() {
    let programs: usize = found_below(&test_packages(), &["mlmodel"])
        .iter()
        .map(|f| check_model(f))
        .sum();
    assert!(programs >= 20, "only {programs} programs");
}

#[test]
fn every_package_of_the_corpus_goes_through_its_text_unchanged() {
    let Some(corpus) = corpus() else { return };
    let programs: usize = found_below(&corpus, &["mlmodel"])
        .iter()
        .map(|file| check_model(file))
        .sum();
    assert!(programs >= 200, "only {programs} programs");
}

/// A statement with the order of parameters, spaces and number spelling taken out.
fn normalized(line: &str) -> String {
    let mut parts: Vec<String> = line
        .split([',', '(', ')', '[', ']', '='])
        .map(|part| part.split_whitespace().collect())
        .collect();
    parts.sort();
    parts.join(" ")
}

#[test]
fn texts_of_the_compiler_print_back_as_they_were() {
    let Some(corpus) = corpus() else { return };
    let mut count = 0;
    for path in found_below(&corpus, &["mil"]) {
        let origin = path.display().to_string();
        let source = fs::read_to_string(&path).expect("the corpus has text models only");
        let parsed = parse(&source, &origin).unwrap_or_else(|errors| panic!("{}", errors[0]));
        let printed = print(&parsed.program, Some(parsed.dialect));
        let again = read(&printed, &origin);
        assert_eq!(print(&again, Some(parsed.dialect)), printed, "{origin}");
        let statements = |text: &str| text.lines().map(normalized).collect::<Vec<_>>();
        if path.file_name().is_some_and(|name| name == "model.mil") {
            assert_eq!(statements(&printed), statements(&source), "{origin}");
        }
        count += 1;
    }
    assert!(count >= 20, "only {count} texts");
}
