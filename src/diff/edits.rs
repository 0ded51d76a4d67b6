//! The edits: what was removed, added and changed, and where.

use std::fmt;

use serde::Serialize;

use super::numbers::ElementDifference;

/// Where something is: symbolic, so that it can be shown in any form.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Place {
    /// Stage of a pipeline; empty if the model is one program.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub stage: String,
    /// The function, and the opset if it is not the body that runs; empty for the program itself.
    pub function: String,
    /// The operation: its first result's name, else its own; inside a nested block with the path of
    /// the operations around, `loop[1]/add`. Empty for the function itself.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub op: String,
    /// The operation's type.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub op_type: String,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.stage.is_empty() {
            write!(f, "{}/", self.stage)?;
        }
        match (self.function.as_str(), self.op_type.as_str()) {
            ("", _) => f.write_str("program"),
            (function, "") => f.write_str(function),
            (function, op_type) => write!(f, "{function}/{} ({op_type})", self.op),
        }
    }
}

/// What an edit is about. Its subject is a name of what stands here.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// An operation, shown as text; removed, added, or of another type.
    Op,
    /// A parameter of an operation: other operands or literals.
    Parameter,
    /// Name and type of a result.
    Result,
    /// The name of an operation and its results.
    Name,
    /// The value of a const, inside the program on at least one side.
    Value,
    /// The data of a value in a weight file, or the file.
    Weights,
    /// An attribute of an operation, block, function or program.
    Attribute,
    /// The place of an operation among those that touch a state (the subject).
    Order,
    /// The number of nested blocks of an operation.
    Blocks,
    /// An input of a function or block.
    Input,
    /// A state of a function.
    State,
    /// An output of a function or block.
    Output,
    /// The order of the inputs or outputs (the subject) of a function.
    Sequence,
    /// The opset of a function.
    Opset,
    /// A function's body for one opset.
    Body,
    /// A function.
    Function,
    /// Version or doc string of the program.
    Program,
    /// An input, output or state in the model's description.
    Feature,
    /// Something else in the model file.
    Model,
    /// A stage of a pipeline.
    Stage,
}

impl Kind {
    /// The kind in a word.
    pub fn word(self) -> &'static str {
        match self {
            Self::Op => "op",
            Self::Parameter => "parameter",
            Self::Result => "result type",
            Self::Name => "name",
            Self::Value => "value",
            Self::Weights => "weight",
            Self::Attribute => "attribute",
            Self::Order => "state access",
            Self::Blocks => "nested block",
            Self::Input => "input",
            Self::State => "state",
            Self::Output => "output",
            Self::Sequence => "order",
            Self::Opset => "opset",
            Self::Body => "body",
            Self::Function => "function",
            Self::Program => "program field",
            Self::Feature => "described feature",
            Self::Model => "model field",
            Self::Stage => "stage",
        }
    }
}

/// One difference.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Edit {
    /// Where, with the names of the first program; for what was added, those of the second.
    #[serde(flatten)]
    pub place: Place,
    /// What it is about.
    pub kind: Kind,
    /// The parameter, attribute, input or the like; empty if the place says it all.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub subject: String,
    /// What was there before; absent if it was added.
    pub before: Option<String>,
    /// What is there now; absent if it was removed. Absent as well as `before` if the difference
    /// is not in words.
    pub after: Option<String>,
    /// How the elements of a const or weight differ.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub elements: Option<ElementDifference>,
}

impl Edit {
    pub(super) fn new(
        place: &Place,
        kind: Kind,
        subject: &str,
        before: Option<String>,
        after: Option<String>,
    ) -> Self {
        Self {
            place: place.clone(),
            kind,
            subject: subject.to_owned(),
            before,
            after,
            elements: None,
        }
    }

    /// True if something is gone.
    pub fn is_removal(&self) -> bool {
        self.before.is_some() && self.after.is_none()
    }

    /// True if something is new.
    pub fn is_addition(&self) -> bool {
        self.before.is_none() && self.after.is_some()
    }
}

/// The result of comparing two models.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Comparison {
    /// The differences: those of the program first, then those of each function in the order of
    /// its text.
    pub edits: Vec<Edit>,
    /// Blobs that were compared by samples and found alike.
    pub sampled: usize,
    /// Blobs that could not be read, and were taken to be the same.
    pub unreadable: usize,
}

impl Comparison {
    /// True if nothing differs.
    pub fn is_same(&self) -> bool {
        self.edits.is_empty()
    }

    pub(super) fn stage(&mut self, name: &str, removed: bool) {
        let name = Some(name.to_owned());
        let (before, after) = if removed { (name, None) } else { (None, name) };
        self.edits
            .push(Edit::new(&Place::default(), Kind::Stage, "", before, after));
    }
}
