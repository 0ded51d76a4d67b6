//! The sink of the printer: a buffer in front of any `fmt::Write`, with the style of the text.
//!
//! Helpers write without a `Result`; the first failure is kept and told by [`Writer::finish`].

use std::fmt::{self, Write as _};

use super::Dialect;

/// Bytes held back before they go on to the sink.
const BUFFER: usize = 1 << 16;

/// How values and types are spelled.
#[derive(Clone, Copy, Debug)]
pub(super) struct Style {
    /// The dialect.
    pub(super) dialect: Dialect,
    /// Tensors with more elements than this are cut short (remarks, labels); `None`: print all.
    pub(super) cut: Option<usize>,
    /// Print all elements of blobs that a pass made, however many.
    pub(super) inline_new: bool,
}

impl Style {
    /// Everything is printed.
    pub(super) fn whole(dialect: Dialect) -> Self {
        Self {
            dialect,
            cut: None,
            inline_new: false,
        }
    }

    /// Tensors of more than eight elements are cut short.
    pub(super) fn short(dialect: Dialect) -> Self {
        Self {
            dialect,
            cut: Some(8),
            inline_new: false,
        }
    }
}

/// A buffered sink with a style.
pub(super) struct Writer<'a> {
    buffer: String,
    out: &'a mut dyn fmt::Write,
    failed: bool,
    pub(super) style: Style,
}

impl<'a> Writer<'a> {
    pub(super) fn new(out: &'a mut dyn fmt::Write, style: Style) -> Self {
        Self {
            buffer: String::with_capacity(1024),
            out,
            failed: false,
            style,
        }
    }

    /// Writes what `write` makes into a string.
    pub(super) fn text(style: Style, write: impl FnOnce(&mut Writer<'_>)) -> String {
        let mut text = String::new();
        let mut writer = Writer::new(&mut text, style);
        write(&mut writer);
        // A string takes everything.
        let _ = writer.finish();
        text
    }

    pub(super) fn push(&mut self, text: &str) {
        self.buffer.push_str(text);
        if self.buffer.len() >= BUFFER {
            self.flush();
        }
    }

    pub(super) fn put(&mut self, arguments: fmt::Arguments<'_>) {
        // Writing to a `String` cannot fail.
        let _ = self.buffer.write_fmt(arguments);
        if self.buffer.len() >= BUFFER {
            self.flush();
        }
    }

    /// Writes `items` with `, ` between them.
    pub(super) fn separated<T>(
        &mut self,
        items: impl IntoIterator<Item = T>,
        mut write: impl FnMut(&mut Self, T),
    ) {
        for (index, item) in items.into_iter().enumerate() {
            if index > 0 {
                self.push(", ");
            }
            write(self, item);
        }
    }

    /// Hands the rest to the sink.
    pub(super) fn finish(mut self) -> fmt::Result {
        self.flush();
        if self.failed { Err(fmt::Error) } else { Ok(()) }
    }

    fn flush(&mut self) {
        if !self.failed && self.out.write_str(&self.buffer).is_err() {
            self.failed = true;
        }
        self.buffer.clear();
    }
}
