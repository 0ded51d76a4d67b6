//! Pairs of small programs, each with one change.

use std::collections::BTreeMap;

use milwright::diff::{self, Blobs, Comparison, Edit, Kind, NoBlobs, Options, Side};
use milwright::ir::{BlobRef, Program};
use milwright::text::parse;

/// A program in the newer dialect from the text of its functions.
fn program(functions: &str) -> Program {
    let text = format!("program(1.3)\n{{\n{functions}\n}}\n");
    let parsed = parse(&text, "test");
    parsed
        .unwrap_or_else(|errors| panic!("{}\n{text}", errors[0]))
        .program
}

/// A program of one function with the input `x` and the given statements.
fn main_of(statements: &str, outputs: &str) -> Program {
    program(&format!(
        "func main<ios18>(tensor<fp16, [2]> x) {{\n{statements}\n}} -> ({outputs});"
    ))
}

fn compare_with(
    (before, blobs_before): (&Program, &dyn Blobs),
    (after, blobs_after): (&Program, &dyn Blobs),
    weights: bool,
) -> Comparison {
    let side = |program, blobs| Side {
        stage: "",
        program,
        blobs,
        interface: None,
    };
    diff::compare(
        &[side(before, blobs_before)],
        &[side(after, blobs_after)],
        Options { weights },
    )
}

fn compare(before: &Program, after: &Program) -> Comparison {
    compare_with((before, &NoBlobs), (after, &NoBlobs), false)
}

/// The lines about the differences, without the summary. Checks that the comparison the other way
/// round finds as many, with additions and removals exchanged.
fn lines(before: &Program, after: &Program) -> Vec<String> {
    let forth = compare(before, after);
    let back = compare(after, before);
    let ops = |edits: &[Edit], wanted: fn(&Edit) -> bool| -> Vec<String> {
        let ops = edits
            .iter()
            .filter(|edit| edit.kind == Kind::Op && wanted(edit));
        let mut ops: Vec<String> = ops.map(|edit| edit.place.to_string()).collect();
        ops.sort();
        ops
    };
    assert_eq!(
        ops(&forth.edits, Edit::is_addition),
        ops(&back.edits, Edit::is_removal)
    );
    assert_eq!(
        ops(&forth.edits, Edit::is_removal),
        ops(&back.edits, Edit::is_addition)
    );
    assert_eq!(forth.edits.len(), back.edits.len());
    assert!(compare(before, before).is_same());
    assert!(compare(after, after).is_same());
    shown(&forth)
}

fn shown(comparison: &Comparison) -> Vec<String> {
    let text = diff::text(comparison);
    let mut lines: Vec<String> = text
        .lines()
        .filter(|line| !line.is_empty())
        .map(str::to_owned)
        .collect();
    lines.pop();
    lines
}

#[test]
fn the_same_program_has_no_differences() {
    let one = main_of("tensor<fp16, [2]> y = relu(x = x);", "y");
    let comparison = compare(&one, &one.clone());
    assert!(comparison.is_same());
    assert_eq!(diff::text(&comparison), "no differences\n");
}

#[test]
fn a_renamed_operation_is_one_difference_and_its_readers_none() {
    let named = |name: &str| {
        main_of(
            &format!(
                "tensor<fp16, [2]> {name} = sin(x = x);\n\
                 tensor<fp16, [2]> b = add(x = {name}, y = x);\n\
                 tensor<fp16, [2]> y = mul(x = {name}, y = b);"
            ),
            "y",
        )
    };
    assert_eq!(
        lines(&named("a"), &named("sine")),
        ["  main/a (sin): renamed a → sine"]
    );
}

#[test]
fn new_numbers_in_all_names_are_no_other_operations() {
    // One more operation in the middle, and all names behind it numbered anew: each now belongs to
    // another operation.
    let chain = |types: &[&str]| {
        let mut statements = Vec::new();
        let mut last = "x".to_owned();
        for (number, op_type) in types.iter().enumerate() {
            statements.push(format!(
                "tensor<fp16, [2]> var_{number} = {op_type}(x = {last});"
            ));
            last = format!("var_{number}");
        }
        statements.push(format!("tensor<fp16, [2]> y = relu(x = {last});"));
        main_of(&statements.join("\n"), "y")
    };
    let before = chain(&["sin", "cos", "sin", "exp", "sin", "cos", "tanh"]);
    let after = chain(&["sin", "cos", "sqrt", "sin", "exp", "sin", "cos", "tanh"]);
    assert_eq!(
        lines(&before, &after),
        [
            "+ main/var_2 (sqrt): tensor<fp16, [2]> var_2 = sqrt(x = var_1)",
            "  main/var_2 (sin): renamed var_2 → var_3",
            "  main/var_2 (sin): x: var_1 → var_2",
            "  main/var_3 (exp): renamed var_3 → var_4",
            "  main/var_4 (sin): renamed var_4 → var_5",
            "  main/var_5 (cos): renamed var_5 → var_6",
            "  main/var_6 (tanh): renamed var_6 → var_7",
        ]
    );
}

#[test]
fn another_value_of_a_const_is_shown() {
    let with = |value: &str| {
        main_of(
            &format!(
                "fp16 c = const()[name = string(\"c\"), val = fp16({value})];\n\
                 tensor<fp16, [2]> y = mul(x = x, y = c);"
            ),
            "y",
        )
    };
    assert_eq!(
        lines(&with("2.0"), &with("0.5")),
        ["  main/c (const): value: fp16(0x1p+1) → fp16(0x1p-1)"]
    );
}

#[test]
fn elements_of_a_const_are_compared_one_by_one() {
    let with = |values: &str| {
        main_of(
            &format!(
                "tensor<fp16, [2, 2]> c = const()[val = tensor<fp16, [2, 2]>({values})];\n\
                 tensor<fp16, [2, 2]> y = mul(x = x, y = c);"
            ),
            "y",
        )
    };
    let comparison = compare(
        &with("[[1.0, 2.0], [3.0, 4.0]]"),
        &with("[[1.0, 2.5], [3.0, 1.0]]"),
    );
    let [edit] = comparison.edits.as_slice() else {
        panic!("{:?}", comparison.edits);
    };
    let elements = edit.elements.as_ref().expect("both have four elements");
    assert_eq!(edit.kind, Kind::Value);
    assert_eq!((elements.elements, elements.different), (4, 2));
    assert_eq!(elements.max_abs, 3.0);
    assert_eq!(elements.at, [1, 1]);
}

#[test]
fn a_nan_is_itself_and_a_zero_has_a_sign() {
    let with = |value: &str| {
        main_of(
            &format!("tensor<fp16, [2]> y = clip(alpha = fp16({value}), beta = fp16(1.0), x = x);"),
            "y",
        )
    };
    assert!(compare(&with("nan"), &with("nan")).is_same());
    assert_eq!(lines(&with("0.0"), &with("-0.0")).len(), 1);
}

#[test]
fn exchanged_operands_are_two_differences() {
    let sub = |operands: &str| {
        main_of(
            &format!(
                "tensor<fp16, [2]> a = sin(x = x);\n\
                 tensor<fp16, [2]> b = cos(x = x);\n\
                 tensor<fp16, [2]> y = sub({operands});"
            ),
            "y",
        )
    };
    assert_eq!(
        lines(&sub("x = a, y = b"), &sub("x = b, y = a")),
        ["  main/y (sub): x: a → b", "  main/y (sub): y: b → a"]
    );
}

#[test]
fn an_added_and_a_removed_operation_are_shown_as_text() {
    let short = main_of("tensor<fp16, [2]> y = relu(x = x);", "y");
    let long = main_of(
        "tensor<fp16, [2]> a = sin(x = x);\ntensor<fp16, [2]> y = relu(x = a);",
        "y",
    );
    assert_eq!(
        lines(&short, &long),
        [
            "+ main/a (sin): tensor<fp16, [2]> a = sin(x = x)",
            "  main/y (relu): x: x → a"
        ]
    );
    assert_eq!(
        lines(&long, &short),
        [
            "- main/a (sin): tensor<fp16, [2]> a = sin(x = x)",
            "  main/y (relu): x: a → x"
        ]
    );
}

#[test]
fn a_value_that_takes_the_name_of_an_erased_one_is_renamed() {
    let before = main_of(
        "tensor<fp16, [2]> a = relu(x = x);\ntensor<fp16, [2]> y = identity(x = a);",
        "y",
    );
    let after = main_of("tensor<fp16, [2]> y = relu(x = x);", "y");
    let found = lines(&before, &after);
    assert!(
        found.contains(&"  main/a (relu): renamed a → y".to_owned()),
        "{found:#?}"
    );
    assert!(
        found.contains(&"- main/y (identity): tensor<fp16, [2]> y = identity(x = a)".to_owned()),
        "{found:#?}"
    );
}

#[test]
fn an_operation_of_another_type_is_shown_before_and_after() {
    let before = main_of("tensor<fp16, [2]> y = pow(x = x, y = fp16(2.0));", "y");
    let after = main_of("tensor<fp16, [2]> y = mul(x = x, y = x);", "y");
    assert_eq!(
        lines(&before, &after),
        [
            "- main/y (pow): tensor<fp16, [2]> y = pow(x = x, y = fp16(0x1p+1))",
            "+ main/y (mul): tensor<fp16, [2]> y = mul(x = x, y = x)"
        ]
    );
}

#[test]
fn parameters_attributes_and_types_are_compared() {
    let before = main_of(
        "tensor<fp16, [2]> y = concat(axis = int32(0), interleave = bool(false), values = (x, x))[a = int32(1)];",
        "y",
    );
    let after = main_of(
        "tensor<fp16, [4]> y = concat(axis = int32(1), values = (x, x))[a = int32(2)];",
        "y",
    );
    assert_eq!(
        lines(&before, &after),
        [
            "  main: output y: tensor<fp16, [2]> → tensor<fp16, [4]>",
            "  main/y (concat): axis: int32(0) → int32(1)",
            "- main/y (concat): interleave: removed, was bool(false)",
            "  main/y (concat): attribute a: int32(1) → int32(2)",
            "  main/y (concat): type: tensor<fp16, [2]> → tensor<fp16, [4]>",
        ]
    );
}

#[test]
fn an_added_output_is_a_difference() {
    let statements = "tensor<fp16, [2]> a = sin(x = x);\ntensor<fp16, [2]> y = relu(x = a);";
    assert_eq!(
        lines(&main_of(statements, "y"), &main_of(statements, "y, a")),
        ["+ main: output a: added, tensor<fp16, [2]>"]
    );
    assert_eq!(
        lines(&main_of(statements, "a, y"), &main_of(statements, "y, a")),
        ["  main: order of outputs: a, y → y, a"]
    );
}

#[test]
fn an_output_that_is_made_by_another_operation_is_a_difference() {
    let before = main_of(
        "tensor<fp16, [2]> a = sin(x = x);\ntensor<fp16, [2]> y = sin(x = a);",
        "a, y",
    );
    let after = main_of(
        "tensor<fp16, [2]> y = sin(x = x);\ntensor<fp16, [2]> a = sin(x = y);",
        "a, y",
    );
    assert!(!lines(&before, &after).is_empty());
}

fn stateful(statements: &str) -> Program {
    program(&format!(
        "func main<ios18>(state<tensor<fp16, [2]>> s, tensor<fp16, [2]> x) {{\n\
         {statements}\n}} -> (y);"
    ))
}

#[test]
fn a_removed_state_write_is_a_difference() {
    let read = "tensor<fp16, [2]> y = read_state(input = s);";
    let write = "write_state(data = x, input = s)[name = string(\"w\")];";
    assert_eq!(
        lines(&stateful(&format!("{write}\n{read}")), &stateful(read)),
        ["- main/w (write_state): write_state(data = x, input = s)[name = string(\"w\")]"]
    );
}

#[test]
fn order_matters_between_accesses_to_a_state_and_nowhere_else() {
    let read = "tensor<fp16, [2]> y = read_state(input = s);";
    let write = "write_state(data = x, input = s)[name = string(\"w\")];";
    let other = "tensor<fp16, [2]> z = sin(x = x);";
    assert_eq!(
        lines(
            &stateful(&format!("{write}\n{read}\n{other}")),
            &stateful(&format!("{other}\n{read}\n{write}"))
        ),
        ["  main/y (read_state): access to state s moved, the write before it: w → no write"]
    );
    let before = stateful(&format!("{write}\n{other}\n{read}"));
    let after = stateful(&format!("{other}\n{write}\n{read}"));
    assert!(compare(&before, &after).is_same());
}

#[test]
fn inputs_and_states_are_compared_by_name() {
    let with = |inputs: &str| {
        program(&format!(
            "func main<ios18>({inputs}) {{\n\
             tensor<fp16, [2]> y = relu(x = x);\n}} -> (y);"
        ))
    };
    let before = with("tensor<fp16, [2]> x, tensor<fp16, [1]> a, state<tensor<fp16, [2]>> s");
    let after = with("tensor<fp16, [2]> a, tensor<fp16, [2]> x");
    assert_eq!(
        lines(&before, &after),
        [
            "  main: input a: tensor<fp16, [1]> → tensor<fp16, [2]>",
            "- main: state s: removed, was state<tensor<fp16, [2]>>",
            "  main: order of inputs: x, a → a, x",
        ]
    );
}

const TWO_FUNCTIONS: [&str; 2] = [
    "tensor<fp16, [2]> a = sin(x = x);\ntensor<fp16, [2]> y = relu(x = a);",
    "tensor<fp16, [2]> y = tanh(x = x);",
];

fn functions(named: &[(&str, &str)]) -> Program {
    let text: Vec<String> = named
        .iter()
        .map(|(name, statements)| {
            format!("func {name}<ios18>(tensor<fp16, [2]> x) {{\n{statements}\n}} -> (y);")
        })
        .collect();
    program(&text.join("\n"))
}

#[test]
fn exchanged_functions_differ_each_from_its_namesake() {
    let [one, other] = TWO_FUNCTIONS;
    let before = functions(&[("f", one), ("g", other)]);
    let after = functions(&[("f", other), ("g", one)]);
    let found = lines(&before, &after);
    for line in [
        "- f/a (sin): tensor<fp16, [2]> a = sin(x = x)",
        "- f/y (relu): tensor<fp16, [2]> y = relu(x = a)",
        "+ f/y (tanh): tensor<fp16, [2]> y = tanh(x = x)",
        "+ g/a (sin): tensor<fp16, [2]> a = sin(x = x)",
        "- g/y (tanh): tensor<fp16, [2]> y = tanh(x = x)",
        "+ g/y (relu): tensor<fp16, [2]> y = relu(x = a)",
    ] {
        assert!(found.contains(&line.to_owned()), "{line}: {found:#?}");
    }
    assert_eq!(found.len(), 6, "{found:#?}");
}

#[test]
fn a_function_without_namesake_is_compared_with_the_most_similar_one() {
    let [one, other] = TWO_FUNCTIONS;
    let before = functions(&[("f", one), ("g", other)]);
    let after = functions(&[("f", one), ("h", other)]);
    assert_eq!(lines(&before, &after), ["  g: renamed g → h"]);
    let after = functions(&[("f", one)]);
    assert_eq!(
        lines(&before, &after),
        ["- g: function: removed, was 1 ops, opset CoreML8"]
    );
}

fn conditional(inner: &str, output: &str) -> Program {
    program(&format!(
        "func main<ios18>(bool p, tensor<fp16, [2]> x) {{\n\
         tensor<fp16, [2]> a = sin(x = x);\n\
         tensor<fp16, [2]> y = cond(pred = p) () {{\n{inner}\n}} -> ({output}), () {{\n\
         tensor<fp16, [2]> n = exp(x = a);\n}} -> (n);\n}} -> (y);"
    ))
}

#[test]
fn changes_inside_nested_blocks_are_found() {
    let before = conditional("tensor<fp16, [2]> t = relu(x = a);", "t");
    let after = conditional("tensor<fp16, [2]> t = relu(x = x);", "t");
    assert_eq!(lines(&before, &after), ["  main/y[0]/t (relu): x: a → x"]);
    let after = conditional(
        "tensor<fp16, [2]> t = relu(x = a);\ntensor<fp16, [2]> u = exp(x = t);",
        "u",
    );
    let found = lines(&before, &after);
    assert_eq!(
        found,
        [
            "  main/y[0] (cond): output 0: t → u",
            "+ main/y[0]/u (exp): tensor<fp16, [2]> u = exp(x = t)"
        ]
    );
}

/// Data of a weight file in memory.
struct Data(BTreeMap<u64, Vec<u8>>);

impl Blobs for Data {
    fn bytes(&self, blob: &BlobRef) -> Option<&[u8]> {
        self.0.get(&blob.offset).map(Vec::as_slice)
    }
}

fn weight(dtype: &str, shape: &str, offset: u64) -> Program {
    main_of(
        &format!(
            "tensor<{dtype}, [{shape}]> w = const()[val = tensor<{dtype}, [{shape}]>(BLOBFILE(\
             path = string(\"@model_path/weights/weight.bin\"), offset = uint64({offset})))];\n\
             tensor<fp16, [2]> y = mul(x = x, y = w);"
        ),
        "y",
    )
}

#[test]
fn offsets_of_weights_are_no_difference_and_their_data_is() {
    let before = weight("fp16", "2, 2", 64);
    let after = weight("fp16", "2, 2", 192);
    let data = |offset: u64, bytes: &[u8]| Data(BTreeMap::from([(offset, bytes.to_vec())]));
    // 1, 2, 3, 4 and the same with 2.5 as second.
    let old = data(64, &[0, 0x3c, 0, 0x40, 0, 0x42, 0, 0x44]);
    let same = data(192, &[0, 0x3c, 0, 0x40, 0, 0x42, 0, 0x44]);
    let new = data(192, &[0, 0x3c, 0, 0x41, 0, 0x42, 0, 0x44]);
    for weights in [false, true] {
        assert!(compare_with((&before, &old), (&after, &same), weights).is_same());
    }
    let plain = compare_with((&before, &old), (&after, &new), false);
    assert_eq!(shown(&plain), ["  main/w (const): weight: other data"]);
    let precise = compare_with((&before, &old), (&after, &new), true);
    assert_eq!(
        shown(&precise),
        ["  main/w (const): weight: 1 of 4 elements differs, by at most 0.5 at [0, 1]: 2.0 → 2.5"]
    );
}

#[test]
fn a_weight_that_cannot_be_read_is_counted_and_a_large_one_is_sampled() {
    let program = weight("int8", "1000, 1000", 64);
    let none = compare_with((&program, &NoBlobs), (&program, &NoBlobs), true);
    assert!(none.is_same());
    assert_eq!(none.unreadable, 1);

    let mut bytes = vec![0u8; 1_000_000];
    let old = Data(BTreeMap::from([(64, bytes.clone())]));
    // Between two of the samples: only the whole comparison sees it.
    bytes[10_000] = 5;
    let new = Data(BTreeMap::from([(64, bytes)]));
    let sampled = compare_with((&program, &old), (&program, &new), false);
    assert!(sampled.is_same());
    assert_eq!(sampled.sampled, 1);
    let whole = compare_with((&program, &old), (&program, &new), true);
    assert_eq!(
        shown(&whole),
        [
            "  main/w (const): weight: 1 of 1000000 elements differs, by at most 5.0 at [10, 0]: \
             0.0 → 5.0"
        ]
    );
}

#[test]
fn a_weight_in_another_type_is_compared_by_value() {
    let before = weight("fp16", "2", 64);
    let after = weight("fp32", "2", 64);
    let old = Data(BTreeMap::from([(64, vec![0, 0x3c, 0, 0x40])]));
    // 1 and 2.25 in fp32.
    let new = Data(BTreeMap::from([(
        64,
        vec![0, 0, 0x80, 0x3f, 0, 0, 0x10, 0x40],
    )]));
    let found = compare_with((&before, &old), (&after, &new), true);
    assert_eq!(
        shown(&found),
        [
            "  main/w (const): weight: tensor<fp16, [2]> → tensor<fp32, [2]>; 1 of 2 elements \
             differs, by at most 0.25 at [1]: 2.0 → 2.25"
        ]
    );
}

#[test]
fn a_hundred_thousand_operations_are_compared_in_seconds() {
    let chain = |prefix: &str| {
        let mut text = Vec::new();
        let mut last = "x".to_owned();
        for index in 0..50_000 {
            text.push(format!(
                "fp16 {prefix}c{index} = const()[val = fp16({}.0)];\n\
                 tensor<fp16, [2]> {prefix}{index} = mul(x = {last}, y = {prefix}c{index});\n",
                index % 1000
            ));
            last = format!("{prefix}{index}");
        }
        text.push(format!("tensor<fp16, [2]> y = relu(x = {last});"));
        main_of(&text.join("\n"), "y")
    };
    let (before, after) = (chain("a"), chain("b"));
    let start = std::time::Instant::now();
    let found = compare(&before, &after);
    let time = start.elapsed();
    let renamed = found.edits.iter().filter(|edit| edit.kind == Kind::Name);
    assert_eq!(renamed.count(), 100_000);
    // Unoptimized, on a busy machine; a quadratic step takes minutes.
    assert!(time.as_secs() < 60, "{time:?}");
}
