//! Tokens of MIL text: where each begins and ends, and what kind it is.

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
    /// No token of the language, with the reason.
    Bad(&'static str),
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
            match bytes.get(self.at) {
                Some(b' ' | b'\n' | b'\t' | b'\r') => self.at += 1,
                Some(b'/') if bytes.get(self.at + 1) == Some(&b'/') => self.at = self.line_end(),
                _ => return,
            }
        }
    }

    /// The position of the next line break, or the end of the text.
    fn line_end(&self) -> usize {
        let rest = self.source.as_bytes().get(self.at..).unwrap_or_default();
        let length = rest.iter().position(|b| *b == b'\n');
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
                Kind::Bad("no token of MIL text begins with this character")
            }
        }
    }

    fn word(&mut self) {
        let rest = &self.source.as_bytes()[self.at..];
        let length = rest
            .iter()
            .position(|b| !(b.is_ascii_alphanumeric() || *b == b'_' || *b == b'@'));
        self.at += length.unwrap_or(rest.len());
    }

    /// A sign, then letters, digits, `_` and points; a sign again after an exponent's letter.
    fn number(&mut self) {
        let bytes = self.source.as_bytes();
        self.at += usize::from(matches!(bytes[self.at], b'-' | b'+'));
        let hex = bytes[self.at..].starts_with(b"0x");
        let mut last = 0;
        while let Some(&byte) = bytes.get(self.at) {
            let exponent = match last {
                b'p' | b'P' => true,
                b'e' | b'E' => !hex,
                _ => false,
            };
            let part = byte.is_ascii_alphanumeric()
                || matches!(byte, b'.' | b'_')
                || (exponent && matches!(byte, b'+' | b'-'));
            if !part {
                break;
            }
            last = byte;
            self.at += 1;
        }
    }

    fn quoted(&mut self, quote: u8, kind: Kind) -> Kind {
        let bytes = self.source.as_bytes();
        let mut at = self.at + 1;
        while let Some(&byte) = bytes.get(at) {
            at += 1;
            if byte == quote {
                self.at = at;
                return kind;
            }
            at += usize::from(byte == b'\\');
        }
        // Go on with the next line, so that the rest of the text is read.
        self.at = self.line_end();
        Kind::Bad("the closing quote is missing")
    }
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
