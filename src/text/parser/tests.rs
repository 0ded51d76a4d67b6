//! Tests of the parser: literals against formulas, errors with their places, and that no text
//! makes it panic or run away.

use half::{bf16, f16};
use proptest::prelude::*;

use super::*;
use crate::ir::{TensorData, Value};
use crate::text::{PrintOptions, program_text};

/// A program with this body.
fn program(body: &str) -> String {
    format!("program(1.3)\n{{\nfunc main<ios18>(tensor<fp16, [2]> x) {{\n{body}\n}} -> (x);\n}}\n")
}

/// The value of the one const in a program whose const has this value.
fn constant(value: &str) -> Result<Value, Vec<ParseError>> {
    let body = format!("fp16 c = const()[name = string(\"c\"), val = {value}];");
    let parsed = parse(&program(&body), "test")?;
    let graph = &parsed.program.functions["main"]
        .active()
        .expect("a body")
        .graph;
    let (_, op) = graph.ops().next().expect("one op");
    Ok(op.const_value().expect("a const").clone())
}

fn data(value: &str) -> TensorData {
    let value = constant(value).unwrap_or_else(|errors| panic!("{value}: {}", errors[0]));
    value.tensor_data().expect("a tensor").clone()
}

fn error(value: &str) -> String {
    constant(value).expect_err(value)[0].message.clone()
}

fn messages(source: &str) -> Vec<String> {
    parse(source, "f.mil")
        .err()
        .unwrap_or_default()
        .iter()
        .map(ToString::to_string)
        .collect()
}

#[test]
fn decimal_and_hexadecimal_numbers_are_rounded_to_nearest_even() {
    let halves = |values: &[f32]| {
        let bytes = values.iter().flat_map(|v| f16::from_f32(*v).to_le_bytes());
        TensorData::Bytes(bytes.collect())
    };
    assert_eq!(data("fp16(0.1)"), halves(&[0.1]));
    assert_eq!(data("fp16(-65504)"), halves(&[-65504.0]));
    assert_eq!(data("fp16(1e-5)"), halves(&[1e-5]));
    assert_eq!(data("fp16(-0.0)"), halves(&[-0.0]));
    assert_eq!(data("fp16(-0x1.48p-1)"), halves(&[-0.640_625]));
    // 2049 stands between 2048 and 2050, 2051 between 2050 and 2052.
    let pair = "tensor<fp16, [2]>([2049, 2051])";
    assert_eq!(data(pair), halves(&[2048.0, 2052.0]));
    assert_eq!(
        data("tensor<fp16, [2]>([inf, -inf])"),
        halves(&[f32::INFINITY, -f32::INFINITY])
    );
    assert_eq!(data("fp32(0.1)"), TensorData::Floats(vec![0.1]));
    assert_eq!(
        data("fp32(16777217)"),
        TensorData::Floats(vec![16_777_216.0])
    );
    assert_eq!(data("fp64(0.1)"), TensorData::Doubles(vec![0.1]));
    assert_eq!(data("fp64(5e-324)"), TensorData::Doubles(vec![5e-324]));
    // The digits beyond the mantissa decide: 1 + 2^-24 is a tie for fp32, and this is above it.
    let above = f32::from_bits(0x3f80_0001);
    assert_eq!(
        data("fp32(0x1.0000010000000000001p0)"),
        TensorData::Floats(vec![above])
    );
    assert_eq!(data("fp32(0x1.000001p0)"), TensorData::Floats(vec![1.0]));
    for (text, why) in [
        ("fp16(65520)", "too large"),
        ("fp32(1e39)", "too large"),
        ("fp16(0x1p+16)", "too large"),
        ("fp16(1.2.3)", "not a number"),
        ("fp16(0x1pz)", "not a number"),
        ("fp16(zero)", "expected a number"),
        ("fp8e4m3fn(inf)", "without infinities"),
        ("fp16(nan(0x400000))", "mantissa bits of a NaN"),
    ] {
        assert!(error(text).contains(why), "{text}: {}", error(text));
    }
}

#[test]
fn every_fp16_and_bf16_is_read_back_from_its_decimal_and_its_text() {
    use super::number::float_bits;
    use crate::text::float::{BF16, FP16};
    use crate::text::writer::{Style, Writer};
    let spelled = |write: &dyn Fn(&mut Writer<'_>)| {
        Writer::text(Style::whole(Dialect::Program13), |w| write(w))
    };
    for bits in 0..=u16::MAX {
        let (half, brain) = (f16::from_bits(bits), bf16::from_bits(bits));
        if half.is_finite() {
            let decimal = format!("{}", half.to_f64());
            assert_eq!(float_bits(&decimal, FP16), Ok(bits.into()));
            assert_eq!(
                float_bits(&spelled(&|w| w.fp16(bits)), FP16),
                Ok(bits.into())
            );
        }
        if brain.is_finite() {
            let decimal = format!("{:e}", brain.to_f64());
            assert_eq!(float_bits(&decimal, BF16), Ok(bits.into()));
            assert_eq!(
                float_bits(&spelled(&|w| w.bf16(bits)), BF16),
                Ok(bits.into())
            );
        }
    }
}

proptest! {
    #[test]
    fn numbers_round_to_fp16_and_bf16_as_the_half_crate_rounds_them(value: f64) {
        use super::number::float_bits;
        use crate::text::float::{BF16, FP16};
        let text = format!("{value:e}");
        prop_assume!(value.is_finite());
        let half = f16::from_f64(value);
        if half.is_finite() {
            prop_assert_eq!(float_bits(&text, FP16), Ok(half.to_bits().into()));
        } else {
            prop_assert!(float_bits(&text, FP16).is_err());
        }
        let brain = bf16::from_f64(value);
        if brain.is_finite() {
            prop_assert_eq!(float_bits(&text, BF16), Ok(brain.to_bits().into()));
        }
    }
}

#[test]
fn integers_keep_their_limits_and_refuse_what_is_beyond() {
    assert_eq!(
        data("uint64(18446744073709551615)"),
        TensorData::LongInts(vec![-1])
    );
    assert_eq!(
        data("int64(-9223372036854775808)"),
        TensorData::LongInts(vec![i64::MIN])
    );
    assert_eq!(data("int32(-2147483648)"), TensorData::Ints(vec![i32::MIN]));
    assert_eq!(data("int8(-128)"), TensorData::Bytes(vec![128]));
    assert_eq!(
        data("tensor<int4, [3]>([-8, 7, -1])"),
        TensorData::Bytes(vec![0x78, 0x0f])
    );
    assert_eq!(
        data("tensor<uint3, [3]>([1, 2, 7])"),
        TensorData::Bytes(vec![0b1101_0001, 1])
    );
    for text in [
        "int8(128)",
        "uint8(-1)",
        "int32(2147483648)",
        "int32(1.5)",
        "int32(true)",
    ] {
        assert!(error(text).contains("expected a whole number"), "{text}");
    }
}

#[test]
fn fill_and_random_make_elements_by_their_formulas() {
    assert_eq!(
        data("tensor<fp32, [2, 2]>(fill(0.5))"),
        TensorData::Floats(vec![0.5; 4])
    );
    assert_eq!(
        data("tensor<bool, [3]>(fill(true))"),
        TensorData::Bools(vec![true; 3])
    );
    assert_eq!(
        data("tensor<int4, [3]>(fill(-1))"),
        TensorData::Bytes(vec![0xff, 0x0f])
    );
    assert_eq!(
        data("tensor<fp32, [0]>(fill(1))"),
        TensorData::Floats(vec![])
    );
    // The first outputs of splitmix64 with the seed 1234567, as its author's test program has them.
    let outputs = [6_457_827_717_110_365_317_u64, 3_203_168_211_198_807_973];
    let unit = |z: u64| (z >> 11) as f64 / 9_007_199_254_740_992.0;
    let expected = outputs.map(|z| ((2.0 * unit(z) - 1.0) * 3.0) as f32);
    assert_eq!(
        data("tensor<fp32, [2]>(random(1234567, 3.0))"),
        TensorData::Floats(expected.to_vec())
    );
    let TensorData::Ints(whole) = data("tensor<int32, [1000]>(random(7, 2))") else {
        panic!("ints");
    };
    assert!((-2..=2).all(|value| whole.contains(&value)));
    assert!(whole.iter().all(|value| (-2..=2).contains(value)));
    for (text, why) in [
        ("tensor<fp32, [?]>(fill(1))", "no fixed number"),
        ("tensor<fp32, [9999999999]>(fill(1))", "too many"),
        ("tensor<string, [2]>(random(1, 1))", "only numbers"),
        ("tensor<fp16, [2]>(random(1, 1e9))", "scale must be"),
        ("tensor<fp16, [2]>(random(1, nan))", "scale must be"),
        ("tensor<fp16, [2]>(random(-1, 1))", "expected a seed"),
    ] {
        assert!(error(text).contains(why), "{text}: {}", error(text));
    }
}

#[test]
fn brackets_must_have_the_shape_of_the_type() {
    assert_eq!(
        data("tensor<int32, [2, 2]>([[1, 2], [3, 4]])"),
        TensorData::Ints(vec![1, 2, 3, 4])
    );
    assert_eq!(
        data("tensor<int32, [2, 2]>([1])"),
        TensorData::Ints(vec![1])
    );
    assert_eq!(data("tensor<int32, [0]>([])"), TensorData::Ints(vec![]));
    for text in [
        "tensor<int32, [2, 2]>([[1, 2, 3, 4]])",
        "tensor<int32, [2, 2]>([[1, 2], [3]])",
        "tensor<int32, [2, 2]>([[1, 2], 3])",
        "tensor<int32, [2, 2]>([1, [2, 3]])",
        "tensor<int32, [2, 2]>([[[1, 2], [3, 4]]])",
    ] {
        assert!(error(text).contains("brackets"), "{text}: {}", error(text));
    }
    assert!(error("tensor<int32, [2]>(1)").contains("in brackets"));
}

#[test]
fn errors_say_where_they_are_and_what_was_expected() {
    assert_eq!(
        messages(""),
        ["f.mil:1:1: expected `program`, found the end of the text"]
    );
    assert_eq!(
        messages("program(x)"),
        ["f.mil:1:9: expected a version, such as 1.3, found `x`"]
    );
    let body = "fp16 a = ü const();";
    assert_eq!(
        messages(&program(body)),
        ["f.mil:4:10: no token of MIL text begins with this character"]
    );
    let body = "fp16 a = const()[name = string(\"ä\") val = fp16(1)];";
    assert_eq!(
        messages(&program(body)),
        ["f.mil:4:37: expected `,` or `]`, found `val`"]
    );
    let body = "fp16 a = const()[name = string(\"a\\q\")];";
    let found = messages(&program(body));
    assert!(
        found[0].starts_with("f.mil:4:34: unknown escape"),
        "{found:?}"
    );
}

#[test]
fn one_run_reports_the_errors_of_several_statements_and_functions() {
    let source = "program(1.3)\n{\n\
        func a<ios18>(fp16 x) {\n\
        fp16 b = add(x = x y = x);\n\
        fp16 c = add(x = b, y = x);\n\
        fp16 d = add(x = c, y = nothing);\n\
        fp16 x = add(x = x, y = x);\n\
        } -> (b, missing);\n\
        func {}\n\
        func c<ios18>(fp16 x) {\n\
        fp16 y = while_loop(x = x)[] () { fp16 z = add(x = ; } -> (z);\n\
        } -> (y, q);\n}\n";
    assert_eq!(
        messages(source),
        [
            "f.mil:4:20: expected `,` or `)`, found `y`",
            "f.mil:6:25: `nothing` is used before it is defined, or never is",
            "f.mil:7:6: `x` is defined twice (the second time by `add` op `x`)",
            "f.mil:8:10: `missing` is used before it is defined, or never is",
            "f.mil:9:6: expected the function's name, found `{`",
            "f.mil:11:52: expected a value's name or a literal, found `;`",
            "f.mil:12:10: `q` is used before it is defined, or never is",
        ]
    );
}

#[test]
fn names_that_are_words_of_the_language_can_be_used_where_only_a_name_fits() {
    let body = "tensor<fp16, [2]> state = relu(x = x)[name = string(\"state\")];\n\
                tensor<fp16, [2]> fill = relu(x = state)[name = string(\"fill\")];\n\
                tensor<fp16, [2]> `a b` = add(x = fill, y = `state`);";
    assert_eq!(messages(&program(body)), [""; 0]);
}

#[test]
fn deep_nesting_is_an_error_and_not_the_end_of_the_stack() {
    let deep = 100_000;
    let types = format!("{}fp16{}", "list<".repeat(deep), ">".repeat(deep));
    assert!(error(&format!("{types}(@no_value)")).contains("nested more than"));
    let brackets = format!("tensor<fp16, [1]>({})", "[".repeat(deep));
    assert!(error(&brackets).contains("too deep"));
    let pairs = format!("dict<fp16, fp16>({})", "{{@dict ".repeat(deep));
    assert!(!error(&pairs).is_empty());
    let lists = format!("@untyped({})", "@list [@untyped(".repeat(deep));
    assert!(error(&lists).contains("nested more than"));
    let blocks = "fp16 y = cond(x = x) () {\n".repeat(deep);
    assert!(messages(&program(&blocks))[0].contains("nested more than"));
    // Just within the limit everything still fits the stack.
    let some = MAX_DEPTH - 5;
    let blocks: Vec<String> = (0..some)
        .map(|i| format!("fp16 y{i} = cond(x = x) () {{\n"))
        .collect();
    let blocks = blocks.concat();
    let ends = "} -> (x);\n".repeat(some);
    assert_eq!(messages(&program(&(blocks + &ends))), [""; 0]);
}

#[test]
fn a_text_full_of_errors_stops_at_the_limit() {
    let body = "fp16 a = ;\n".repeat(100_000);
    assert_eq!(messages(&program(&body)).len(), MAX_ERRORS);
    let stray = "\\ ".repeat(100_000);
    assert_eq!(messages(&program(&stray)).len(), MAX_ERRORS);
}

/// A program with every kind of construct, for mutation.
const SAMPLE: &str = r#"program(1.3) @version(2)
@doc "d \u{0} é"
[buildInfo = dict<string, string>({{"a", "1"}, {"b", @missing}})]
{
    func main<ios18>(tensor<fp16, [1, ?]> x, state<tensor<fp16, [2]>> s) [F = tuple<string, list<tensor<int32, [2]>, ?>>(("k", [[1, 2]]))] {
            fp16 c = const()[name = string("c"), val = fp16(nan(0x1))]; // note
            tensor<fp16, [2, 2] @rank(3)> w = const()[val = tensor<fp16, [2, 2]>(BLOBFILE(path = string("@model_path/w.bin"), offset = uint64(64)))];
            tensor<fp16, [2]> r = read_state(input = s)[];
            write_state(data = r, input = s);
            tensor<fp16, [1, ?]> y, @untyped `a b` = concat(axis = int32(-1), values = (x, r, @no_binding)) () [k = @type(@no_value)] {
                    tensor<uint4, [3]> q = const()[val = tensor<uint4, [3]>([1, 2, 3])];
                } -> (q), (fp16 i) {
                } -> (i);
            tensor<fp32, [...]> n = const()[val = tensor<fp32, [2]>(@new(fp32, 2) [0x1p+0, -inf])];
        } -> (y, w);
    @body<`ios99`> @block(fp16 z)[a = bool(true)] {
        } -> (z);
    func other<CoreML10>() @no_body;
}
"#;

#[test]
fn the_sample_for_mutations_holds_every_construct_and_prints_back() {
    let parsed = parse(SAMPLE, "sample").unwrap_or_else(|errors| panic!("{}", errors[0]));
    let options = PrintOptions {
        inline_new: true,
        ..PrintOptions::default()
    };
    let text = program_text(&parsed.program, &options).expect("no function asked for");
    let again = parse(&text, "printed").unwrap_or_else(|errors| panic!("{}", errors[0]));
    let second = program_text(&again.program, &options).expect("no function asked for");
    assert_eq!(second, text);
    assert_eq!(parsed.program.version, 2);
    assert_eq!(parsed.program.doc, "d \0 é");
}

proptest! {
    #[test]
    fn random_text_gives_errors_and_no_panic(text: String, cut in 0usize..2000) {
        prop_assert!(parse(&text, "random").is_err());
        let at = (0..=cut.min(SAMPLE.len())).rev().find(|at| SAMPLE.is_char_boundary(*at));
        let start = &SAMPLE[..at.unwrap_or(0)];
        let mixed = format!("{start}{text}{}", &SAMPLE[start.len()..]);
        for error in parse(&mixed, "mixed").err().unwrap_or_default() {
            prop_assert!(error.span.end <= mixed.len() && error.line >= 1 && error.column >= 1);
        }
    }

    #[test]
    fn mutated_tokens_give_errors_with_a_place_and_no_panic(
        edits in prop::collection::vec((0usize..4, any::<prop::sample::Index>(), any::<prop::sample::Index>()), 1..6)
    ) {
        let mut lexer = Lexer::new(SAMPLE);
        let mut tokens = Vec::new();
        loop {
            let token = lexer.token();
            if token.kind == Kind::End {
                break;
            }
            tokens.push(&SAMPLE[token.start..token.end]);
        }
        for (what, a, b) in edits {
            if tokens.is_empty() {
                break;
            }
            let (a, b) = (a.index(tokens.len()), b.index(tokens.len()));
            match what {
                0 => { tokens.remove(a); }
                1 => tokens.insert(a, tokens[b]),
                2 => tokens.swap(a, b),
                _ => tokens.truncate(a),
            }
        }
        let text = tokens.join(" ");
        match parse(&text, "mutated") {
            Ok(parsed) => {
                let options = PrintOptions { inline_new: true, ..PrintOptions::default() };
                let printed = program_text(&parsed.program, &options).expect("whole program");
                prop_assert!(parse(&printed, "printed").is_ok(), "{}", printed);
            }
            Err(errors) => {
                prop_assert!(!errors.is_empty());
                prop_assert!(errors.iter().all(|error| error.span.end <= text.len()));
            }
        }
    }
}
