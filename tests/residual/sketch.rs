//! Small transformers as text, of several families.

use milwright::ir::Program;
use milwright::text::parse;

/// A transformer as text.
pub(crate) struct Sketch {
    pub(crate) dtype: &'static str,
    /// The norm: `rms`, `anemll` or `layer`.
    pub(crate) norm: &'static str,
    pub(crate) epsilon: f64,
    /// How large the rows of the table are.
    pub(crate) size: f64,
    /// Whether the head is the table.
    pub(crate) tied: bool,
    /// Whether rows are multiplied by √h, and branches end in a norm.
    pub(crate) gemma: bool,
    /// Whether keys go through a state.
    pub(crate) state: bool,
    /// How weights are stored.
    pub(crate) weight: fn(&str, usize) -> String,
}

pub(crate) const WIDTH: usize = 16;
pub(crate) const ROWS: usize = 6;
pub(crate) const LAYERS: usize = 3;

pub(crate) fn plain(dtype: &str, seed: usize) -> String {
    format!("const()[val = tensor<{dtype}, [16, 16]>(random({seed}, 0.4))]")
}

pub(crate) fn palette(dtype: &str, seed: usize) -> String {
    let lut = format!("lut = tensor<{dtype}, [1, 1, 16, 1]>(random({seed}, 0.4))");
    let codes: Vec<String> = (0..256)
        .map(|at| ((at * 7 + at / 16 + seed) % 16).to_string())
        .collect();
    let rows: Vec<String> = codes
        .chunks(16)
        .map(|row| format!("[{}]", row.join(", ")))
        .collect();
    format!(
        "constexpr_lut_to_dense(indices = tensor<uint4, [16, 16]>([{}]), {lut})",
        rows.join(", ")
    )
}

pub(crate) fn blockwise(dtype: &str, seed: usize) -> String {
    format!(
        "constexpr_blockwise_shift_scale(data = tensor<int8, [16, 16]>(random({seed}, 120)), \
         scale = tensor<{dtype}, [16, 1]>(random({}, 0.004)))",
        seed + 500
    )
}

impl Sketch {
    pub(crate) const LLAMA: Self = Self {
        dtype: "fp32",
        norm: "rms",
        epsilon: 1e-5,
        size: 1.0,
        tied: false,
        gemma: false,
        state: false,
        weight: plain,
    };

    pub(crate) fn value(&self, name: &str, shape: &str, expression: &str) -> String {
        format!("tensor<{}, {shape}> {name} = {expression};\n", self.dtype)
    }

    pub(crate) fn rows(&self, name: &str, expression: &str) -> String {
        self.value(name, "[1, 6, 16]", expression)
    }

    pub(crate) fn weight(&self, name: &str, seed: usize) -> String {
        self.value(name, "[16, 16]", &(self.weight)(self.dtype, seed))
    }

    pub(crate) fn norm(&self, x: &str, n: &str, seed: usize) -> String {
        let (dtype, epsilon) = (self.dtype, self.epsilon);
        let axes = "axes = tensor<int32, [1]>([-1])";
        let mut text = match self.norm {
            "anemll" => {
                self.rows(&format!("z{n}"), &format!("mul(x = {x}, y = {dtype}(-1))"))
                    + &self.value(
                        &format!("d{n}"),
                        "[1, 6, 32]",
                        &format!("concat(values = ({x}, z{n}), axis = int32(-1), interleave = bool(false))"),
                    )
                    + &self.value(
                        &format!("l{n}"),
                        "[1, 6, 32]",
                        &format!("layer_norm(x = d{n}, {axes}, epsilon = {dtype}({epsilon}))"),
                    )
                    + &self.rows(
                        &format!("n{n}"),
                        &format!(
                            "slice_by_index(x = l{n}, begin = tensor<int32, [3]>([0, 0, 0]), \
                             end = tensor<int32, [3]>([1, 6, 16]), end_mask = tensor<bool, [3]>([true, true, false]))"
                        ),
                    )
            }
            "layer" => self.rows(
                &format!("n{n}"),
                &format!("layer_norm(x = {x}, {axes}, epsilon = {dtype}({epsilon}))"),
            ),
            _ => {
                let mean = |name: String, expression: String| self.value(&name, "[1, 6, 1]", &expression);
                self.rows(&format!("q{n}"), &format!("pow(x = {x}, y = {dtype}(2))"))
                    + &mean(format!("m{n}"), format!("reduce_mean(x = q{n}, {axes}, keep_dims = bool(true))"))
                    + &mean(format!("e{n}"), format!("add(x = m{n}, y = {dtype}({epsilon}))"))
                    + &mean(format!("r{n}"), format!("rsqrt(x = e{n}, epsilon = fp32(1e-12))"))
                    + &self.rows(&format!("n{n}"), &format!("mul(x = {x}, y = r{n})"))
            }
        };
        text += &self.value(
            &format!("g{n}"),
            "[16]",
            &format!("const()[val = tensor<{dtype}, [16]>(random({seed}, 1))]"),
        );
        text + &self.rows(&format!("h{n}"), &format!("mul(x = g{n}, y = n{n})"))
    }

    pub(crate) fn branch(&self, n: usize, mlp: bool) -> String {
        let flat = "transpose_x = bool(false), transpose_y";
        let mut text = self.weight(&format!("w{n}"), 100 + n);
        if mlp {
            text += &self.weight(&format!("up{n}"), 200 + n);
            text += &self.rows(
                &format!("u{n}"),
                &format!("linear(x = h{n}, weight = up{n})"),
            );
            text += &self.rows(&format!("a{n}"), &format!("silu(x = u{n})"));
        } else {
            text += &self.weight(&format!("k{n}"), 300 + n);
            text += &self.rows(
                &format!("kk{n}"),
                &format!("linear(x = h{n}, weight = k{n})"),
            );
            let mut keys = format!("kk{n}");
            if self.state && n == 0 {
                text += format!("write_state(data = {keys}, input = cache);\n").as_str();
                text += &self.rows("held", "read_state(input = cache)");
                "held".clone_into(&mut keys);
            }
            text += &self.value(
                &format!("c{n}"),
                "[1, 6, 6]",
                &format!("matmul(x = h{n}, y = {keys}, {flat} = bool(true))"),
            );
            text += &self.value(
                &format!("p{n}"),
                "[1, 6, 6]",
                &format!("softmax(x = c{n}, axis = int32(-1))"),
            );
            text += &self.rows(
                &format!("a{n}"),
                &format!("matmul(x = p{n}, y = h{n}, {flat} = bool(false))"),
            );
        }
        text + &self.rows(
            &format!("b{n}"),
            &format!("linear(x = a{n}, weight = w{n})"),
        )
    }

    /// The layers from one to another, on `s{2·from}`.
    pub(crate) fn layers(&self, from: usize, to: usize) -> String {
        let mut text = String::new();
        for n in 2 * from..2 * to {
            text += &self.norm(&format!("s{n}"), &n.to_string(), 10 + n);
            text += &self.branch(n, n % 2 == 1);
            let mut branch = format!("b{n}");
            if self.gemma {
                text += &self.norm(&branch, &format!("_{n}"), 50 + n);
                branch = format!("h_{n}");
            }
            text += &self.rows(
                &format!("s{}", n + 1),
                &format!("add(x = s{n}, y = {branch})"),
            );
        }
        text
    }

    pub(crate) fn source(&self) -> String {
        let (dtype, size) = (self.dtype, self.size);
        let table = format!("const()[val = tensor<{dtype}, [32, 16]>(random(1, {size}))]");
        let gather = "gather(x = table, indices = ids, axis = int32(0))";
        let mut text = self.value("table", "[32, 16]", &table);
        if self.gemma {
            text += &self.rows("rows", gather);
            text += &self.rows("s0", &format!("mul(x = rows, y = {dtype}(4))"));
        } else {
            text += &self.rows("s0", gather);
        }
        text
    }

    pub(crate) fn head(&self, n: usize) -> String {
        let mut text = self.norm(&format!("s{n}"), "9", 90);
        let weight = if self.tied {
            "table"
        } else {
            let head = format!(
                "const()[val = tensor<{}, [32, 16]>(random(91, 0.5))]",
                self.dtype
            );
            text += &self.value("head", "[32, 16]", &head);
            "head"
        };
        text + &self.value(
            "logits",
            "[1, 6, 32]",
            &format!("linear(x = h9, weight = {weight})"),
        )
    }

    pub(crate) fn program(&self) -> Program {
        let mut inputs = "tensor<int32, [1, 6]> ids".to_owned();
        if self.state {
            inputs += format!(", state<tensor<{}, [1, 6, 16]>> cache", self.dtype).as_str();
        }
        let text = self.source() + &self.layers(0, LAYERS) + &self.head(2 * LAYERS);
        program(&inputs, &text, "logits")
    }
}

pub(crate) fn program(inputs: &str, operations: &str, output: &str) -> Program {
    let source = format!(
        "program(1.3)\n{{\n func main<ios18>({inputs}) {{\n{operations} }} -> ({output});\n}}\n"
    );
    let parsed = parse(&source, "sketch").unwrap_or_else(|errors| panic!("{errors:?}\n{source}"));
    parsed.program
}
