//! Each spelling, and what stops it.

use super::{Form, Found, Kind, Norm, Place, at, gain_after};
use crate::analysis::sample::Sample;
use crate::ir::DType;

const INPUTS: &str = "tensor<fp16, [2, 8]> x";
const MEAN: &str = "tensor<fp16, [2, 1]> m = reduce_mean(x = q, axes = [-1], keep_dims = true);";
const SUM: &str = "tensor<fp16, [2, 1]> t = reduce_sum(x = q, axes = [-1], keep_dims = true);";
const SQUARE: &str = "tensor<fp16, [2, 8]> q = square(x = x);";
const GUARD: &str = "tensor<fp16, [2, 1]> g = add(x = m, y = fp16(0.125));";
const RSQRT: &str = "tensor<fp16, [2, 1]> r = rsqrt(x = g, epsilon = fp32(0));";
const ROOT: &str = "tensor<fp16, [2, 1]> s = sqrt(x = g);";
const RESULT: &str = "tensor<fp16, [2, 8]> y = mul(x = x, y = r);";

/// A sample whose lines leave out the types of literals that only have one.
fn sample(inputs: &str, lines: &str, output: &str) -> Sample {
    let mut text = String::new();
    for (index, part) in lines.split("= ").enumerate() {
        if index > 0 {
            text.push_str("= ");
        }
        let end = part.find([',', ')']).unwrap_or(part.len());
        let list_end = part.find(']').map_or(0, |end| end + 1);
        let literal = &part[..end];
        if part.starts_with('[') {
            let (list, rest) = part.split_at(list_end);
            let count = list.split(',').count();
            text += format!("tensor<int32, [{count}]>({list}){rest}").as_str();
        } else if part.starts_with('"') {
            text += format!("string({literal}){}", &part[end..]).as_str();
        } else if ["true", "false"].contains(&literal) {
            text += format!("bool({literal}){}", &part[end..]).as_str();
        } else if literal.parse::<i32>().is_ok() {
            text += format!("int32({literal}){}", &part[end..]).as_str();
        } else {
            text.push_str(part);
        }
    }
    Sample::new(inputs, &text, output)
}

/// What the operation of the value `y` is the root of.
fn found_with(inputs: &str, lines: &[&str]) -> Found {
    let sample = sample(inputs, &lines.join("\n"), "y");
    at(&sample.block(), sample.node("y"))
}

fn found(lines: &[&str]) -> Found {
    found_with(INPUTS, lines)
}

#[track_caller]
fn norm(lines: &[&str]) -> Norm {
    match found(lines) {
        Found::Norm(norm) => *norm,
        other => panic!("{other:?}"),
    }
}

#[track_caller]
fn is_rms_norm(lines: &[&str]) {
    let norm = norm(lines);
    assert_eq!((norm.kind, norm.form), (Kind::Rms, Form::Plain));
    assert_eq!(norm.axes, [1]);
    assert_eq!(norm.epsilon, Some(0.125));
    assert_eq!(norm.square.unwrap().1, DType::Float16);
}

#[track_caller]
fn nearly(lines: &[&str], why: &str) {
    match found(lines) {
        Found::Nearly(_, reason) => assert!(reason.contains(why), "{reason}"),
        other => panic!("{other:?}"),
    }
}

#[test]
fn each_spelling_of_the_square_is_seen() {
    for square in [
        SQUARE,
        "tensor<fp16, [2, 8]> q = mul(x = x, y = x);",
        "tensor<fp16, [2, 8]> q = pow(x = x, y = fp16(2));",
    ] {
        is_rms_norm(&[square, MEAN, GUARD, RSQRT, RESULT]);
    }
    let cube = "tensor<fp16, [2, 8]> q = pow(x = x, y = fp16(3));";
    assert_eq!(found(&[cube, MEAN, GUARD, RSQRT, RESULT]), Found::Nothing);
}

#[test]
fn each_spelling_of_the_mean_is_seen() {
    for mean in [
        [
            SQUARE,
            SUM,
            "tensor<fp16, [2, 1]> m = mul(x = t, y = fp16(0.125));",
        ],
        [
            SQUARE,
            SUM,
            "tensor<fp16, [2, 1]> m = mul(x = fp16(0.125), y = t);",
        ],
        [
            SQUARE,
            SUM,
            "tensor<fp16, [2, 1]> m = real_div(x = t, y = fp16(8));",
        ],
        [
            "",
            "tensor<fp16, [2, 1]> t = reduce_sum_square(x = x, axes = [1], keep_dims = true);",
            "tensor<fp16, [2, 1]> m = real_div(x = t, y = fp16(8));",
        ],
        [
            "tensor<fp16, [2, 1]> l = reduce_l2_norm(x = x, axes = [-1], keep_dims = true);",
            "tensor<fp16, [2, 1]> t = mul(x = l, y = l);",
            "tensor<fp16, [2, 1]> m = real_div(x = t, y = fp16(8));",
        ],
    ] {
        is_rms_norm(&[mean[0], mean[1], mean[2], GUARD, RSQRT, RESULT]);
    }
}

#[test]
fn each_spelling_of_the_root_is_seen() {
    for root in [
        RSQRT,
        "tensor<fp16, [2, 1]> r = pow(x = g, y = fp16(-0.5));",
        "tensor<fp16, [2, 1]> s = sqrt(x = g); tensor<fp16, [2, 1]> r = inverse(x = s, epsilon = fp16(0));",
        "tensor<fp16, [2, 1]> s = pow(x = g, y = fp16(0.5)); tensor<fp16, [2, 1]> r = real_div(x = fp16(1), y = s);",
    ] {
        is_rms_norm(&[SQUARE, MEAN, GUARD, root, RESULT]);
        let exchanged = "tensor<fp16, [2, 8]> y = mul(x = r, y = x);";
        is_rms_norm(&[SQUARE, MEAN, GUARD, root, exchanged]);
    }
    let quotient = "tensor<fp16, [2, 8]> y = real_div(x = x, y = s);";
    is_rms_norm(&[SQUARE, MEAN, GUARD, ROOT, quotient]);
    let guarded = "tensor<fp16, [2, 1]> r = inverse(x = s);";
    nearly(
        &[SQUARE, MEAN, GUARD, ROOT, guarded, RESULT],
        "`inverse` adds an epsilon",
    );
}

#[test]
fn the_epsilon_is_the_sum_of_what_stands_in_both_places() {
    let own = "tensor<fp16, [2, 1]> r = rsqrt(x = g, epsilon = fp32(0.5));";
    let both = norm(&[SQUARE, MEAN, GUARD, own, RESULT]);
    assert_eq!((both.epsilon, both.place), (Some(0.625), Place::Both));
    let own = "tensor<fp16, [2, 1]> r = rsqrt(x = m, epsilon = fp32(0.5));";
    let parameter = norm(&[SQUARE, MEAN, own, RESULT]);
    assert_eq!(
        (parameter.epsilon, parameter.place),
        (Some(0.5), Place::Parameter)
    );
    let exchanged = "tensor<fp16, [2, 1]> g = add(x = fp16(0.125), y = m);";
    is_rms_norm(&[SQUARE, MEAN, exchanged, RSQRT, RESULT]);
    // The default of 1e-12 is zero in fp16.
    let none = "tensor<fp16, [2, 1]> r = rsqrt(x = m);";
    let nowhere = norm(&[SQUARE, MEAN, none, RESULT]);
    assert_eq!(
        (nowhere.epsilon, nowhere.place),
        (Some(0.0), Place::Nowhere)
    );
    let negative = "tensor<fp16, [2, 1]> g = add(x = m, y = fp16(-1));";
    nearly(&[SQUARE, MEAN, negative, RSQRT, RESULT], "no epsilon");
}

#[test]
fn casts_between_are_seen_through() {
    let island = [
        "tensor<fp32, [2, 8]> w = cast(x = x, dtype = \"fp32\");",
        "tensor<fp32, [2, 8]> q = square(x = w);",
        "tensor<fp32, [2, 1]> m = reduce_mean(x = q, axes = [1], keep_dims = true);",
        "tensor<fp32, [2, 1]> g = add(x = m, y = fp32(0.125));",
        "tensor<fp32, [2, 1]> s = rsqrt(x = g, epsilon = fp32(0));",
        "tensor<fp16, [2, 1]> r = cast(x = s, dtype = \"fp16\");",
        RESULT,
    ];
    assert_eq!(norm(&island).square.unwrap().1, DType::Float32);
    let mean = [
        SQUARE,
        "tensor<fp32, [2, 8]> w = cast(x = q, dtype = \"fp32\");",
        island[2].replace("x = q", "x = w").leak(),
        island[3],
        island[4],
        island[5],
        RESULT,
    ];
    is_rms_norm(&mean);
}

#[test]
fn a_scale_without_the_reduced_axes_is_seen_if_it_meets_its_rows() {
    let mean = "tensor<fp16, [2]> m = reduce_mean(x = q, axes = [-1]);";
    let rest = "tensor<fp16, [2]> g = add(x = m, y = fp16(0.125)); tensor<fp16, [2]> n = rsqrt(x = g, epsilon = fp32(0));";
    for shape in [
        "tensor<fp16, [2, 1]> r = expand_dims(x = n, axes = [1]);",
        "tensor<fp16, [2, 1]> r = reshape(x = n, shape = [2, 1]);",
    ] {
        is_rms_norm(&[SQUARE, mean, rest, shape, RESULT]);
    }
    let inputs = "tensor<fp16, [2, 2]> x";
    let square = "tensor<fp16, [2, 2]> q = square(x = x);";
    let result = "tensor<fp16, [2, 2]> y = mul(x = x, y = n);";
    let columns = found_with(inputs, &[square, mean, rest, result]);
    assert!(matches!(columns, Found::Nearly(_, why) if why.contains("does not meet")));
}

#[test]
fn a_gain_is_seen_on_the_scale_and_behind_the_norm() {
    let gain = "tensor<fp16, [8]> w = const()[val = tensor<fp16, [8]>(random(1, 1))];";
    let scaled =
        "tensor<fp16, [2, 8]> a = mul(x = w, y = r); tensor<fp16, [2, 8]> y = mul(x = x, y = a);";
    let on_scale = norm(&[SQUARE, MEAN, GUARD, RSQRT, gain, scaled]);
    assert!(on_scale.gain.is_some());
    for product in [
        "tensor<fp16, [2, 8]> z = mul(x = y, y = w);",
        "tensor<fp16, [2, 8]> z = mul(x = w, y = y);",
        "tensor<fp32, [2, 8]> a = cast(x = y, dtype = \"fp32\"); tensor<fp32, [8]> b = cast(x = w, dtype = \"fp32\"); tensor<fp32, [2, 8]> z = mul(x = a, y = b);",
        "tensor<fp16, [8]> b = add(x = w, y = fp16(1)); tensor<fp16, [2, 8]> z = mul(x = y, y = b);",
    ] {
        let lines = [SQUARE, MEAN, GUARD, RSQRT, RESULT, gain, product].join("\n");
        let sample = sample(INPUTS, &lines, "z");
        let Found::Norm(norm) = at(&sample.block(), sample.node("y")) else {
            panic!("{product}");
        };
        let gain = gain_after(&sample.block(), &norm).unwrap();
        assert_eq!(gain.0, sample.node("z"), "{product}");
    }
}

#[test]
fn a_value_less_its_mean_makes_a_layer_norm() {
    let centred = [
        "tensor<fp16, [2, 1]> c = reduce_mean(x = x, axes = [-1], keep_dims = true);",
        "tensor<fp16, [2, 8]> d = sub(x = x, y = c);",
        "tensor<fp16, [2, 8]> q = square(x = d);",
        MEAN,
        GUARD,
        ROOT,
        "tensor<fp16, [2, 8]> y = real_div(x = d, y = s);",
    ];
    let sample = sample(INPUTS, &centred.join("\n"), "y");
    let Found::Norm(found) = at(&sample.block(), sample.node("y")) else {
        panic!("no norm");
    };
    assert_eq!((found.kind, found.form), (Kind::Layer, Form::Plain));
    assert_eq!(
        (found.x, found.centred),
        (sample.value("x"), sample.value("d"))
    );
    // The mean over another axis is not the mean of the rows.
    let mut other = centred;
    other[0] = "tensor<fp16, [1, 8]> c = reduce_mean(x = x, axes = [0], keep_dims = true);";
    assert_eq!(norm(&other).kind, Kind::Rms);
}

#[test]
fn what_is_scaled_by_its_largest_magnitude_is_told_from_what_is_plain() {
    let largest = [
        "tensor<fp16, [2, 8]> a = abs(x = x);",
        "tensor<fp16, [2, 1]> l = reduce_max(x = a, axes = [-1], keep_dims = true);",
        "tensor<fp16, [2, 8]> b = real_div(x = x, y = l);",
        "tensor<fp16, [2, 8]> q = square(x = b);",
        MEAN,
        GUARD,
        ROOT,
    ];
    for product in ["mul(x = s, y = l)", "mul(x = l, y = s)"] {
        let product = format!("tensor<fp16, [2, 1]> p = {product};");
        let result = "tensor<fp16, [2, 8]> y = real_div(x = x, y = p);";
        let lines = [&largest[..], &[&product, result]].concat();
        assert_eq!(norm(&lines).form, Form::MaxScaledWrongly);
    }
    let short = "tensor<fp16, [2, 8]> y = real_div(x = b, y = s);";
    let sample = sample(INPUTS, &[&largest[..], &[short]].concat().join("\n"), "y");
    let Found::Norm(found) = at(&sample.block(), sample.node("y")) else {
        panic!("no norm");
    };
    assert_eq!(found.form, Form::MaxScaledWrongly);
    assert_eq!(found.x, sample.value("x"));
    let mut floored = largest;
    floored[1] = "tensor<fp16, [2, 1]> k = reduce_max(x = a, axes = [-1], keep_dims = true); tensor<fp16, [2, 1]> l = maximum(x = k, y = fp16(0.001));";
    assert_eq!(
        norm(&[&floored[..], &[short]].concat()).form,
        Form::MaxScaled
    );
}

#[test]
fn the_operations_and_the_mirrored_one_are_seen() {
    let whole = norm(&["tensor<fp16, [2, 8]> y = layer_norm(x = x, axes = [-1]);"]);
    assert_eq!((whole.kind, whole.form), (Kind::Layer, Form::Whole));
    let lines = |beta: &str, end: &str, ty: &str| {
        format!(
            "tensor<fp16, [2, 8]> n = mul(x = x, y = fp16(-1));
             tensor<fp16, [2, 16]> c = concat(values = (x, n), axis = -1, interleave = false);
             tensor<fp16, [2, 16]> l = layer_norm(x = c, axes = [-1], epsilon = fp16(0.125){beta});
             tensor<fp16, {ty}> y = slice_by_index(x = l, begin = [0, 0], end = {end});"
        )
    };
    let mirrored = norm(&[&lines("", "[2, 8]", "[2, 8]")]);
    assert_eq!((mirrored.kind, mirrored.form), (Kind::Rms, Form::Mirrored));
    assert_eq!(mirrored.epsilon, Some(0.125));
    nearly(&[&lines("", "[2, 7]", "[2, 7]")], "not its first half");
}

#[test]
fn what_is_nearly_a_norm_says_why() {
    let sum = [
        SQUARE,
        SUM,
        "tensor<fp16, [2, 1]> m = mul(x = t, y = fp16(0.25));",
    ];
    nearly(
        &[sum[0], sum[1], sum[2], GUARD, RSQRT, RESULT],
        "not by 1/n",
    );
    let l2 = "tensor<fp16, [2, 1]> r = rsqrt(x = t, epsilon = fp32(0.5));";
    nearly(&[SQUARE, SUM, l2, RESULT], "l2 norm");
    let other = "tensor<fp16, [2, 8]> z = relu(x = x); tensor<fp16, [2, 8]> y = mul(x = z, y = r);";
    nearly(&[SQUARE, MEAN, GUARD, RSQRT, other], "not what was squared");
    let exponential =
        "tensor<fp16, [2, 1]> e = exp(x = m); tensor<fp16, [2, 1]> g = add(x = m, y = e);";
    nearly(
        &[SQUARE, MEAN, exponential, RSQRT, RESULT],
        "epsilon is no constant",
    );
    assert_eq!(
        found(&["tensor<fp16, [2, 8]> y = mul(x = x, y = x);"]),
        Found::Nothing
    );
}
