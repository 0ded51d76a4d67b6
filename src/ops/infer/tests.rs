//! Inference against types that coremltools declared, and cases by hand for what it never wrote.
//!
//! A case is one line: op type, opset, arguments, `->`, results. An argument is
//! `parameter:type`, then `=` and the elements if they are known (`=@` if they are constant but not
//! loaded); a variadic parameter is repeated, and `%` marks an attribute. A type is `fp32[2,?]`,
//! `fp32[]` for a scalar, or `state(fp16[1,4])`.

use std::collections::BTreeMap;

use super::*;
use crate::ir::Attributes;
use crate::ir::value::{BlobRef, Content, TensorData, Value};
use crate::ops::Opset;
use crate::ops::registry;
use crate::ops::view::Operand;

struct Case {
    op_type: String,
    opset: Opset,
    arguments: Vec<(String, ValueType, Option<Value>)>,
    attributes: Attributes,
    results: Vec<ValueType>,
}

impl Case {
    fn parse(line: &str) -> Self {
        let mut words = line.split_whitespace();
        let op_type = words.next().expect("op type").to_owned();
        let opset = words.next().and_then(Opset::parse).expect("opset");
        let mut arguments = Vec::new();
        let mut attributes = BTreeMap::new();
        for word in words.by_ref().take_while(|word| *word != "->") {
            let (parameter, rest) = word.split_once(':').expect("parameter");
            let (ty, data) = match rest.split_once('=') {
                Some((ty, data)) => (parse_type(ty), Some(data)),
                None => (parse_type(rest), None),
            };
            let value = data.map(|data| parse_value(&ty, data));
            match parameter.strip_prefix('%') {
                Some(name) => {
                    attributes.insert(name.to_owned(), value.expect("value"));
                }
                None => arguments.push((parameter.to_owned(), ty, value)),
            }
        }
        Self {
            op_type,
            opset,
            arguments,
            attributes: attributes.into(),
            results: words.map(parse_type).collect(),
        }
    }

    fn infer(&self) -> Result<Inference, InferError> {
        let mut arguments: BTreeMap<&str, Vec<Operand>> = BTreeMap::new();
        for (parameter, ty, constant) in &self.arguments {
            arguments.entry(parameter).or_default().push(Operand {
                ty,
                constant: constant.as_ref(),
            });
        }
        infer(&OpView {
            op_type: &self.op_type,
            opset: self.opset,
            arguments,
            attributes: &self.attributes,
        })
    }
}

fn parse_type(text: &str) -> ValueType {
    if let Some(inner) = text.strip_prefix("state(") {
        let inner = parse_type(inner.strip_suffix(')').expect("closing"));
        return ValueType::State(Some(Box::new(inner)));
    }
    let (word, dims) = text.split_once('[').expect("dimensions");
    let dims = dims.strip_suffix(']').expect("closing");
    let dims = dims
        .split(',')
        .filter(|dim| !dim.is_empty())
        .map(|dim| dim.parse().map_or(Dim::UNKNOWN, Dim::Known))
        .collect();
    ValueType::Tensor(TensorType::new(
        DType::from_word(word).expect("element type"),
        dims,
    ))
}

fn parse_value(ty: &ValueType, data: &str) -> Value {
    let tensor = ty.as_tensor().expect("a tensor").clone();
    let elements = data.split(',').filter(|element| !element.is_empty());
    let data = match tensor.dtype {
        _ if data == "@" => {
            return Value {
                doc: String::new(),
                ty: Some(ty.clone()),
                content: Content::Blob(BlobRef {
                    file: String::new(),
                    offset: 64,
                }),
            };
        }
        DType::String => TensorData::Strings(elements.map(str::to_owned).collect()),
        DType::Bool => TensorData::Bools(elements.map(|e| e == "true").collect()),
        DType::Float32 => TensorData::Floats(elements.map(|e| e.parse().unwrap()).collect()),
        DType::Float16 => TensorData::Bytes(
            elements
                .flat_map(|e| half::f16::from_f64(e.parse().unwrap()).to_le_bytes())
                .collect(),
        ),
        dtype if dtype.is_int() => {
            TensorData::Ints(elements.map(|e| e.parse::<i64>().unwrap() as i32).collect())
        }
        dtype => panic!("no value of type {dtype}"),
    };
    Value::tensor(tensor, data)
}

#[track_caller]
fn gives(line: &str) {
    let case = Case::parse(line);
    assert_eq!(
        case.infer(),
        Ok(Inference::Types(case.results.clone())),
        "{line}"
    );
}

#[track_caller]
fn fails(line: &str, message: &str) {
    match Case::parse(line).infer() {
        Err(error) => assert_eq!(error.to_string(), message, "{line}"),
        other => panic!("{line}: {other:?}"),
    }
}

#[track_caller]
fn has_no_rule(line: &str) {
    assert_eq!(Case::parse(line).infer(), Ok(Inference::NoRule), "{line}");
}

/// Ops from packages that coremltools wrote, with the types that it declared; collected by
/// `scripts/collect_inference_cases.py`.
fn declared_cases() -> Vec<String> {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/inference.txt");
    let text = std::fs::read_to_string(path).unwrap();
    text.lines()
        .filter(|line| !line.starts_with('#'))
        .map(str::to_owned)
        .collect()
}

#[test]
fn ops_have_the_types_that_coremltools_declared() {
    let (mut exact, mut open) = (0, 0);
    for line in declared_cases() {
        let case = Case::parse(&line);
        match case.infer() {
            Ok(Inference::Types(types)) => {
                assert_eq!(types.len(), case.results.len(), "{line}");
                for (declared, inferred) in case.results.iter().zip(&types) {
                    assert!(compatible(declared, inferred), "{line}\n{inferred:?}");
                }
                if types == case.results {
                    exact += 1;
                } else {
                    open += 1;
                }
            }
            other => panic!("{line}: {other:?}"),
        }
    }
    // The few that differ are shapes that coremltools knew by evaluating shape computations.
    assert!(exact > 500, "{exact}");
    assert!(open * 50 < exact, "{open} of {exact}");
}

#[test]
fn ops_of_coremltools_use_only_parameters_of_the_registry() {
    let mut op_types = std::collections::BTreeSet::new();
    for line in declared_cases() {
        let case = Case::parse(&line);
        let variant = registry::signature(&case.op_type, case.opset).expect(&line);
        for (parameter, ..) in &case.arguments {
            assert!(variant.takes_input(parameter), "{parameter}: {line}");
        }
        for attribute in case.attributes.keys() {
            assert!(variant.takes_attribute(attribute), "{attribute}: {line}");
        }
        for parameter in variant.parameters {
            let given = case.attributes.contains_key(parameter.name)
                || case
                    .arguments
                    .iter()
                    .any(|(name, ..)| name == parameter.name);
            assert!(given || parameter.optional, "{}: {line}", parameter.name);
        }
        assert!(variant.results.allows(case.results.len()), "{line}");
        op_types.insert(case.op_type);
    }
    assert!(op_types.len() > 150, "{}", op_types.len());
}

#[test]
fn every_op_type_but_control_flow_has_a_rule() {
    let without: Vec<_> = registry::all()
        .iter()
        .filter(|entry| FAMILIES.iter().all(|family| family(entry.name).is_none()))
        .map(|entry| entry.name)
        .collect();
    assert_eq!(without, ["_const_symbolic", "cond", "while_loop"]);
}

/// Formulas of the schema's op definitions, on shapes chosen by hand.
mod by_hand {
    use super::*;

    #[test]
    fn broadcasting_takes_an_unknown_size_to_be_the_known_one() {
        gives("add CoreML7 x:fp16[?,1,4] y:fp16[3,1] -> fp16[?,3,4]");
        gives("mul CoreML7 x:fp16[?,4] y:fp16[5,4] -> fp16[5,4]");
        gives("less CoreML7 x:int32[?] y:int32[?] -> bool[?]");
        gives("maximum CoreML7 x:fp16[] y:fp16[] -> fp16[]");
        gives("select CoreML7 cond:bool[4] a:fp16[2,1] b:fp16[2,4] -> fp16[2,4]");
        has_no_rule("select CoreML7 cond:bool[4] a:fp16[] b:fp16[] -> fp16[]");
        fails(
            "sub CoreML7 x:fp16[2,3] y:fp16[2,4] -> fp16[]",
            "dimension 1: `x` has 3 but `y` has 4",
        );
    }

    #[test]
    fn element_types_are_checked_alone_and_within_their_domain() {
        fails(
            "add CoreML7 x:fp16[2] y:fp32[2] -> fp16[]",
            "`x` is fp16 but `y` is fp32",
        );
        fails("exp CoreML7 x:int32[2] -> fp16[]", "`x` cannot be int32");
        fails(
            "transpose CoreML6 x:int16[2,3] perm:int32[2]=1,0 -> fp16[]",
            "`x` cannot be int16",
        );
        // `epsilon` has its own domain since iOS 17.
        gives("rsqrt CoreML7 x:fp16[2] epsilon:fp32[]=1e-12 -> fp16[2]");
        fails(
            "rsqrt CoreML6 x:fp16[2] epsilon:fp32[]=1e-12 -> fp16[]",
            "`x` is fp16 but `epsilon` is fp32",
        );
    }

    #[test]
    fn a_cast_results_in_the_named_type_if_the_opset_has_it() {
        gives("cast CoreML7 x:fp32[2,?] dtype:string[]=int16 -> int16[2,?]");
        fails(
            "cast CoreML6 x:fp32[2] dtype:string[]=int16 -> int16[2]",
            "`dtype` \"int16\" is not a type that CoreML6 casts to",
        );
    }

    #[test]
    fn a_slice_follows_its_masks_and_signs() {
        let slice = |size: &str, begin: &str, end: &str, rest: &str, result: &str| {
            gives(&format!(
                "slice_by_index CoreML8 x:fp16[{size}] begin:int32[1]={begin} end:int32[1]={end} {rest} -> fp16[{result}]"
            ));
        };
        // Python's len(range(size)[begin:end:stride]).
        slice("10", "2", "8", "", "6");
        slice("10", "-3", "10", "", "3");
        slice("10", "1", "100", "stride:int32[1]=4", "3");
        slice("10", "8", "2", "stride:int32[1]=-2", "3");
        slice(
            "10",
            "0",
            "4",
            "begin_mask:bool[1]=true stride:int32[1]=-1",
            "5",
        );
        slice(
            "10",
            "7",
            "0",
            "end_mask:bool[1]=true stride:int32[1]=-3",
            "3",
        );
        slice(
            "10",
            "0",
            "0",
            "begin_mask:bool[1]=true end_mask:bool[1]=true stride:int32[1]=3",
            "4",
        );
        slice("10", "3", "9", "squeeze_mask:bool[1]=true", "");
        slice("10", "4", "-20", "", "0");
        // Whatever the size of `x` is.
        slice("?", "3", "4", "", "1");
        slice("?", "-1", "0", "end_mask:bool[1]=true", "1");
        slice("?", "2", "8", "", "?");
        fails(
            "slice_by_index CoreML8 x:fp16[4] begin:int32[1]=3 end:int32[1]=1 -> fp16[]",
            "slice from 3 to 1 by 1 at dimension 0",
        );
        fails(
            "slice_by_index CoreML8 x:fp16[4,4] begin:int32[1]=3 end:int32[2]=1,1 -> fp16[]",
            "`begin` has 1 elements, not 2",
        );
    }

    #[test]
    fn a_slice_with_bounds_computed_by_the_model_is_of_unknown_size() {
        gives(
            "slice_by_index CoreML8 x:fp16[4,8] begin:int32[2] end:int32[2] end_mask:bool[2]=false,true -> fp16[?,?]",
        );
        gives(
            "slice_by_index CoreML8 x:fp16[4,8] begin:int32[2] end:int32[2]=@ squeeze_mask:bool[2]=true,false -> fp16[?]",
        );
        gives(
            "slice_by_size CoreML8 x:fp16[4,8] begin:int32[2]=1,2 size:int32[2]=3,-1 -> fp16[3,6]",
        );
        gives("slice_by_size CoreML8 x:fp16[4,8] begin:int32[2] size:int32[2]=3,-1 -> fp16[3,?]");
    }

    #[test]
    fn a_slice_update_wants_an_update_of_the_slices_shape() {
        gives(
            "slice_update CoreML8 x:fp16[1,8,64] update:fp16[1,2,64] begin:int32[3]=0,4,0 end:int32[3]=1,6,64 -> fp16[1,8,64]",
        );
        fails(
            "slice_update CoreML8 x:fp16[1,8,64] update:fp16[1,3,64] begin:int32[3]=0,4,0 end:int32[3]=1,6,64 -> fp16[]",
            "dimension 1: `x` has 2 but `update` has 3",
        );
    }

    #[test]
    fn a_reshape_keeps_the_number_of_elements() {
        gives("reshape CoreML6 x:fp16[2,3,4] shape:int32[2]=-1,6 -> fp16[4,6]");
        gives("reshape CoreML6 x:fp16[2,3,4] shape:int32[3]=0,-1,2 -> fp16[2,6,2]");
        gives("reshape CoreML6 x:fp16[2,?,4] shape:int32[2]=-1,8 -> fp16[?,8]");
        gives("reshape CoreML6 x:fp16[2,3,4] shape:int32[4] -> fp16[?,?,?,?]");
        gives("reshape CoreML6 x:fp16[1] shape:int32[0]= -> fp16[]");
        // iOS17.tensor_transformation.TestReshape.test_reshape_with_zero_different_len_iOS17
        gives("reshape CoreML7 x:fp32[2,3] shape:int32[4]=1,0,-1,0 -> fp32[1,1,2,3]");
        fails(
            "reshape CoreML6 x:fp32[2,3] shape:int32[4]=1,0,-1,0 -> fp32[]",
            "`shape` [1, 0, -1, 0] has a 0 but not the rank of `x`",
        );
        fails(
            "reshape CoreML6 x:fp32[2,3] shape:int32[2]=4,-1 -> fp32[]",
            "`shape` [4, -1] does not fit the 6 elements of `x`",
        );
        fails(
            "reshape CoreML6 x:fp32[2,3] shape:int32[1]=5 -> fp32[]",
            "`shape` [5] does not fit the 6 elements of `x`",
        );
    }

    #[test]
    fn axes_are_dropped_made_and_permuted() {
        gives("transpose CoreML8 x:fp16[2,?,4] perm:int32[3]=-1,0,1 -> fp16[4,2,?]");
        fails(
            "transpose CoreML8 x:fp16[2,3] perm:int32[2]=0,-2 -> fp16[]",
            "`perm` [0, -2] repeats an axis",
        );
        gives("expand_dims CoreML8 x:fp16[2,3] axes:int32[2]=0,-1 -> fp16[1,2,3,1]");
        gives("squeeze CoreML8 x:fp16[1,2,1] -> fp16[2]");
        // A named axis that is not of size 1 stays.
        gives("squeeze CoreML8 x:fp16[1,2,1] axes:int32[2]=0,1 -> fp16[2,1]");
        gives(
            "reduce_sum CoreML8 x:fp16[2,3,4] axes:int32[2]=-1,0 keep_dims:bool[]=true -> fp16[1,3,1]",
        );
        gives("reduce_max CoreML8 x:fp16[2,3,4] -> fp16[]");
        gives(
            "reduce_argmax CoreML8 x:fp16[2,3] axis:int32[]=1 output_dtype:string[]=uint16 -> uint16[2]",
        );
        fails(
            "softmax CoreML8 x:fp16[2,3] axis:int32[]=2 -> fp16[]",
            "axis 2 does not exist at rank 2",
        );
        has_no_rule("transpose CoreML8 x:fp16[2,3] perm:int32[2]=@ -> fp16[]");
    }

    #[test]
    fn matrix_products_contract_the_inner_dimensions() {
        gives(
            "matmul CoreML8 x:fp16[5,1,2,3] y:fp16[7,4,3] transpose_y:bool[]=true -> fp16[5,7,2,4]",
        );
        gives("matmul CoreML8 x:fp16[?,2,3] y:fp16[3,4]=@ -> fp16[?,2,4]");
        gives("linear CoreML8 x:fp16[?,3] weight:fp16[4,3]=@ bias:fp16[4]=@ -> fp16[?,4]");
        fails(
            "matmul CoreML8 x:fp16[2,3] y:fp16[4,5] -> fp16[]",
            "dimension 1: `x` has 3 but `y` has 4",
        );
        fails(
            "linear CoreML8 x:fp16[2,3] weight:fp16[4,5] -> fp16[]",
            "dimension 1: `x` has 3 but `weight` has 5",
        );
        gives(
            "scaled_dot_product_attention CoreML8 query:fp16[1,8,?,64] key:fp16[1,8,32,64] value:fp16[1,8,32,16] -> fp16[1,8,?,16]",
        );
    }

    #[test]
    fn joined_and_parted_tensors_add_up() {
        gives("concat CoreML8 values:fp16[2,3] values:fp16[?,4] axis:int32[]=-1 -> fp16[2,7]");
        gives("concat CoreML8 values:int32[] values:int32[] axis:int32[]=0 -> int32[2]");
        gives("stack CoreML8 values:fp16[2] values:fp16[?] axis:int32[]=-1 -> fp16[2,2]");
        gives(
            "split CoreML8 x:fp16[6,2] num_splits:int32[]=3 axis:int32[]=0 -> fp16[2,2] fp16[2,2] fp16[2,2]",
        );
        gives("split CoreML8 x:fp16[6] split_sizes:int32[2]=1,5 axis:int32[]=0 -> fp16[1] fp16[5]");
        fails(
            "split CoreML8 x:fp16[6] split_sizes:int32[2]=1,4 axis:int32[]=0 -> fp16[]",
            "`split_sizes` add up to 5, not to 6",
        );
        fails(
            "concat CoreML8 values:fp16[2,3] values:fp16[3,3] axis:int32[]=1 -> fp16[]",
            "dimension 0: `values` has 2 but `values` has 3",
        );
        gives("pad CoreML8 x:fp16[1,2,?] pad:int32[4]=1,2,0,0 -> fp16[1,5,?]");
        gives("tile CoreML8 x:fp16[2,?] reps:int32[2]=3,1 -> fp16[6,?]");
    }

    #[test]
    fn gathers_replace_an_axis_by_the_indices() {
        gives("gather CoreML5 x:fp16[4,5,6] indices:int32[2,3] axis:int32[]=1 -> fp16[4,2,3,6]");
        gives(
            "gather CoreML7 x:fp16[4,5,6] indices:uint16[4,3] axis:int32[]=1 batch_dims:int32[]=1 -> fp16[4,3,6]",
        );
        gives("gather CoreML7 x:int32[5] indices:int32[]=2 axis:int32[]=0 -> int32[]");
        gives("gather_nd CoreML7 x:fp16[2,3,4] indices:int32[7,2] -> fp16[7,4]");
        gives(
            "gather_along_axis CoreML7 x:fp16[2,3] indices:int32[2,9] axis:int32[]=1 -> fp16[2,9]",
        );
        fails(
            "gather_along_axis CoreML7 x:fp16[2,3] indices:int32[4,9] axis:int32[]=1 -> fp16[]",
            "dimension 0: `x` has 2 but `indices` has 4",
        );
    }

    #[test]
    fn windows_are_counted_by_the_padding() {
        // ⌊(in + pad − dilated kernel) / stride⌋ + 1
        gives(
            "conv CoreML8 x:fp16[1,4,10,?] weight:fp16[8,2,3,3]=@ strides:int32[2]=2,1 dilations:int32[2]=2,1 groups:int32[]=2 pad_type:string[]=custom pad:int32[4]=1,1,0,0 -> fp16[1,8,4,?]",
        );
        gives(
            "conv CoreML8 x:fp16[1,4,10] weight:fp16[8,4,3]=@ strides:int32[1]=3 pad_type:string[]=same -> fp16[1,8,4]",
        );
        gives(
            "max_pool CoreML8 x:fp16[1,4,10] kernel_sizes:int32[1]=3 strides:int32[1]=2 pad_type:string[]=valid ceil_mode:bool[]=true -> fp16[1,4,5]",
        );
        gives(
            "conv_transpose CoreML8 x:fp16[1,4,10] weight:fp16[4,3,2]=@ strides:int32[1]=2 groups:int32[]=2 -> fp16[1,6,20]",
        );
        fails(
            "conv CoreML8 x:fp16[1,4,10] weight:fp16[8,4,11]=@ -> fp16[]",
            "the window of 11 does not fit into 10 at spatial dimension 0",
        );
        fails(
            "conv CoreML8 x:fp16[1,4,10] weight:fp16[8,3,1]=@ -> fp16[]",
            "`x` has 4 channels, `weight` has 3 for each of 1 groups",
        );
    }

    #[test]
    fn a_state_reads_as_what_it_wraps_and_takes_only_that() {
        gives("read_state CoreML8 input:state(fp16[1,8,64]) -> fp16[1,8,64]");
        gives("write_state CoreML8 input:state(fp16[1,8]) data:fp16[1,8] ->");
        fails(
            "write_state CoreML8 input:state(fp16[1,8]) data:fp32[1,8] ->",
            "`input` is fp16 but `data` is fp32",
        );
        fails(
            "read_state CoreML8 input:fp16[1,8] -> fp16[]",
            "`input` must be a state that wraps a tensor",
        );
        has_no_rule("read_state CoreML7 input:state(fp16[1,8]) -> fp16[1,8]");
    }

    #[test]
    fn ranges_are_counted_in_their_element_type() {
        gives("range_1d CoreML8 start:int32[]=0 end:int32[]=7 step:int32[]=2 -> int32[4]");
        // 1 / fp32(0.1) rounds to 10 in fp32 but is below it in exact arithmetic.
        gives("range_1d CoreML8 start:fp32[]=0 end:fp32[]=1 step:fp32[]=0.1 -> fp32[10]");
        gives("range_1d CoreML8 start:int32[]=0 end:int32[] step:int32[]=2 -> int32[?]");
        fails(
            "range_1d CoreML8 start:int32[]=0 end:int32[]=7 step:int32[]=0 -> int32[]",
            "`step` never reaches `end`",
        );
    }

    #[test]
    fn what_is_unknown_has_no_rule_and_what_is_missing_is_an_error() {
        has_no_rule("new_op CoreML9 x:fp16[1] -> fp16[1]");
        has_no_rule("scaled_dot_product_attention CoreML7 query:fp16[1,2,3] -> fp16[]");
        has_no_rule("reduce_sum CoreML8 x:fp16[2,3] axes:int32[1] -> fp16[]");
        fails("exp CoreML8 -> fp16[]", "parameter `x` is missing");
        fails(
            "transpose CoreML8 x:fp16[2,3] -> fp16[]",
            "parameter `perm` is missing",
        );
    }

    #[test]
    fn an_operand_of_unknown_rank_has_no_rule() {
        let mut case = Case::parse("exp CoreML8 x:fp16[2] -> fp16[]");
        for (rank, dims) in [
            (-1, vec![]),
            (1, vec![Dim::Unknown { variadic: true }]),
            (3, vec![Dim::Known(2)]),
        ] {
            let mut tensor = TensorType::new(DType::Float16, dims);
            tensor.rank = rank;
            case.arguments[0].1 = ValueType::Tensor(tensor);
            assert_eq!(case.infer(), Ok(Inference::NoRule));
        }
    }
}

#[test]
fn types_are_compatible_up_to_sizes_that_one_side_does_not_know() {
    let fits = |a: &str, b: &str| compatible(&parse_type(a), &parse_type(b));
    assert!(fits("fp16[2,?]", "fp16[2,3]"));
    assert!(fits("fp16[2,3]", "fp16[?,3]"));
    assert!(fits("state(fp16[2,3])", "state(fp16[2,3])"));
    assert!(!fits("fp16[2,3]", "fp16[2,4]"));
    assert!(!fits("fp16[2]", "fp32[2]"));
    assert!(!fits("fp16[?]", "fp16[?,?]"));
    assert!(!fits("fp16[]", "fp16[1]"));
    assert!(!fits("state(fp16[2])", "fp16[2]"));
}
