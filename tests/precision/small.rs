//! Small programs that go wrong in fp16, each in a way of its own.

use std::fmt::Write as _;

use super::{Arrays, half, noise, one};

/// A program with one function, and inputs on which it goes wrong.
pub(crate) struct Small {
    pub(crate) name: &'static str,
    pub(crate) source: String,
    pub(crate) inputs: Arrays,
    pub(crate) tolerances: &'static [f64],
}

impl Small {
    pub(crate) fn new(
        name: &'static str,
        parameters: &str,
        lines: &[&str],
        output: &str,
        inputs: Arrays,
    ) -> Self {
        let mut body = String::new();
        for line in lines {
            // The shape is that of the first word's end, `name[2, 8] = …`.
            let (left, right) = line.split_once('=').expect("name[shape] = op(…)");
            let (name, shape) = left.trim().split_once('[').expect("a shape");
            let right = right.trim();
            writeln!(body, "        tensor<fp16, [{shape}> {name} = {right};").expect("a text");
        }
        let source = format!(
            "program(1.3)\n{{\n    func main<ios18>({parameters}) {{\n{body}    }} -> ({output});\n}}\n"
        );
        Self {
            name,
            source,
            inputs,
            tolerances: &[1e-3, 3e-3],
        }
    }
}

impl Small {
    pub(crate) fn within(self, tolerances: &'static [f64]) -> Self {
        Self { tolerances, ..self }
    }
}

pub(crate) const LAST: &str = "axes = tensor<int32, [1]>([-1]), keep_dims = bool(true)";

#[expect(clippy::too_many_lines, reason = "a list")]
pub(crate) fn small_programs() -> Vec<Small> {
    let x = |scale: f32, middle: f32| {
        let tensor = half(&[2, 8], |index| middle + scale * noise(index));
        one("x", tensor)
    };
    let row = "tensor<fp16, [2, 8]> x";
    let mean = |of: &str| format!("reduce_mean({LAST}, x = {of})");
    let sum = |of: &str| format!("reduce_sum({LAST}, x = {of})");
    vec![
        Small::new(
            "a norm whose squares overflow",
            row,
            &[
                "half[2, 8] = mul(x = x, y = fp16(0.5))",
                "squares[2, 8] = pow(x = half, y = fp16(2))",
                &format!("mean[2, 1] = {}", mean("squares")),
                "guarded[2, 1] = add(x = mean, y = fp16(0.00001))",
                "scale[2, 1] = rsqrt(epsilon = fp32(0), x = guarded)",
                "norm[2, 8] = mul(x = half, y = scale)",
                "gain[2, 8] = mul(x = norm, y = fp16(1.5))",
                "y[2, 8] = tanh(x = gain)",
            ],
            "y",
            x(3000.0, 0.0),
        ),
        Small::new(
            "softplus by its formula",
            row,
            &[
                "e[2, 8] = exp(x = x)",
                "more[2, 8] = add(x = e, y = fp16(1))",
                "l[2, 8] = log(epsilon = fp32(0), x = more)",
                "m[2, 8] = mul(x = l, y = fp16(0.5))",
                "y[2, 8] = abs(x = m)",
            ],
            "y",
            x(14.0, 0.0),
        ),
        Small::new(
            "the logarithm of a sum of exponentials",
            row,
            &[
                "scaled[2, 8] = mul(x = x, y = fp16(2))",
                "e[2, 8] = exp(x = scaled)",
                &format!("s[2, 1] = {}", sum("e")),
                "l[2, 1] = log(epsilon = fp32(0), x = s)",
                "y[2, 8] = sub(x = scaled, y = l)",
            ],
            "y",
            x(9.0, 0.0),
        ),
        Small::new(
            "the variance as a difference of means",
            row,
            &[
                &format!("m[2, 1] = {}", mean("x")),
                "squares[2, 8] = mul(x = x, y = x)",
                &format!("ms[2, 1] = {}", mean("squares")),
                "mm[2, 1] = mul(x = m, y = m)",
                "var[2, 1] = sub(x = ms, y = mm)",
                "scale[2, 1] = rsqrt(epsilon = fp32(0.00001), x = var)",
                "c[2, 8] = sub(x = x, y = m)",
                "y[2, 8] = mul(x = c, y = scale)",
            ],
            "y",
            x(3.0, 40.0),
        ),
        Small::new(
            "a phase as a running sum",
            "tensor<fp16, [1, 512]> x",
            &[
                "step[1, 512] = mul(x = x, y = fp16(0.05))",
                "sum[1, 512] = cumsum(axis = int32(1), exclusive = bool(false), reverse = bool(false), x = step)",
                "whole[1, 512] = floor(x = sum)",
                "part[1, 512] = sub(x = sum, y = whole)",
                "angle[1, 512] = mul(x = part, y = fp16(6.28125))",
                "s[1, 512] = sin(x = angle)",
                "y[1, 512] = mul(x = s, y = fp16(0.5))",
            ],
            "y",
            one("x", half(&[1, 512], |index| 2.0 + noise(index))),
        ),
        Small::new(
            "exponentials and logarithms in turn",
            row,
            &[
                "a[2, 8] = exp(x = x)",
                "b[2, 8] = mul(x = a, y = fp16(100))",
                "c[2, 8] = log(epsilon = fp32(0), x = b)",
                "d[2, 8] = mul(x = c, y = fp16(0.25))",
                "e[2, 8] = exp(x = d)",
                "f[2, 8] = add(x = e, y = fp16(1))",
                "y[2, 8] = log(epsilon = fp32(0), x = f)",
            ],
            "y",
            x(9.0, 0.0),
        ),
        Small::new(
            "two hazards beside each other",
            row,
            &[
                "squares[2, 8] = square(x = x)",
                "root[2, 8] = sqrt(x = squares)",
                "left[2, 8] = mul(x = root, y = fp16(0.001))",
                "small[2, 8] = mul(x = x, y = fp16(0.01))",
                "e[2, 8] = exp(x = small)",
                "more[2, 8] = mul(x = e, y = fp16(1000))",
                "l[2, 8] = log(epsilon = fp32(0), x = more)",
                "right[2, 8] = mul(x = l, y = fp16(0.1))",
                "y[2, 8] = add(x = left, y = right)",
            ],
            "y",
            x(700.0, 0.0),
        ),
        Small::new(
            "a hazard that a shorter way goes around",
            row,
            &[
                "big[2, 8] = mul(x = x, y = fp16(2000))",
                "shifted[2, 8] = add(x = big, y = fp16(1000))",
                "back[2, 8] = mul(x = shifted, y = fp16(0.0005))",
                "other[2, 8] = mul(x = back, y = back)",
                "third[2, 8] = add(x = other, y = back)",
                "y[2, 8] = sub(x = third, y = fp16(1))",
            ],
            "y",
            x(50.0, 0.0),
        ),
        Small::new(
            "a small difference of large numbers",
            row,
            &[
                "far[2, 8] = add(x = x, y = fp16(2000))",
                "flat[16] = reshape(shape = tensor<int32, [1]>([16]), x = far)",
                "near[16] = sub(x = flat, y = fp16(2000))",
                "two[2, 8] = reshape(shape = tensor<int32, [2]>([2, 8]), x = near)",
                "y[2, 8] = mul(x = two, y = fp16(3))",
            ],
            "y",
            x(1.0, 0.0),
        ),
        Small::new(
            "roundings of which no one is to blame",
            row,
            &[
                "a[2, 8] = mul(x = x, y = fp16(1.1))",
                "b[2, 8] = mul(x = a, y = fp16(0.9))",
                "c[2, 8] = mul(x = b, y = fp16(1.3))",
                "d[2, 8] = mul(x = c, y = fp16(0.7))",
                "e[2, 8] = mul(x = d, y = fp16(1.7))",
                "f[2, 8] = mul(x = e, y = fp16(0.6))",
                "g[2, 8] = mul(x = f, y = fp16(1.9))",
                "h[2, 8] = sub(x = g, y = x)",
                "y[2, 8] = mul(x = h, y = fp16(3))",
            ],
            "y",
            x(1.0, 2.0),
        )
        .within(&[8e-4, 1e-3, 1.2e-3, 1.4e-3]),
        Small::new(
            "two outputs, of which one is right",
            row,
            &[
                "a[2, 8] = relu(x = x)",
                "squares[2, 8] = square(x = a)",
                &format!("s[2, 1] = {}", sum("squares")),
                "root[2, 1] = sqrt(x = s)",
                "y[2, 1] = mul(x = root, y = fp16(0.5))",
                "z[2, 8] = mul(x = a, y = fp16(0.5))",
            ],
            "y, z",
            x(300.0, 0.0),
        ),
    ]
}
