//! Names, strings and opset words: what is written bare, what is quoted, and how it is escaped.

use super::Dialect;
use super::writer::Writer;
use crate::ir::{DType, Opset};

/// Words that mean something else in MIL text; a name equal to one of them is quoted.
const RESERVED: [&str; 12] = [
    "BLOBFILE", "dict", "false", "func", "inf", "list", "nan", "program", "state", "tensor",
    "true", "tuple",
];

/// The opset key that a word in `func main<…>` stands for; other words stand for themselves.
pub fn opset_from_word(word: &str) -> &str {
    match Opset::from_word(word) {
        Some(opset) => opset.name(),
        None => word,
    }
}

/// The word that stands for an opset key in `func main<…>`, if there is one.
pub fn opset_word(opset: &str) -> Option<&'static str> {
    Opset::parse(opset).map(Opset::word)
}

impl Dialect {
    /// The dialect in which Core ML's compiler writes a function of this opset: `program(1.0)`
    /// before `CoreML8` (iOS 18), `program(1.3)` from then on.
    pub fn for_opset(opset: &str) -> Self {
        let number = opset.strip_prefix("CoreML").map(str::parse::<u32>);
        match number {
            Some(Ok(8..)) => Self::Program13,
            _ => Self::Program10,
        }
    }
}

/// True if the text is an identifier of MIL and no word with another meaning.
pub(super) fn is_bare(name: &str) -> bool {
    let mut bytes = name.bytes();
    let starts = bytes
        .next()
        .is_some_and(|b| b.is_ascii_alphabetic() || b == b'_');
    starts
        && bytes.all(|b| b.is_ascii_alphanumeric() || b == b'_' || b == b'@')
        && !RESERVED.contains(&name)
        && !is_type_word(name)
}

fn is_type_word(name: &str) -> bool {
    // Every type word but `unused` starts with one of these, so most names skip the table.
    matches!(
        name.as_bytes(),
        [b'b' | b'd' | b'f' | b'i' | b's' | b'u', ..]
    ) && (DType::from_word(name).is_some()
        || name
            .strip_prefix("dtype")
            .is_some_and(|number| number.parse::<i32>().is_ok()))
}

impl Writer<'_> {
    /// A name: bare if it is an identifier, else between backquotes.
    pub(super) fn name(&mut self, name: &str) {
        if is_bare(name) {
            self.push(name);
        } else {
            self.quoted(name, '`');
        }
    }

    /// A string literal.
    pub(super) fn string(&mut self, text: &str) {
        self.quoted(text, '"');
    }

    /// The word of an opset.
    pub(super) fn opset(&mut self, opset: &str) {
        if let Some(word) = opset_word(opset) {
            self.push(word);
        } else if Opset::from_word(opset).is_some() {
            self.quoted(opset, '`');
        } else {
            self.name(opset);
        }
    }

    fn quoted(&mut self, text: &str, quote: char) {
        self.put(format_args!("{quote}"));
        let mut plain = 0;
        for (at, character) in text.char_indices() {
            if character != quote && character != '\\' && !needs_escape(character) {
                continue;
            }
            self.push(&text[plain..at]);
            plain = at + character.len_utf8();
            match character {
                '\n' => self.push("\\n"),
                '\r' => self.push("\\r"),
                '\t' => self.push("\\t"),
                '\\' => self.push("\\\\"),
                _ if character == quote => self.put(format_args!("\\{quote}")),
                _ => self.put(format_args!("\\u{{{:x}}}", character as u32)),
            }
        }
        self.push(&text[plain..]);
        self.put(format_args!("{quote}"));
    }
}

/// Control characters, and the characters that make a reader see another order or another line.
fn needs_escape(character: char) -> bool {
    character.is_control()
        || matches!(character,
            '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{feff}')
}

#[cfg(test)]
mod tests {
    use super::super::writer::Style;
    use super::*;

    fn name(text: &str) -> String {
        Writer::text(Style::whole(Dialect::Program13), |w| w.name(text))
    }

    fn string(text: &str) -> String {
        Writer::text(Style::whole(Dialect::Program13), |w| w.string(text))
    }

    fn opset(text: &str) -> String {
        Writer::text(Style::whole(Dialect::Program13), |w| w.opset(text))
    }

    #[test]
    fn identifiers_stand_bare_and_everything_else_is_quoted() {
        for bare in ["x", "_1", "var_3@tap", "output_scores", "string_lookup"] {
            assert_eq!(name(bare), bare);
        }
        for quoted in [
            "", "1x", "a b", "a.b", "ä", "true", "fp16", "dtype99", "tensor",
        ] {
            assert_eq!(name(quoted), format!("`{quoted}`"));
        }
        assert_eq!(name("a`b\"c\\"), "`a\\`b\"c\\\\`");
    }

    #[test]
    fn strings_escape_quotes_backslashes_and_what_cannot_be_seen() {
        assert_eq!(string("plain ü 漢 'x' `y`"), "\"plain ü 漢 'x' `y`\"");
        assert_eq!(string("a\"b\\c\nd\te\r"), r#""a\"b\\c\nd\te\r""#);
        assert_eq!(
            string("\0\u{1b}\u{7f}\u{202e}\u{85}"),
            r#""\u{0}\u{1b}\u{7f}\u{202e}\u{85}""#
        );
    }

    #[test]
    fn opsets_have_the_words_of_the_compiler_and_unknown_ones_stay_as_spelled() {
        // Words as in the compiled models: silero-vad-unified (ios15), test_linear (ios16),
        // decoder (ios17); ios18 from texts that Apple's compiler accepts.
        assert_eq!(opset("CoreML5"), "ios15");
        assert_eq!(opset("CoreML6"), "ios16");
        assert_eq!(opset("CoreML7"), "ios17");
        assert_eq!(opset("CoreML8"), "ios18");
        assert_eq!(opset("CoreML10"), "CoreML10");
        assert_eq!(opset("ios18"), "`ios18`");
        assert_eq!(opset(""), "``");
        assert_eq!(opset_from_word("ios16"), "CoreML6");
        assert_eq!(opset_from_word("CoreML10"), "CoreML10");
    }
}
