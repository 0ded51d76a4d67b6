//! How large the values of a program are, measured while it runs.

use std::collections::{BTreeMap, HashMap};

use serde::{Deserialize, Serialize};

use super::interpreter::Observer;
use super::runner::Runner;
use crate::ir::{Graph, NodeId, Operation};
use crate::ops::Datum;
use crate::tensor::Tensor;

/// The greatest finite fp16 number, (2 − 2^-10) · 2^15.
pub const HALF_MAX: f64 = 65_504.0;

/// The least normal fp16 number, 2^-14. What is smaller loses bits, and is zero where subnormals are
/// flushed.
pub const HALF_NORMAL: f64 = 6.103_515_625e-5;

/// The least fp16 number above zero, 2^-24.
pub const HALF_LEAST: f64 = 5.960_464_477_539_063e-8;

/// From here on what a matrix product gives is reported to be infinite on the Neural Engine (ANEForge
/// issue 115: about half of [`HALF_MAX`]).
pub const PRODUCT_MAX: f64 = 32_752.0;

/// Operations that give sums of products, for which [`PRODUCT_MAX`] is reported.
const PRODUCTS: [&str; 6] = [
    "conv",
    "conv_transpose",
    "einsum",
    "linear",
    "matmul",
    "scaled_dot_product_attention",
];

/// The greatest magnitude that an operation of this type can give in fp16, as far as is reported.
pub fn limit(op_type: &str) -> f64 {
    if PRODUCTS.contains(&op_type) {
        PRODUCT_MAX
    } else {
        HALF_MAX
    }
}

/// What was seen of one value: of all its elements, in all calls.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Range {
    /// Elements seen.
    pub elements: u64,
    /// The greatest finite magnitude.
    pub peak: f64,
    /// The least magnitude that is not zero; zero if all are.
    pub smallest: f64,
    /// Elements that are zero.
    pub zeros: u64,
    /// Elements, zeros aside, below [`HALF_NORMAL`].
    pub subnormal: u64,
    /// Of these, elements below [`HALF_LEAST`].
    pub lost: u64,
    /// Finite elements above [`HALF_MAX`].
    pub overflows: u64,
    /// Finite elements above the limit of the operation; see [`limit`].
    pub above_limit: u64,
    /// Elements that are NaN.
    pub nan: u64,
    /// Elements that are infinite.
    pub inf: u64,
}

impl Range {
    /// What is seen of a tensor of floats that an operation with this limit gives; `None` if its
    /// elements are no floats.
    pub fn of(tensor: &Tensor, limit: f64) -> Option<Self> {
        if !tensor.dtype().is_float() {
            return None;
        }
        let elements = tensor.as_floats().ok()?;
        let mut range = Self {
            elements: elements.len() as u64,
            smallest: f64::INFINITY,
            ..Self::default()
        };
        for element in elements.iter() {
            let size = f64::from(element.abs());
            if size.is_nan() {
                range.nan += 1;
            } else if size.is_infinite() {
                range.inf += 1;
            } else if size == 0.0 {
                range.zeros += 1;
            } else {
                range.peak = range.peak.max(size);
                range.smallest = range.smallest.min(size);
                range.subnormal += u64::from(size < HALF_NORMAL);
                range.lost += u64::from(size < HALF_LEAST);
                range.overflows += u64::from(size > HALF_MAX);
                range.above_limit += u64::from(size > limit);
            }
        }
        if range.smallest.is_infinite() {
            range.smallest = 0.0;
        }
        Some(range)
    }

    /// Adds what was seen in another call, or on other inputs.
    pub fn merge(&mut self, other: &Self) {
        self.elements += other.elements;
        self.peak = self.peak.max(other.peak);
        self.smallest = match (self.smallest, other.smallest) {
            (0.0, least) | (least, 0.0) => least,
            (a, b) => a.min(b),
        };
        self.zeros += other.zeros;
        self.subnormal += other.subnormal;
        self.lost += other.lost;
        self.overflows += other.overflows;
        self.above_limit += other.above_limit;
        self.nan += other.nan;
        self.inf += other.inf;
    }

    /// Elements that are NaN or infinite.
    pub fn not_finite(&self) -> u64 {
        self.nan + self.inf
    }

    /// Whether everything is within fp16 and within the limit of the operation.
    pub fn fits(&self) -> bool {
        self.overflows == 0 && self.above_limit == 0 && self.not_finite() == 0
    }
}

/// What was seen of the values of one function, by their names.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct FunctionRanges(BTreeMap<String, Range>);

impl FunctionRanges {
    /// What was seen of a value.
    pub fn get(&self, name: &str) -> Option<&Range> {
        self.0.get(name)
    }

    /// Adds what was seen of a value.
    pub fn add(&mut self, name: &str, range: &Range) {
        match self.0.get_mut(name) {
            Some(known) => known.merge(range),
            None => {
                self.0.insert(name.to_owned(), *range);
            }
        }
    }
}

/// What was seen of the values of a model: for each stage of a pipeline (empty if there is only one
/// program) and each function that ran.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Ranges {
    functions: BTreeMap<String, BTreeMap<String, FunctionRanges>>,
}

impl Ranges {
    /// What was seen of a function.
    pub fn function(&self, stage: &str, function: &str) -> Option<&FunctionRanges> {
        self.functions.get(stage)?.get(function)
    }

    /// The same, to add to; empty if there was nothing.
    pub fn function_mut(&mut self, stage: &str, function: &str) -> &mut FunctionRanges {
        let stage = self.functions.entry(stage.to_owned()).or_default();
        stage.entry(function.to_owned()).or_default()
    }

    /// Adds what was measured of other functions, or on other inputs.
    pub fn extend(&mut self, other: Self) {
        for (stage, functions) in other.functions {
            for (function, ranges) in functions {
                let own = self.function_mut(&stage, &function);
                for (name, range) in &ranges.0 {
                    own.add(name, range);
                }
            }
        }
    }

    /// Whether nothing was measured.
    pub fn is_empty(&self) -> bool {
        self.functions.is_empty()
    }
}

/// Measures values while a model runs; holds no more than their numbers.
#[derive(Debug)]
pub struct Meter {
    /// What was seen so far.
    pub ranges: Ranges,
    /// Stage and function of each graph, by its address.
    owners: HashMap<usize, (String, String)>,
}

impl Meter {
    /// A meter for runs of this runner.
    pub fn new(runner: &Runner<'_>) -> Self {
        fn add(
            graph: &Graph,
            owner: &(String, String),
            owners: &mut HashMap<usize, (String, String)>,
        ) {
            owners.insert(std::ptr::from_ref(graph) as usize, owner.clone());
            for (_, op) in graph.ops() {
                for block in op.blocks() {
                    add(block, owner, owners);
                }
            }
        }
        let mut owners = HashMap::new();
        for stage in runner.stages() {
            if let Ok(body) = stage.interpreter().body(&stage.function) {
                let owner = (stage.name.clone(), stage.function.clone());
                add(&body.graph, &owner, &mut owners);
            }
        }
        Self {
            ranges: Ranges::default(),
            owners,
        }
    }
}

impl Meter {
    /// Measures what a function of one program is given.
    pub fn given(&mut self, runner: &Runner<'_>, inputs: &BTreeMap<String, Tensor>) {
        let [stage] = runner.stages() else { return };
        let ranges = self.ranges.function_mut(&stage.name, &stage.function);
        for (name, tensor) in inputs {
            if let Some(range) = Range::of(tensor, HALF_MAX) {
                ranges.add(name, &range);
            }
        }
    }
}

impl Observer for Meter {
    fn computed(&mut self, graph: &Graph, _: NodeId, op: &Operation, results: &[Datum]) {
        let address = std::ptr::from_ref(graph) as usize;
        let Some((stage, function)) = self.owners.get(&address) else {
            return;
        };
        let ranges = self.ranges.function_mut(stage, function);
        let is_same_in_every_call =
            op.const_value().is_some() || op.op_type().starts_with("constexpr_");
        for (result, named) in results.iter().zip(op.results()) {
            if is_same_in_every_call && ranges.get(&named.name).is_some() {
                continue;
            }
            let range = result
                .as_tensor()
                .and_then(|tensor| Range::of(tensor, limit(op.op_type())));
            if let Some(range) = range {
                ranges.add(&named.name, &range);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ir::DType;

    fn range(elements: &[f32]) -> Range {
        let tensor = Tensor::floats(DType::Float32, vec![elements.len()], elements.to_vec());
        Range::of(&tensor, PRODUCT_MAX).unwrap()
    }

    #[test]
    fn each_element_is_counted_where_it_belongs() {
        let seen = range(&[
            0.0,
            -3.0,
            65_504.0,
            65_505.0,
            f32::NAN,
            f32::NEG_INFINITY,
            1e-5,
            -1e-8,
            32_752.0,
        ]);
        let expected = Range {
            elements: 9,
            peak: 65_505.0,
            smallest: f64::from(1e-8_f32),
            zeros: 1,
            subnormal: 2,
            lost: 1,
            overflows: 1,
            above_limit: 2,
            nan: 1,
            inf: 1,
        };
        assert_eq!(seen, expected);
        assert!(!seen.fits());
    }

    #[test]
    fn several_inputs_merge_to_the_worst_case() {
        let mut seen = range(&[1.0, 0.0]);
        seen.merge(&range(&[0.5, -70_000.0]));
        seen.merge(&range(&[0.0]));
        assert_eq!((seen.elements, seen.zeros), (5, 2));
        assert_eq!((seen.smallest, seen.peak), (0.5, 70_000.0));
        assert_eq!(seen.overflows, 1);
    }

    #[test]
    fn what_is_no_float_is_not_measured() {
        let ints = Tensor::ints(DType::Int32, vec![1], vec![3]);
        assert_eq!(Range::of(&ints, HALF_MAX), None);
    }
}
