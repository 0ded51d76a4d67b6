//! The arguments of all commands.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};

/// A graph-pass compiler and linter for Core ML ML Programs.
#[derive(Debug, Parser)]
#[command(name = "milwright", version, about, max_term_width = 100)]
pub(super) struct Cli {
    /// When to use colours.
    #[arg(long, value_enum, default_value_t = Color::Auto, global = true)]
    pub(super) color: Color,
    /// Say nothing but results and errors.
    #[arg(short, long, global = true, conflicts_with = "verbose")]
    pub(super) quiet: bool,
    /// Say more.
    #[arg(short, long, global = true)]
    pub(super) verbose: bool,
    #[command(subcommand)]
    pub(super) command: Command,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Color {
    Auto,
    Always,
    Never,
}

#[derive(Debug, Subcommand)]
pub(super) enum Command {
    /// Run passes over a model and write the result.
    Optimize(Box<OptimizeArgs>),
    /// Say what is likely to fail, be wrong or be slow, and why.
    Lint(LintArgs),
    /// Show the program as text.
    Print(PrintArgs),
    /// Make a package of MIL text.
    Build(BuildArgs),
    /// Show all passes, or all rules.
    List(ListArgs),
    /// Show the page of a pass, or of a rule and its pass.
    Explain(ExplainArgs),
    /// Show, for each near match of a pass, what stopped it.
    Why(WhyArgs),
    /// Run a model in the interpreter.
    Run(RunArgs),
    /// Run two models on the same inputs and say whether they are equivalent.
    Verify(VerifyArgs),
    /// Say what fp16 makes of a model, and what to do about it.
    Preflight(PreflightArgs),
    /// Find the rewrite that breaks a model, or the operations that fp16 breaks.
    Bisect(BisectArgs),
    /// Show what differs between two models, operation by operation.
    Diff(DiffArgs),
    /// Start something in a source tree of milwright.
    New(NewArgs),
}

#[derive(Debug, Args)]
pub(super) struct OptimizeArgs {
    /// The model: an .mlpackage folder or a zip of one; with --dry-run or -o FILE.mil also a bare
    /// .mlmodel, a compiled .mlmodelc or a .mil text.
    pub(super) model: PathBuf,
    /// Where to write the result: a folder, a zip if it ends in .zip, text if it ends in .mil.
    #[arg(short, long, required_unless_present = "dry_run")]
    pub(super) output: Option<PathBuf>,
    #[command(flatten)]
    pub(super) passes: PipelineArgs,
    /// Stop after this many rewrites.
    #[arg(long, value_name = "N")]
    pub(super) max_rewrites: Option<usize>,
    /// Print the program around each pass.
    #[arg(long, value_enum, value_name = "WHEN")]
    pub(super) print: Option<PrintWhen>,
    /// Print what the passes did, or did not do and why.
    #[arg(long, value_enum, value_name = "WHICH")]
    pub(super) remarks: Option<Remarks>,
    /// Write a report as JSON.
    #[arg(long, value_name = "FILE.json")]
    pub(super) report: Option<PathBuf>,
    /// Print how long each pass took.
    #[arg(long)]
    pub(super) timings: bool,
    /// Run the model before and after in the interpreter and write nothing, with status 1, if they
    /// are not equivalent. By default they must agree bit by bit in fp16 if all passes that changed
    /// something are exact, else within a tolerance in fp32.
    #[arg(long, value_enum, value_name = "PRECISION", num_args = 0..=1, require_equals = true,
          default_missing_value = "auto")]
    pub(super) verify: Option<VerifyArg>,
    /// Inputs to verify on, and for passes that have to run the model, as arrays named `x` or `in_x`; by
    /// default they are made up.
    #[arg(long, value_name = "FILE.npz")]
    pub(super) inputs: Option<PathBuf>,
    /// Write nothing.
    #[arg(long)]
    pub(super) dry_run: bool,
    /// Replace an existing output.
    #[arg(long)]
    pub(super) force: bool,
    /// Write a model although its weight files are missing.
    #[arg(long)]
    pub(super) allow_missing_weights: bool,
    /// With -o FILE.mil: write each weight into a file of its own in this folder, to which the text
    /// refers as `@model_path/DIR/VALUE.bin`.
    #[arg(long, value_name = "DIR")]
    pub(super) weights_dir: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub(super) struct LintArgs {
    /// The models: .mlpackage folders, zips of one, bare .mlmodel files, compiled .mlmodelc folders, or
    /// .mil texts.
    #[arg(required = true, value_name = "MODEL")]
    pub(super) models: Vec<PathBuf>,
    /// Only these rules: ids of rules and passes, families, `orion`, levels of evidence, `all`.
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    pub(super) select: Option<Vec<String>>,
    /// Leave these rules out, in the same words.
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    pub(super) ignore: Vec<String>,
    /// Who runs the program. By default core-ml.
    #[arg(long, value_enum)]
    pub(super) target: Option<TargetArg>,
    /// Also show the rows of a catalogue, each with the verdict for the model.
    #[arg(long, value_enum)]
    pub(super) catalog: Option<CatalogArg>,
    /// How to show what is found.
    #[arg(long, value_enum, default_value_t = LintFormat::Full)]
    pub(super) format: LintFormat,
    /// End with status 1 from this severity on.
    #[arg(long, value_enum, default_value_t = FailOn::Error)]
    pub(super) fail_on: FailOn,
    /// Repair what passes can repair, and write the result.
    #[arg(long, requires = "output")]
    pub(super) fix: bool,
    /// Where to write the result of --fix.
    #[arg(short, long, requires = "fix", value_name = "OUT")]
    pub(super) output: Option<PathBuf>,
    /// Let --fix change inputs, outputs or states.
    #[arg(long, requires = "fix")]
    pub(super) interface_changes: bool,
    /// Replace an existing output.
    #[arg(long, requires = "fix")]
    pub(super) force: bool,
    /// Write a model although its weight files are missing.
    #[arg(long, requires = "fix")]
    pub(super) allow_missing_weights: bool,
    /// The configuration, in place of the nearest milwright.toml above the model.
    #[arg(long, value_name = "FILE")]
    pub(super) config: Option<PathBuf>,
    /// Known findings, which do not count.
    #[arg(long, value_name = "FILE")]
    pub(super) baseline: Option<PathBuf>,
    /// Write what is found as the known findings, and end with status 0.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["fix", "baseline"])]
    pub(super) write_baseline: Option<PathBuf>,
    /// A preflight report of the model: rules that depend on its values then know them.
    #[arg(long, value_name = "REPORT.json")]
    pub(super) report: Option<PathBuf>,
    /// Show where the operations of each function are expected to run, an estimate. Without `--select`,
    /// the format `full` shows it anyway.
    #[arg(long)]
    pub(super) placement: bool,
    /// A compute plan that a Mac made, as JSON, which goes before the estimate; docs/placement.md has
    /// its form and a script that writes it.
    #[arg(long, value_name = "FILE")]
    pub(super) plan: Option<PathBuf>,
    /// End with status 1 if a smaller share of a function's operations is expected on the Neural Engine,
    /// from 0 to 1.
    #[arg(long, value_name = "X", value_parser = fraction)]
    pub(super) assert_ane_fraction: Option<f64>,
}

/// Who runs the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum TargetArg {
    /// The Core ML framework.
    CoreMl,
    /// Programs that hand MIL text to the private ANE interface.
    AneDirect,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum CatalogArg {
    /// The 20 constraints of Orion's paper.
    Orion,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum LintFormat {
    /// With the operation, why, and what to do.
    Full,
    /// One line for each finding.
    Concise,
    /// JSON for programs.
    Json,
    /// SARIF 2.1.0, for code scanning.
    Sarif,
    /// Commands of GitHub Actions.
    Github,
}

/// From which severity on findings make the status 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum FailOn {
    Error,
    Warning,
    Info,
    Never,
}

/// In which precision a result is verified.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum VerifyArg {
    /// As the exactness of the passes asks for.
    Auto,
    /// Everything in fp32.
    Fp32,
    /// Values typed fp16 are rounded.
    Fp16,
    /// fp16 with the behaviours reported of the Apple Neural Engine.
    Ane,
}

impl VerifyArg {
    /// The precision, if one is asked for.
    pub(super) fn precision(self) -> Option<PrecisionArg> {
        match self {
            Self::Auto => None,
            Self::Fp32 => Some(PrecisionArg::Fp32),
            Self::Fp16 => Some(PrecisionArg::Fp16),
            Self::Ane => Some(PrecisionArg::Ane),
        }
    }
}

/// Which passes run, and how.
#[derive(Debug, Args)]
pub(super) struct PipelineArgs {
    /// A named pipeline (none, default, llm, ane-direct) or passes: `a,b{option=1},(c,d)*`.
    #[arg(long, value_name = "NAME|TEXT")]
    pub(super) pipeline: Option<String>,
    /// Passes to run: alone they are the whole pipeline, else they come after it.
    #[arg(long, value_name = "LIST")]
    pub(super) passes: Option<String>,
    /// Passes to leave out.
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    pub(super) skip: Vec<String>,
    /// Set an option of a pass.
    #[arg(long, value_name = "PASS.OPTION=VALUE")]
    pub(super) set: Vec<String>,
    /// Allow passes that change inputs, outputs or states.
    #[arg(long)]
    pub(super) interface_changes: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum PrintWhen {
    /// The program before each pass.
    Before,
    /// The program after each pass.
    After,
    /// What each pass changed.
    Diff,
    /// The program after each pass that changed something.
    Changed,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Remarks {
    /// Both kinds.
    All,
    /// Rewrites that were made.
    Applied,
    /// Patterns that nearly matched.
    Missed,
}

#[derive(Debug, Args)]
pub(super) struct PrintArgs {
    /// The model: an .mlpackage folder, a zip of one, a bare .mlmodel, a compiled .mlmodelc, or a
    /// .mil text.
    pub(super) model: PathBuf,
    /// Only this function.
    #[arg(long, value_name = "F")]
    pub(super) function: Option<String>,
    /// The dialect of MIL text; by default the one that the model's opset goes with.
    #[arg(long, value_enum)]
    pub(super) dialect: Option<DialectArg>,
    /// What to print.
    #[arg(long, value_enum, default_value_t = Format::Mil)]
    pub(super) format: Format,
    /// Also show the types of operands.
    #[arg(long)]
    pub(super) types: bool,
    /// Write each weight into a file of its own in this folder, to which the text refers as
    /// `@model_path/DIR/VALUE.bin`.
    #[arg(long, value_name = "DIR")]
    pub(super) weights_dir: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub(super) struct BuildArgs {
    /// The text: a .mil file, a compiled .mlmodelc, or - for standard input.
    pub(super) text: PathBuf,
    /// Where to write the package: a folder, or a zip if it ends in .zip.
    #[arg(short, long, value_name = "OUT.mlpackage")]
    pub(super) output: PathBuf,
    /// The weight file that the text refers to; by default what lies in `weights` beside the text.
    #[arg(long, value_name = "FILE")]
    pub(super) weights: Option<PathBuf>,
    /// Take the description, metadata and everything else but the program from this package, and
    /// weight files that are not beside the text.
    #[arg(long, value_name = "FROM.mlpackage")]
    pub(super) description: Option<PathBuf>,
    /// Replace an existing output.
    #[arg(long)]
    pub(super) force: bool,
    /// Write a package although its weight files are missing.
    #[arg(long)]
    pub(super) allow_missing_weights: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum DialectArg {
    /// `program(1.0)`: scalars are tensors of rank 0.
    #[value(name = "1.0")]
    V10,
    /// `program(1.3)`: scalars have types of their own.
    #[value(name = "1.3")]
    V13,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Format {
    /// MIL text.
    Mil,
    /// A summary for people.
    Summary,
    /// JSON for programs.
    Json,
    /// A Graphviz graph.
    Dot,
}

#[derive(Debug, Args)]
pub(super) struct ListArgs {
    /// As JSON.
    #[arg(long)]
    pub(super) json: bool,
    /// The rules of the linter instead of the passes.
    #[arg(long)]
    pub(super) rules: bool,
    /// Only passes of this family.
    #[arg(long, value_name = "F")]
    pub(super) family: Option<String>,
}

#[derive(Debug, Args)]
pub(super) struct ExplainArgs {
    /// Id of the pass or the rule.
    pub(super) id: String,
}

#[derive(Debug, Args)]
pub(super) struct WhyArgs {
    /// The model.
    pub(super) model: PathBuf,
    /// Id of the pass, with options if any: `pass{option=1}`.
    pub(super) pass: String,
    /// Only this operation, by its own name or that of a result.
    #[arg(long, value_name = "NAME")]
    pub(super) op: Option<String>,
}

#[derive(Debug, Args)]
pub(super) struct DiffArgs {
    /// The model before.
    pub(super) before: PathBuf,
    /// The model after.
    pub(super) after: PathBuf,
    /// Compare all elements of all weights, and show how far they are apart.
    #[arg(long)]
    pub(super) weights: bool,
    /// What to print.
    #[arg(long, value_enum, default_value_t = DiffFormat::Text)]
    pub(super) format: DiffFormat,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum DiffFormat {
    /// Lines for people.
    Text,
    /// JSON for programs.
    Json,
}

#[derive(Debug, Args)]
pub(super) struct NewArgs {
    #[command(subcommand)]
    pub(super) command: NewCommand,
}

#[derive(Debug, Subcommand)]
pub(super) enum NewCommand {
    /// Start a pass: a small one that works, with its page and two cases.
    Pass {
        /// Where it goes: a family, and the id in small letters with `-` between words.
        #[arg(value_name = "FAMILY/NAME")]
        name: String,
    },
}

/// How the interpreter computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum PrecisionArg {
    /// Everything in fp32, whatever the declared types.
    Fp32,
    /// Values typed fp16 are rounded after each operation.
    Fp16,
    /// fp16 with the behaviours reported of the Apple Neural Engine.
    Ane,
}

#[derive(Debug, Args)]
pub(super) struct RunArgs {
    /// The model: an .mlpackage folder, a zip of one, a bare .mlmodel, a compiled .mlmodelc, or a
    /// .mil text.
    pub(super) model: PathBuf,
    /// Only this function; by default the one that the model's description names.
    #[arg(long, value_name = "F")]
    pub(super) function: Option<String>,
    /// The inputs, as arrays named `x` or `in_x`; by default they are made up.
    #[arg(long, value_name = "FILE.npz")]
    pub(super) inputs: Option<PathBuf>,
    /// Which inputs are made up, and what random operations give.
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(super) seed: u64,
    /// How to compute.
    #[arg(long, value_enum, default_value_t = PrecisionArg::Fp32)]
    pub(super) precision: PrecisionArg,
    /// How often to call the model; its states persist. By default once, or as often as the file of
    /// inputs has calls.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub(super) calls: Option<u32>,
    /// Compare the outputs with the arrays `out_<i>_<name>` of the file of inputs; the exit status
    /// is 1 if one is off.
    #[arg(long, requires = "inputs")]
    pub(super) check: bool,
    /// With --check: |a − e| ≤ atol + rtol · |e| must hold. By default a is within 1e-4 times the
    /// greatest magnitude of the array, 1e-2 times if the model has fp16 values.
    #[arg(long, value_name = "X", requires = "check")]
    pub(super) rtol: Option<f64>,
    /// See --rtol; what is not given of the two is 0.
    #[arg(long, value_name = "X", requires = "check")]
    pub(super) atol: Option<f64>,
    /// Where to write outputs, states and made-up inputs.
    #[arg(short, long, value_name = "OUT.npz", required_unless_present = "check")]
    pub(super) output: Option<PathBuf>,
}

/// Results for people or for programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum ResultFormat {
    /// A table for people.
    Full,
    /// JSON for programs.
    Json,
}

#[derive(Debug, Args)]
pub(super) struct VerifyArgs {
    /// The first model, which counts as right.
    pub(super) first: PathBuf,
    /// The second model.
    pub(super) second: PathBuf,
    /// Only this function; by default all, and with --inputs the one that the description names.
    #[arg(long, value_name = "F")]
    pub(super) function: Option<String>,
    /// The inputs, as arrays named `x` or `in_x`; by default they are made up.
    #[arg(long, value_name = "FILE.npz")]
    pub(super) inputs: Option<PathBuf>,
    /// Which inputs are made up, and what random operations give.
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(super) seed: u64,
    /// How many samples of inputs are made up. Models with states are called three times in each.
    #[arg(long, value_name = "N", default_value_t = 3, conflicts_with = "inputs",
          value_parser = clap::value_parser!(u32).range(1..))]
    pub(super) samples: u32,
    /// How to compute.
    #[arg(long, value_enum, default_value_t = PrecisionArg::Fp32)]
    pub(super) precision: PrecisionArg,
    /// |a − b| ≤ atol + rtol · |a| must hold. By default b is within 1e-5 times the greatest
    /// magnitude of a's array, in fp16 and ane within 1e-2 times.
    #[arg(long, value_name = "X")]
    pub(super) rtol: Option<f64>,
    /// See --rtol; what is not given of the two is 0.
    #[arg(long, value_name = "X")]
    pub(super) atol: Option<f64>,
    /// What to print.
    #[arg(long, value_enum, default_value_t = ResultFormat::Full)]
    pub(super) format: ResultFormat,
}

#[derive(Debug, Args)]
pub(super) struct PreflightArgs {
    /// The model.
    pub(super) model: PathBuf,
    /// Only this function; by default the one that the description names.
    #[arg(long, value_name = "F")]
    pub(super) function: Option<String>,
    /// The inputs, as arrays named `x` or `in_x`; several files merge to the worst case. By default two
    /// samples are made up.
    #[arg(long, value_name = "FILE.npz", num_args = 1..)]
    pub(super) inputs: Vec<PathBuf>,
    /// Which inputs are made up, and what random operations give.
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(super) seed: u64,
    /// Also try what clamps of the residual stream from 65 000 down to 20 000 would do.
    #[arg(long)]
    pub(super) sweep: bool,
    /// What to print.
    #[arg(long, value_enum, default_value_t = ResultFormat::Full)]
    pub(super) format: ResultFormat,
    /// Also write the report as JSON, for `lint --report` and for passes that need it.
    #[arg(short, long, value_name = "REPORT.json")]
    pub(super) output: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub(super) struct BisectArgs {
    /// The model.
    pub(super) model: PathBuf,
    #[command(flatten)]
    pub(super) passes: PipelineArgs,
    /// Only this function; by default the one that the description names.
    #[arg(long, value_name = "F")]
    pub(super) function: Option<String>,
    /// The inputs, as arrays named `x` or `in_x`; by default they are made up.
    #[arg(long, value_name = "FILE.npz")]
    pub(super) inputs: Option<PathBuf>,
    /// Which inputs are made up, and what random operations give.
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(super) seed: u64,
    /// How to compute. With passes it is as in `optimize --verify`; without, fp16 or ane is compared
    /// with fp32, fp16 by default.
    #[arg(long, value_enum)]
    pub(super) precision: Option<PrecisionArg>,
    /// Without passes: the error, relative to the greatest magnitude of a result, from which on it
    /// has departed.
    #[arg(long, value_name = "X", default_value_t = 1e-2)]
    pub(super) threshold: f64,
    /// Without passes: how many operations each list shows.
    #[arg(long, value_name = "N", default_value_t = 5)]
    pub(super) top: usize,
    /// What to print.
    #[arg(long, value_enum, default_value_t = ResultFormat::Full)]
    pub(super) format: ResultFormat,
}

/// A number from 0 to 1.
fn fraction(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(number) if (0.0..=1.0).contains(&number) => Ok(number),
        _ => Err("not a number from 0 to 1".to_owned()),
    }
}
