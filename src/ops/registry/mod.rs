//! The op registry: which op types exist since which opset, with which parameters.
//!
//! The data is a generated constant table (`table.rs`). Beside the parameters listed there, every
//! op on disk may carry the attribute `name` (see [`Variant::takes_attribute`]).

mod effect;
mod table;

pub use effect::{Effect, effect};

use thiserror::Error;

use crate::ir::Opset;
use crate::ir::types::DType;

/// One op type with all its variants.
#[derive(Debug)]
pub struct OpEntry {
    /// The op's type, as `Operation.type` spells it.
    pub name: &'static str,
    /// The variants, oldest first; each applies from its `since` until the next.
    pub variants: &'static [Variant],
}

/// The signature of an op type over a range of opsets.
#[derive(Debug)]
pub struct Variant {
    /// The first opset with this signature.
    pub since: Opset,
    /// How many results the op has.
    pub results: Results,
    /// The parameters, in coremltools' order.
    pub parameters: &'static [Parameter],
    /// True if the parameters stand in the op's attributes instead of its inputs: `const`, and the
    /// `constexpr_*` ops of the form that iOS 16 brought.
    pub in_attributes: bool,
}

/// How many results an op has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Results {
    /// Always this many.
    Exactly(usize),
    /// At least the first and at most the second number, by the arguments.
    Between(usize, usize),
    /// Any number, by the arguments.
    Any,
}

/// One parameter of an op.
#[derive(Clone, Copy, Debug)]
pub struct Parameter {
    /// The parameter's name.
    pub name: &'static str,
    /// What kind of argument it takes.
    pub kind: Kind,
    /// True if the argument must be known at compile time: a literal, or the result of a `const`
    /// or `constexpr_*` op.
    pub is_const: bool,
    /// True if the argument may be left out.
    pub optional: bool,
    /// Parameters with the same type domain have the same element type.
    pub type_domain: Option<&'static str>,
    /// Element types that the parameter takes; empty if it takes any.
    pub dtypes: &'static [DType],
    /// What stands for a missing argument; `None` if nothing does.
    pub default: Option<DefaultValue>,
}

/// The kind of argument that a parameter takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// One tensor or scalar.
    Tensor,
    /// Any number of bindings.
    Tuple,
    /// One list.
    List,
    /// One state.
    State,
    /// A value in the op's attributes, of any type.
    Attribute,
    /// One value of any type.
    Any,
}

/// What stands for a missing argument.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum DefaultValue {
    /// The op behaves as its definition says for a missing argument.
    Absent,
    /// This bool.
    Bool(bool),
    /// This integer.
    Int(i64),
    /// This number as fp32. coremltools writes it so even where the type domain of the parameter
    /// is fp16 by another argument.
    Float(f64),
    /// This number, rounded to the element type of `x`.
    FloatLikeX(f64),
    /// This text.
    Str(&'static str),
    /// Ones, as many as `x` has spatial dimensions (rank − 2).
    OnesPerSpatialDim,
    /// Zeros, two for each spatial dimension of `x`.
    ZerosPerSpatialSide,
    /// 0, 1, … rank of `x` − 1.
    AllAxes,
    /// Zeros, as many as `weight` has rows, in the element type of `weight`.
    ZeroPerOutputChannel,
    /// 0, 1, … number of boxes − 1.
    IndexPerBox,
}

/// Why an opset has no such op.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum LookupError {
    /// No opset that we know has this op.
    #[error("op type `{op_type}` is unknown")]
    Unknown {
        /// The op's type.
        op_type: String,
    },
    /// The op came later.
    #[error("op type `{op_type}` exists since {since}, not in {opset}")]
    TooNew {
        /// The op's type.
        op_type: String,
        /// The opset asked for.
        opset: Opset,
        /// The first opset that has the op.
        since: Opset,
    },
}

/// All op types, sorted by name.
pub fn all() -> &'static [OpEntry] {
    table::OPS
}

/// The entry of an op type; `None` if no opset has it.
pub fn op(name: &str) -> Option<&'static OpEntry> {
    let index = table::OPS
        .binary_search_by(|entry| entry.name.cmp(name))
        .ok()?;
    table::OPS.get(index)
}

/// The signature of an op type in an opset, or the reason why there is none.
pub fn signature(op_type: &str, opset: Opset) -> Result<&'static Variant, LookupError> {
    let entry = op(op_type).ok_or_else(|| LookupError::Unknown {
        op_type: op_type.to_owned(),
    })?;
    entry.variant(opset).ok_or_else(|| LookupError::TooNew {
        op_type: op_type.to_owned(),
        opset,
        since: entry.since(),
    })
}

/// Whether the parameter may have this element type, given nothing about the other arguments.
///
/// `None` if the registry does not know the op in this opset or the parameter, or if the parameter
/// takes something other than a tensor. Two parameters of one type domain must agree as well:
/// [`domain_mates`] names those that have to change together.
pub fn accepts(op_type: &str, opset: Opset, parameter: &str, dtype: DType) -> Option<bool> {
    let parameter = signature(op_type, opset).ok()?.parameter(parameter)?;
    match parameter.kind {
        Kind::Tensor => Some(parameter.dtypes.is_empty() || parameter.dtypes.contains(&dtype)),
        _ => None,
    }
}

/// Names of the other parameters that must have the same element type as this one; empty if it
/// stands alone. `None` if the registry does not know the op in this opset or the parameter.
pub fn domain_mates(
    op_type: &str,
    opset: Opset,
    parameter: &str,
) -> Option<impl Iterator<Item = &'static str>> {
    let variant = signature(op_type, opset).ok()?;
    let parameter = variant.parameter(parameter)?;
    Some(
        variant
            .parameters
            .iter()
            .filter(move |other| {
                parameter.type_domain.is_some()
                    && other.type_domain == parameter.type_domain
                    && other.name != parameter.name
            })
            .map(|other| other.name),
    )
}

impl OpEntry {
    /// The variant that an opset uses; `None` if the op came later.
    pub fn variant(&self, opset: Opset) -> Option<&'static Variant> {
        self.variants
            .iter()
            .rev()
            .find(|variant| variant.since <= opset)
    }

    /// The first opset that has the op.
    pub fn since(&self) -> Opset {
        self.variants
            .first()
            .map_or(Opset::CoreML9, |variant| variant.since)
    }
}

impl Variant {
    /// The parameter of this name.
    pub fn parameter(&self, name: &str) -> Option<&'static Parameter> {
        self.parameters
            .iter()
            .find(|parameter| parameter.name == name)
    }

    /// Whether an op of this signature may carry the attribute: `name`, or one of the parameters
    /// if they stand in attributes.
    pub fn takes_attribute(&self, name: &str) -> bool {
        name == "name" || (self.in_attributes && self.parameter(name).is_some())
    }

    /// Whether an op of this signature may have an input of this name.
    pub fn takes_input(&self, name: &str) -> bool {
        !self.in_attributes && self.parameter(name).is_some()
    }

    const fn in_attributes(mut self) -> Self {
        self.in_attributes = true;
        self
    }
}

impl Results {
    /// Whether an op may have this many results.
    pub fn allows(self, number: usize) -> bool {
        match self {
            Self::Exactly(exact) => number == exact,
            Self::Between(least, most) => (least..=most).contains(&number),
            Self::Any => true,
        }
    }
}

impl Parameter {
    const fn domain(mut self, domain: &'static str) -> Self {
        self.type_domain = Some(domain);
        self
    }

    const fn constant(mut self) -> Self {
        self.is_const = true;
        self
    }

    const fn optional(mut self) -> Self {
        self.optional = true;
        self
    }

    const fn default(mut self, default: DefaultValue) -> Self {
        self.default = Some(default);
        self
    }
}

/// A required tensor parameter that need not be constant; the methods of [`Parameter`] add to it.
const fn tensor(name: &'static str, dtypes: &'static [DType]) -> Parameter {
    Parameter {
        name,
        kind: Kind::Tensor,
        is_const: false,
        optional: false,
        type_domain: None,
        dtypes,
        default: None,
    }
}

/// A required parameter of another kind.
const fn other(name: &'static str, kind: Kind) -> Parameter {
    Parameter {
        kind,
        ..tensor(name, &[])
    }
}

const fn variant(since: Opset, results: Results, parameters: &'static [Parameter]) -> Variant {
    Variant {
        since,
        results,
        parameters,
        in_attributes: false,
    }
}

#[cfg(test)]
mod tests;
