//! Statements and blocks.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::ops::Range;

use super::super::lexer::Kind;
use super::{Fail, Parse, Parser};
use crate::ir::{BodyBuilder, BuildError, DraftBinding, Graph, InputOrigin, OpDraft, Value};

/// Where the names of a statement stand.
#[derive(Default)]
struct Places {
    results: Vec<Range<usize>>,
    /// All results have been read.
    complete: bool,
    operands: Vec<Range<usize>>,
}

impl<'s> Parser<'s> {
    /// `{ statements } -> (outputs)`; those of the outputs that are defined.
    pub(super) fn block(&mut self, builder: &mut BodyBuilder) -> Parse<Vec<String>> {
        self.symbol(b'{')?;
        while !self.at_symbol(b'}') {
            if self.token.kind == Kind::End || self.at_word("func") {
                return Err(self.expected("a statement or `}`"));
            }
            if self.statement(builder).is_err() {
                self.recover();
            }
        }
        self.advance();
        if self.token.kind != Kind::Arrow {
            return Err(self.expected("`->` and the block's outputs"));
        }
        self.advance();
        self.symbol(b'(')?;
        let mut outputs = Vec::new();
        self.list(b')', |parser| {
            let span = parser.span();
            let name = parser.name("the name of an output")?;
            if !parser.undefined(builder, &[span]) {
                outputs.push(name.into_owned());
            }
            Ok(())
        })?;
        Ok(outputs)
    }

    /// Skips the rest of a faulty statement: to its semicolon, or to the end of its block. Blocks
    /// inside it are skipped whole; a block opens after `)` or `]` and closes before `->`, which
    /// braces of dictionaries do not.
    fn recover(&mut self) {
        let mut depth = 0usize;
        let mut previous = Kind::End;
        loop {
            let kind = self.token.kind;
            match kind {
                Kind::End => return,
                Kind::Word if self.at_word("func") => return,
                Kind::Symbol(b';') if depth == 0 => {
                    self.advance();
                    return;
                }
                Kind::Symbol(b'{') if matches!(previous, Kind::Symbol(b')' | b']')) => {
                    depth += 1;
                }
                Kind::Symbol(b'}') if self.next_kind() == Kind::Arrow => {
                    if depth == 0 {
                        return;
                    }
                    depth -= 1;
                }
                _ => {}
            }
            previous = kind;
            self.advance();
        }
    }

    fn statement(&mut self, builder: &mut BodyBuilder) -> Parse<()> {
        let mut draft = OpDraft::default();
        let mut places = Places::default();
        let start = self.token.start;
        if self.parts(builder, &mut draft, &mut places).is_err() {
            self.names_lost |= !places.complete;
            self.poison(&places.results);
            return Err(Fail);
        }
        if let Err(error) = builder.op(draft) {
            if matches!(error, BuildError::Undefined { .. }) {
                self.undefined(builder, &places.operands);
            } else {
                let place = self.place_of(&error, &places.results);
                self.report(place.unwrap_or(start..start), &error.to_string());
            }
            self.poison(&places.results);
        }
        Ok(())
    }

    /// Whether one of the names is not defined here. Reported, unless it follows from an earlier
    /// error.
    pub(super) fn undefined(&mut self, builder: &BodyBuilder, names: &[Range<usize>]) -> bool {
        let mut found = false;
        for span in names {
            let name = self.name_at(span);
            if builder.is_defined(&name) {
                continue;
            }
            found = true;
            if !self.names_lost && !self.poisoned.contains(name.as_ref()) {
                let why = format!("`{name}` is used before it is defined, or never is");
                self.report(span.clone(), &why);
            }
        }
        found
    }

    fn parts(
        &mut self,
        builder: &mut BodyBuilder,
        draft: &mut OpDraft,
        places: &mut Places,
    ) -> Parse<()> {
        if self.at_type() {
            loop {
                let (named, span) = self.named()?;
                // Most operations have one result, and a vector that grows begins with four.
                draft.results.reserve_exact(1);
                draft.results.push(named);
                places.results.push(span);
                if !self.eat_symbol(b',') {
                    break;
                }
            }
            places.complete = true;
            self.symbol(b'=')?;
        }
        draft.op_type = self.name("a type or an operation")?.into_owned();
        places.complete = true;
        self.arguments(draft, places)?;
        if self.at_symbol(b'[') {
            draft.attributes = self.attributes()?;
        }
        if self.at_symbol(b'(') {
            loop {
                let block = self.nested(|parser| parser.nested_block(builder))?;
                draft.blocks.push(block);
                if !self.eat_symbol(b',') {
                    break;
                }
            }
        }
        self.symbol(b';')
    }

    fn arguments(&mut self, draft: &mut OpDraft, places: &mut Places) -> Parse<()> {
        self.symbol(b'(')?;
        self.list(b')', |parser| {
            let span = parser.span();
            let parameter = parser.name("a parameter's name")?;
            parser.symbol(b'=')?;
            let mut bindings = Vec::with_capacity(1);
            if parser.eat_symbol(b'(') {
                parser.list(b')', |parser| {
                    bindings.push(parser.binding(places)?);
                    Ok(())
                })?;
            } else {
                bindings.push(parser.binding(places)?);
            }
            match draft.arguments.entry(parameter.into_owned()) {
                Entry::Vacant(entry) => {
                    entry.insert(bindings);
                    Ok(())
                }
                Entry::Occupied(entry) => {
                    let why = format!("parameter `{}` is given twice", entry.key());
                    parser.report(span, &why);
                    Err(Fail)
                }
            }
        })
    }

    fn binding(&mut self, places: &mut Places) -> Parse<DraftBinding> {
        if self.eat_mark("@no_binding") {
            return Ok(DraftBinding::Absent);
        }
        // A word that is a type may be a name too, unless it is used as a type.
        let literal = match self.token.kind {
            Kind::Mark => true,
            Kind::Word => self.at_type() && matches!(self.next_kind(), Kind::Symbol(b'(' | b'<')),
            _ => false,
        };
        if literal {
            return Ok(DraftBinding::Immediate(self.value()?));
        }
        places.operands.push(self.span());
        Ok(DraftBinding::Name(
            self.name("a value's name or a literal")?.into_owned(),
        ))
    }

    /// `(inputs) [attributes] { … } -> (…)`.
    fn nested_block(&mut self, builder: &mut BodyBuilder) -> Parse<Graph> {
        builder.begin_block();
        let parts = self.nested_parts(builder);
        // A faulty block is left too; without outputs nothing can be refused.
        let (outputs, attributes) = parts.as_ref().ok().cloned().unwrap_or_default();
        let graph = builder.end_block(&outputs, attributes);
        parts?;
        graph.map_err(|_| Fail)
    }

    fn nested_parts(
        &mut self,
        builder: &mut BodyBuilder,
    ) -> Parse<(Vec<String>, BTreeMap<String, Value>)> {
        let inputs = self.inputs()?;
        self.add_inputs(builder, &inputs, InputOrigin::Block);
        let attributes = if self.at_symbol(b'[') {
            self.attributes()?
        } else {
            BTreeMap::new()
        };
        Ok((self.block(builder)?, attributes))
    }

    /// What a faulty statement would have defined may be used without a further error.
    fn poison(&mut self, results: &[Range<usize>]) {
        for span in results {
            let name = self.name_at(span);
            self.poisoned.insert(name.into_owned());
        }
    }

    /// The last of the results that has the name that the graph refuses.
    fn place_of(&mut self, error: &BuildError, results: &[Range<usize>]) -> Option<Range<usize>> {
        let name = match error {
            BuildError::Undefined { name, .. } | BuildError::DefinedTwice { name, .. } => name,
            BuildError::EmptyName { .. } => "",
        };
        let mut places = results.iter().rev();
        places.find(|span| self.name_at(span) == name).cloned()
    }

    /// The name in a place where one has been read.
    fn name_at(&mut self, span: &Range<usize>) -> Cow<'s, str> {
        let text = self.slice(span.clone());
        if text.starts_with('`') {
            self.unescape(span.clone()).unwrap_or_default()
        } else {
            text.into()
        }
    }
}
