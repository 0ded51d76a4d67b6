//! Tokens of MIL text: where each begins and ends, and what kind it is.

use std::ops::Range;

/// What a token is. Its text is the source between its ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// A letter or `_`, then letters, digits, `_` and `@`.
    Word,
    /// A name between backquotes.
    Quoted,
    /// A string between double quotes.
    String,
    /// What begins with a digit, a sign or a point; whether it is a number, its reader says.
    Number,
    /// `@` and a word.
    Mark,
    /// One of ``( ) [ ] { } < > , ; = ?``.
    Symbol(u8),
    /// `->`.
    Arrow,
    /// `...`.
    Ellipsis,
    /// The end of the text.
    End,
    /// No token of the language.
    Bad(Fault),
}

/// Why something is no token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    Character,
    Quote,
}

impl Fault {
    /// What is wrong, for the reader of the error.
    pub(super) fn message(self) -> &'static str {
        match self {
            Self::Character => "no token of MIL text begins with this character",
            Self::Quote => "the closing quote is missing",
        }
    }
}

/// A token.
#[derive(Clone, Copy, Debug)]
pub(super) struct Token {
    pub(super) kind: Kind,
    /// Byte position of its first byte.
    pub(super) start: usize,
    /// Byte position after its last byte.
    pub(super) end: usize,
}

/// Reads tokens one after the other; a copy of it looks ahead.
#[derive(Clone, Copy)]
pub(super) struct Lexer<'s> {
    source: &'s str,
    at: usize,
}

impl<'s> Lexer<'s> {
    pub(super) fn new(source: &'s str) -> Self {
        let at = if source.starts_with('\u{feff}') { 3 } else { 0 };
        Self { source, at }
    }

    /// Goes on at a byte position, at which no token is cut in two.
    pub(super) fn at(source: &'s str, at: usize) -> Self {
        Self { source, at }
    }

    /// The next token, spaces and comments skipped.
    pub(super) fn token(&mut self) -> Token {
        self.skip();
        let start = self.at;
        let kind = self.kind();
        Token {
            kind,
            start,
            end: self.at,
        }
    }

    fn skip(&mut self) {
        let bytes = self.source.as_bytes();
        loop {
            let rest = bytes.get(self.at..).unwrap_or_default();
            self.at += count(rest, SPACE);
            if !bytes[self.at..].starts_with(b"//") {
                return;
            }
            self.at = self.line_end();
        }
    }

    /// The position of the next line break, or the end of the text.
    fn line_end(&self) -> usize {
        let rest = self.source.as_bytes().get(self.at..).unwrap_or_default();
        let length = memchr::memchr(b'\n', rest);
        self.at + length.unwrap_or(rest.len())
    }

    fn kind(&mut self) -> Kind {
        let bytes = self.source.as_bytes();
        let Some(&first) = bytes.get(self.at) else {
            return Kind::End;
        };
        let next = bytes.get(self.at + 1).copied().unwrap_or(0);
        match first {
            b'a'..=b'z' | b'A'..=b'Z' | b'_' => {
                self.word();
                Kind::Word
            }
            b'(' | b')' | b'[' | b']' | b'{' | b'}' | b'<' | b'>' | b',' | b';' | b'=' | b'?' => {
                self.at += 1;
                Kind::Symbol(first)
            }
            b'"' => self.quoted(b'"', Kind::String),
            b'`' => self.quoted(b'`', Kind::Quoted),
            b'-' if next == b'>' => {
                self.at += 2;
                Kind::Arrow
            }
            b'.' if bytes[self.at..].starts_with(b"...") => {
                self.at += 3;
                Kind::Ellipsis
            }
            b'0'..=b'9' | b'-' | b'+' | b'.' => {
                self.number();
                Kind::Number
            }
            b'@' if next.is_ascii_alphabetic() => {
                self.at += 1;
                self.word();
                Kind::Mark
            }
            _ => {
                let character = self.source.get(self.at..).and_then(|s| s.chars().next());
                self.at += character.map_or(1, char::len_utf8);
                Kind::Bad(Fault::Character)
            }
        }
    }

    fn word(&mut self) {
        let rest = self.source.as_bytes().get(self.at..).unwrap_or_default();
        self.at += count(rest, WORD);
    }

    /// A sign, then letters, digits, `_` and points; a sign again after an exponent's letter.
    fn number(&mut self) {
        let bytes = self.source.as_bytes();
        self.at += usize::from(matches!(bytes[self.at], b'-' | b'+'));
        let hex = bytes[self.at..].starts_with(b"0x");
        loop {
            let length = count(&bytes[self.at..], NUMBER);
            let exponent = match bytes[..self.at + length].last() {
                Some(b'p' | b'P') => true,
                Some(b'e' | b'E') => !hex,
                _ => false,
            };
            self.at += length;
            let sign = matches!(bytes.get(self.at), Some(b'+' | b'-'));
            if length == 0 || !exponent || !sign {
                return;
            }
            self.at += 1;
        }
    }

    fn quoted(&mut self, quote: u8, kind: Kind) -> Kind {
        let bytes = self.source.as_bytes();
        let mut at = self.at + 1;
        while let Some(length) = memchr::memchr2(quote, b'\\', bytes.get(at..).unwrap_or_default())
        {
            at += length + 1;
            if bytes[at - 1] == quote {
                self.at = at;
                return kind;
            }
            at += 1;
        }
        // Go on with the next line, so that the rest of the text is read.
        self.at = self.line_end();
        Kind::Bad(Fault::Quote)
    }
}

/// The classes of bytes that the insides of tokens are made of, as bits in [`CLASSES`].
const SPACE: u8 = 1;
const WORD: u8 = 2;
const NUMBER: u8 = 4;

/// The classes of each byte.
static CLASSES: [u8; 256] = {
    let mut classes = [0; 256];
    let mut byte = 0;
    while byte < 256 {
        classes[byte] = match byte as u8 {
            b' ' | b'\n' | b'\t' | b'\r' => SPACE,
            b'0'..=b'9' | b'A'..=b'Z' | b'a'..=b'z' | b'_' => WORD | NUMBER,
            b'@' => WORD,
            b'.' => NUMBER,
            _ => 0,
        };
        byte += 1;
    }
    classes
};

/// How many of the first bytes are of a class.
fn count(bytes: &[u8], class: u8) -> usize {
    bytes
        .iter()
        .position(|byte| CLASSES[usize::from(*byte)] & class == 0)
        .unwrap_or(bytes.len())
}

/// Where the tokens of a text stand, as ranges of bytes; what is no token stands among them.
pub fn tokens(source: &str) -> impl Iterator<Item = Range<usize>> {
    let mut lexer = Lexer::new(source);
    std::iter::from_fn(move || {
        let token = lexer.token();
        (token.kind != Kind::End).then_some(token.start..token.end)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kinds(source: &str) -> Vec<(Kind, &str)> {
        let mut lexer = Lexer::new(source);
        let mut found = Vec::new();
        loop {
            let token = lexer.token();
            if token.kind == Kind::End {
                return found;
            }
            found.push((token.kind, &source[token.start..token.end]));
        }
    }

    #[test]
    fn a_statement_splits_into_its_tokens() {
        let found = kinds("fp16 x@1=f(a=-0x1.8p-3,`b c`)->... // end\n@new \"a\\\"b\" 1e-5");
        let texts: Vec<&str> = found.iter().map(|pair| pair.1).collect();
        let expected = [
            "fp16",
            "x@1",
            "=",
            "f",
            "(",
            "a",
            "=",
            "-0x1.8p-3",
            ",",
            "`b c`",
            ")",
            "->",
            "...",
            "@new",
            "\"a\\\"b\"",
            "1e-5",
        ];
        assert_eq!(texts, expected);
    }

    #[test]
    fn what_is_no_token_is_told_and_the_rest_is_read() {
        let found = kinds("\u{feff}a ä \"open\nb");
        assert!(matches!(found[1], (Kind::Bad(_), "ä")));
        assert!(matches!(found[2], (Kind::Bad(_), "\"open")));
        assert_eq!(found[3], (Kind::Word, "b"));
    }
}
