//! Parser of MIL text: programs and functions, errors, and what all parts of the grammar share.
//!
//! It reads both dialects whatever the version in the header says, everything that the printer
//! writes (see the module's page), comments, and three spellings that the printer does not use:
//! decimal numbers, `fill(v)` and `random(seed, scale)` in place of a tensor's elements.
//!
//! - `fill(v)`: every element is `v`.
//! - `random(seed, scale)`: element `i` is `(2u − 1)·scale`, rounded to nearest even in the
//!   tensor's type, where `u` is the upper 53 bits, as a fraction in `[0, 1)`, of the `i`-th output
//!   of the generator splitmix64 started with the unsigned 64-bit `seed`.
//!
//! Nesting is limited, so that no text overflows the stack. After an error the parser goes on with
//! the next statement; uses of what a faulty statement would have defined are not errors again.

mod body;
mod elements;
mod number;
mod plain;
mod types;
mod values;

use std::borrow::Cow;
use std::collections::{BTreeMap, HashSet};
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use super::Dialect;
use super::lexer::{Kind, Lexer, Token};
use super::words::opset_from_word;
use crate::ir::{Body, BodyBuilder, Function, InputOrigin, NamedType, Program};

/// Types, values and blocks may be nested this deep together. Protobuf readers stop at a hundred
/// messages, and each of these is at least one.
const MAX_DEPTH: usize = 100;

/// After this many errors the rest of the text is not read.
const MAX_ERRORS: usize = 50;

/// A text, parsed.
#[derive(Clone, Debug)]
pub struct Parsed {
    /// The program.
    pub program: Program,
    /// The version in the header as spelled, such as `1.3`.
    pub version: String,
    /// The dialect that this version stands for: the older one below 1.3.
    pub dialect: Dialect,
}

/// Something in a text that is not MIL.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub struct ParseError {
    /// What the text is called, usually a path.
    pub origin: Arc<str>,
    /// The bytes of the text that are wrong; empty at the end of the text.
    pub span: Range<usize>,
    /// Line of the first of them, from 1.
    pub line: usize,
    /// Column of the first of them, in characters from 1.
    pub column: usize,
    /// What is wrong, and what was expected.
    pub message: String,
}

impl fmt::Display for ParseError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            origin,
            line,
            column,
            message,
            ..
        } = self;
        write!(f, "{origin}:{line}:{column}: {message}")
    }
}

/// Parses a program; `origin` names the text in errors.
///
/// # Errors
/// Everything that is wrong, in the order of the text, up to a limit. The list is not empty.
pub fn parse(source: &str, origin: &str) -> Result<Parsed, Vec<ParseError>> {
    let mut parser = Parser::new(source, origin);
    let parsed = parser.text();
    match parsed {
        Ok(parsed) if parser.errors.is_empty() => Ok(parsed),
        _ => {
            parser.errors.sort_by_key(|error| error.span.start);
            Err(parser.errors)
        }
    }
}

/// The text does not go on as it should; the error is already in the list.
#[derive(Debug)]
struct Fail;

type Parse<T> = Result<T, Fail>;

struct Parser<'s> {
    source: &'s str,
    origin: Arc<str>,
    lexer: Lexer<'s>,
    token: Token,
    depth: usize,
    errors: Vec<ParseError>,
    /// Names that faulty statements of the present function would have defined.
    poisoned: HashSet<String>,
    /// A statement was so faulty that its names are not known.
    names_lost: bool,
}

impl<'s> Parser<'s> {
    fn new(source: &'s str, origin: &str) -> Self {
        let token = Token {
            kind: Kind::End,
            start: 0,
            end: 0,
        };
        let mut parser = Self {
            source,
            origin: origin.into(),
            lexer: Lexer::new(source),
            token,
            depth: 0,
            errors: Vec::new(),
            poisoned: HashSet::new(),
            names_lost: false,
        };
        parser.advance();
        parser
    }

    // Tokens.

    fn advance(&mut self) {
        self.token = self.lexer.token();
        if let Kind::Bad(why) = self.token.kind {
            self.report(self.span(), why.message());
        }
        if self.errors.len() >= MAX_ERRORS {
            self.token.kind = Kind::End;
        }
    }

    fn span(&self) -> Range<usize> {
        self.token.start..self.token.end
    }

    fn slice(&self, span: Range<usize>) -> &'s str {
        self.source.get(span).unwrap_or_default()
    }

    fn token_text(&self) -> &'s str {
        self.slice(self.span())
    }

    fn at_symbol(&self, symbol: u8) -> bool {
        self.token.kind == Kind::Symbol(symbol)
    }

    fn at_word(&self, word: &str) -> bool {
        self.token.kind == Kind::Word && self.token_text() == word
    }

    fn at_mark(&self, mark: &str) -> bool {
        self.token.kind == Kind::Mark && self.token_text() == mark
    }

    /// The kind of the token after the present one.
    fn next_kind(&self) -> Kind {
        let mut ahead = self.lexer;
        ahead.token().kind
    }

    fn eat_symbol(&mut self, symbol: u8) -> bool {
        let found = self.at_symbol(symbol);
        if found {
            self.advance();
        }
        found
    }

    fn eat_mark(&mut self, mark: &str) -> bool {
        let found = self.at_mark(mark);
        if found {
            self.advance();
        }
        found
    }

    fn symbol(&mut self, symbol: u8) -> Parse<()> {
        if self.eat_symbol(symbol) {
            Ok(())
        } else {
            Err(self.expected(&format!("`{}`", char::from(symbol))))
        }
    }

    fn word(&mut self, word: &str) -> Parse<()> {
        if self.at_word(word) {
            self.advance();
            Ok(())
        } else {
            Err(self.expected(&format!("`{word}`")))
        }
    }

    /// A name, bare or between backquotes.
    fn name(&mut self, what: &str) -> Parse<Cow<'s, str>> {
        let name = match self.token.kind {
            Kind::Word => self.token_text().into(),
            Kind::Quoted => self.unescape(self.span())?,
            _ => return Err(self.expected(what)),
        };
        self.advance();
        Ok(name)
    }

    fn string(&mut self) -> Parse<String> {
        if self.token.kind != Kind::String {
            return Err(self.expected("a string"));
        }
        let text = self.unescape(self.span())?.into_owned();
        self.advance();
        Ok(text)
    }

    /// An integer that stands alone, such as a dimension.
    fn integer<T: std::str::FromStr>(&mut self, what: &str) -> Parse<T> {
        if self.token.kind == Kind::Number
            && let Ok(number) = self.token_text().parse()
        {
            self.advance();
            return Ok(number);
        }
        Err(self.expected(what))
    }

    /// `item` as often as there are commas between, up to the closing symbol, which is read too.
    fn list(&mut self, close: u8, mut item: impl FnMut(&mut Self) -> Parse<()>) -> Parse<()> {
        if self.eat_symbol(close) {
            return Ok(());
        }
        loop {
            item(self)?;
            if self.eat_symbol(close) {
                return Ok(());
            }
            if !self.eat_symbol(b',') {
                return Err(self.expected(&format!("`,` or `{}`", char::from(close))));
            }
        }
    }

    /// The text between a token's quotes, escapes resolved.
    fn unescape(&mut self, span: Range<usize>) -> Parse<Cow<'s, str>> {
        let inner = span.start + 1..span.end.saturating_sub(1);
        let text = self.slice(inner.clone());
        if !text.contains('\\') {
            return Ok(text.into());
        }
        let mut out = String::with_capacity(text.len());
        let mut rest = text;
        while let Some(at) = rest.find('\\') {
            out.push_str(&rest[..at]);
            let escape = &rest[at + 1..];
            let Some((character, length)) = escaped(escape) else {
                let start = inner.end - escape.len() - 1;
                let why = "unknown escape; expected one of \\\" \\\\ \\` \\n \\r \\t \\u{…}";
                self.report(start..inner.end, why);
                return Err(Fail);
            };
            out.push(character);
            rest = &escape[length..];
        }
        out.push_str(rest);
        Ok(out.into())
    }

    /// Runs a part of the grammar that nests in itself.
    fn nested<T>(&mut self, part: impl FnOnce(&mut Self) -> Parse<T>) -> Parse<T> {
        if self.depth >= MAX_DEPTH {
            let why = format!("nested more than {MAX_DEPTH} deep");
            self.report(self.span(), &why);
            return Err(Fail);
        }
        self.depth += 1;
        let result = part(self);
        self.depth -= 1;
        result
    }

    // Errors.

    fn report(&mut self, span: Range<usize>, message: &str) {
        if self.errors.len() >= MAX_ERRORS {
            return;
        }
        let before = self.source.get(..span.start).unwrap_or(self.source);
        let line_start = before.rfind('\n').map_or(0, |at| at + 1);
        self.errors.push(ParseError {
            origin: Arc::clone(&self.origin),
            line: before.bytes().filter(|b| *b == b'\n').count() + 1,
            column: before[line_start..].chars().count() + 1,
            span,
            message: message.to_owned(),
        });
    }

    fn expected(&mut self, what: &str) -> Fail {
        // A bad token, and the limit, have been reported already.
        let found = match self.token.kind {
            Kind::Bad(_) => return Fail,
            Kind::End => "the end of the text".to_owned(),
            _ => {
                let text = self.token_text();
                match text.char_indices().nth(40) {
                    Some((cut, _)) => format!("`{}…`", &text[..cut]),
                    None => format!("`{text}`"),
                }
            }
        };
        self.report(self.span(), &format!("expected {what}, found {found}"));
        Fail
    }

    // Programs and functions.

    fn text(&mut self) -> Parse<Parsed> {
        self.word("program")?;
        self.symbol(b'(')?;
        let version = self.token_text().to_owned();
        let known = self.token.kind == Kind::Number && is_version(&version);
        if !known {
            return Err(self.expected("a version, such as 1.3"));
        }
        self.advance();
        self.symbol(b')')?;
        let program = self.program()?;
        let number: f64 = version.parse().unwrap_or(0.0);
        let dialect = if number < 1.3 {
            Dialect::Program10
        } else {
            Dialect::Program13
        };
        Ok(Parsed {
            program,
            version,
            dialect,
        })
    }

    fn program(&mut self) -> Parse<Program> {
        let mut program = Program {
            version: 1,
            ..Program::default()
        };
        if self.eat_mark("@version") {
            self.symbol(b'(')?;
            program.version = self.integer("a whole number")?;
            self.symbol(b')')?;
        }
        if self.eat_mark("@doc") {
            program.doc = self.string()?;
        }
        if self.at_symbol(b'[') {
            program.attributes = self.attributes()?;
        }
        self.symbol(b'{')?;
        while !self.at_symbol(b'}') {
            let start = self.token.start;
            let Ok((name, function)) = self.function() else {
                self.skip_function(start)?;
                continue;
            };
            if program.functions.contains_key(&name) {
                let why = format!("there already is a function `{name}`");
                self.report(start..start + "func".len(), &why);
            }
            program.functions.insert(name, function);
        }
        self.advance();
        if self.token.kind != Kind::End {
            return Err(self.expected("the end of the text"));
        }
        Ok(program)
    }

    /// Goes on at the next function after a faulty one that began at `start`.
    fn skip_function(&mut self, start: usize) -> Parse<()> {
        if self.token.start == start {
            self.advance();
        }
        while !self.at_word("func") {
            if self.token.kind == Kind::End {
                return Err(Fail);
            }
            self.advance();
        }
        Ok(())
    }

    fn function(&mut self) -> Parse<(String, Function)> {
        self.poisoned.clear();
        self.names_lost = false;
        if !self.at_word("func") {
            return Err(self.expected("`func` or `}`"));
        }
        self.advance();
        let name = self.name("the function's name")?.into_owned();
        let opset = self.opset()?;
        let inputs = self.inputs()?;
        let mut function = Function {
            inputs: inputs.iter().map(|(named, _)| named.clone()).collect(),
            opset,
            ..Function::default()
        };
        if self.at_symbol(b'[') {
            function.attributes = self.attributes()?;
        }
        if self.eat_mark("@no_body") {
            self.symbol(b';')?;
        } else {
            let body = self.function_body(&inputs)?;
            function
                .specializations
                .insert(function.opset.clone(), body);
        }
        while self.at_mark("@body") {
            let span = self.span();
            self.advance();
            let opset = self.opset()?;
            let body = self.function_body(&inputs)?;
            if function.specializations.contains_key(&opset) || opset == function.opset {
                self.report(span, &format!("there already is a body for `{opset}`"));
            }
            function.specializations.insert(opset, body);
        }
        Ok((name, function))
    }

    /// `<WORD>`, as the opset's key.
    fn opset(&mut self) -> Parse<String> {
        self.symbol(b'<')?;
        let quoted = self.token.kind == Kind::Quoted;
        let word = self.name("an opset, such as `ios18`")?;
        self.symbol(b'>')?;
        Ok(if quoted {
            word.into_owned()
        } else {
            opset_from_word(&word).to_owned()
        })
    }

    /// `(TYPE name, …)` with the places of the names.
    fn inputs(&mut self) -> Parse<Vec<(NamedType, Range<usize>)>> {
        self.symbol(b'(')?;
        let mut inputs = Vec::new();
        self.list(b')', |parser| {
            inputs.push(parser.named()?);
            Ok(())
        })?;
        Ok(inputs)
    }

    fn named(&mut self) -> Parse<(NamedType, Range<usize>)> {
        let ty = self.optional_type()?;
        let span = self.span();
        let name = self.name("a name")?.into_owned();
        Ok((NamedType { name, ty }, span))
    }

    fn function_body(&mut self, inputs: &[(NamedType, Range<usize>)]) -> Parse<Body> {
        let mut builder = BodyBuilder::new();
        self.add_inputs(&mut builder, inputs, InputOrigin::Function);
        let mut attributes = BTreeMap::new();
        if self.eat_mark("@block") {
            let own = self.inputs()?;
            self.add_inputs(&mut builder, &own, InputOrigin::Block);
            if self.at_symbol(b'[') {
                attributes = self.attributes()?;
            }
        }
        let outputs = self.block(&mut builder)?;
        self.symbol(b';')?;
        // Every output is defined; nothing is left to be refused.
        builder.finish(&outputs, attributes).map_err(|_| Fail)
    }

    fn add_inputs(
        &mut self,
        builder: &mut BodyBuilder,
        inputs: &[(NamedType, Range<usize>)],
        origin: InputOrigin,
    ) {
        for (named, span) in inputs {
            if let Err(error) = builder.input(named.clone(), origin) {
                self.report(span.clone(), &error.to_string());
            }
        }
    }
}

/// Digits, a point, digits.
fn is_version(text: &str) -> bool {
    let digits = |part: &str| !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit());
    text.split_once('.')
        .is_some_and(|(major, minor)| digits(major) && digits(minor))
}

/// The character that an escape stands for, and the escape's length, from the text after `\`.
fn escaped(text: &str) -> Option<(char, usize)> {
    let plain = match text.as_bytes().first()? {
        b'n' => '\n',
        b'r' => '\r',
        b't' => '\t',
        b'"' => '"',
        b'`' => '`',
        b'\\' => '\\',
        b'u' => {
            let digits = text.strip_prefix("u{")?;
            let close = digits.find('}')?;
            let number = u32::from_str_radix(digits.get(..close)?, 16).ok()?;
            return Some((char::from_u32(number)?, "u{}".len() + close));
        }
        _ => return None,
    };
    Some((plain, 1))
}

#[cfg(test)]
mod tests;
