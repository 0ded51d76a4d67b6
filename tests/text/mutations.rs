//! Broken texts: real programs with tokens deleted, doubled, swapped, or cut off.
//!
//! Each gives errors with a place inside the text, or is still a program; none panics.

use std::fs;

use milwright::model::Model;
use milwright::text::{PrintOptions, parse, program_text};

use crate::support::folders::test_package;

/// Mutations of each kind for each text.
const ROUNDS: u64 = 12;

/// Texts of the test packages whose programs are small enough to be parsed hundreds of times.
fn texts() -> Vec<(String, String)> {
    let mut texts = Vec::new();
    for name in [
        "attention_block",
        "control_flow",
        "lists",
        "literal_bindings",
        "multifunction",
        "odd_types",
        "quantized_ios16",
        "quantized_ios18",
        "stateful",
        "unknown_op",
    ] {
        let file = test_package(name).join("Data/com.apple.CoreML/model.mlmodel");
        let model = Model::decode(&fs::read(file).expect("a test package")).expect("a model");
        for part in model.programs() {
            let text = program_text(part.program, &PrintOptions::default()).expect("a text");
            texts.push((name.to_owned(), text));
        }
    }
    texts
}

/// Pieces of a text: words and single characters, so that joining them gives the text again.
fn tokens(text: &str) -> Vec<&str> {
    let mut tokens = Vec::new();
    let mut start = 0;
    let mut in_word = false;
    for (at, character) in text.char_indices() {
        let word = character.is_alphanumeric() || character == '_';
        if at > start && !(word && in_word) {
            tokens.push(&text[start..at]);
            start = at;
        }
        in_word = word;
    }
    tokens.push(&text[start..]);
    tokens
}

/// Numbers that look random and are the same each time (splitmix64).
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) % bound as u64) as usize
    }
}

/// Parses a broken text; gives whether it was refused. Every error must name a place in the text.
fn is_refused(text: &str, what: &str) -> bool {
    let Err(errors) = parse(text, what) else {
        return false;
    };
    assert!(!errors.is_empty(), "{what}: refused without an error");
    let lines: Vec<&str> = text.split('\n').collect();
    for error in errors {
        assert!(!error.message.is_empty(), "{what}");
        let line = lines.get(error.line.wrapping_sub(1));
        let line = line.unwrap_or_else(|| panic!("{what}: line {} is not there", error.line));
        let width = line.chars().count();
        assert!(
            (1..=width + 1).contains(&error.column),
            "{what}: line {} has {width} columns, not {}",
            error.line,
            error.column
        );
    }
    true
}

#[test]
fn broken_texts_are_refused_with_a_place_in_the_text_and_never_panic() {
    let mut numbers = Numbers(1);
    let (mut broken, mut refused) = (0, 0);
    for (name, text) in texts() {
        let tokens = tokens(&text);
        assert_eq!(tokens.concat(), text);
        assert!(parse(&text, &name).is_ok(), "{name} itself is a program");
        let mut check = |kind: &str, text: &str| {
            broken += 1;
            refused += usize::from(is_refused(text, &format!("{name}, {kind}")));
        };
        for _ in 0..ROUNDS {
            let at = numbers.below(tokens.len());
            let other = numbers.below(tokens.len());
            let mut mutated = tokens.clone();
            mutated.remove(at);
            check("a token deleted", &mutated.concat());
            mutated.clone_from(&tokens);
            mutated.insert(at, tokens[at]);
            check("a token doubled", &mutated.concat());
            mutated.clone_from(&tokens);
            mutated.swap(at, other);
            check("two tokens swapped", &mutated.concat());
            check("cut off", &tokens[..at].concat());
        }
    }
    assert!(broken >= 200, "only {broken} texts");
    // White space may go or come twice, and a name may be another one; most damage is noticed.
    assert!(
        refused * 2 > broken,
        "only {refused} of {broken} were refused"
    );
}
