//! Types as text.

use super::Dialect;
use super::writer::Writer;
use crate::ir::{Dim, TensorType, ValueType};

impl Writer<'_> {
    /// A type that may be missing.
    pub(super) fn optional_type(&mut self, ty: Option<&ValueType>) {
        match ty {
            Some(ty) => self.value_type(ty),
            None => self.push("@untyped"),
        }
    }

    /// A type.
    pub(super) fn value_type(&mut self, ty: &ValueType) {
        match ty {
            ValueType::Tensor(tensor) => self.tensor_type(tensor),
            ValueType::List { item, length } => {
                self.push("list<");
                self.optional_type(item.as_deref());
                if let Some(length) = length {
                    self.push(", ");
                    self.dimension(*length);
                }
                self.push(">");
            }
            ValueType::Tuple(types) => {
                self.push("tuple<");
                self.separated(types, Self::value_type);
                self.push(">");
            }
            ValueType::Dictionary { key, value } => {
                self.push("dict<");
                self.optional_type(key.as_deref());
                self.push(", ");
                self.optional_type(value.as_deref());
                self.push(">");
            }
            ValueType::State(wrapped) => {
                self.push("state<");
                self.optional_type(wrapped.as_deref());
                self.push(">");
            }
            ValueType::Unspecified => self.push("@type"),
        }
    }

    fn tensor_type(&mut self, ty: &TensorType) {
        let scalar = ty.rank == 0 && ty.dims.is_empty() && ty.attributes.is_empty();
        if scalar && self.style.dialect == Dialect::Program13 {
            self.put(format_args!("{}", ty.dtype));
            return;
        }
        self.put(format_args!("tensor<{}, [", ty.dtype));
        self.separated(&ty.dims, |w, dim| w.dimension(*dim));
        self.push("]");
        if ty.rank != usual_rank(ty) {
            self.put(format_args!(" @rank({})", ty.rank));
        }
        if !ty.attributes.is_empty() {
            self.push(" @attributes");
            self.attributes(&ty.attributes);
        }
        self.push(">");
    }

    fn dimension(&mut self, dim: Dim) {
        match dim {
            Dim::Known(size) => self.put(format_args!("{size}")),
            Dim::Unknown { variadic: false } => self.push("?"),
            Dim::Unknown { variadic: true } => self.push("..."),
            Dim::Unspecified => self.push("@dim"),
        }
    }
}

/// The rank that the dimensions imply: their number, or −1 if one of them is variadic.
fn usual_rank(ty: &TensorType) -> i64 {
    if ty.dims.contains(&(Dim::Unknown { variadic: true })) {
        -1
    } else {
        ty.dims.len() as i64
    }
}
