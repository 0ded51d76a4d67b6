//! The report for people: a chart of the stream, what each way of computing comes to, and the issues.

use std::io::{self, Write};

use super::issues::number;
use super::report::{FunctionReport, LowRun, Report, Status, StreamReport, WrongValue};
use crate::analysis::residual::TARGET;
use crate::eval::ranges::HALF_MAX;

/// Columns of a bar of the greatest peak.
const WIDTH: usize = 48;

/// The least part of a column that is drawn.
const EIGHTHS: [char; 8] = [' ', '▏', '▎', '▍', '▌', '▋', '▊', '▉'];

const RED: &str = "\u{1b}[31m";
const YELLOW: &str = "\u{1b}[33m";
const BOLD: &str = "\u{1b}[1m";
const RESET: &str = "\u{1b}[0m";

/// Values of which more than so much of what is not zero is below the least normal fp16 number are
/// told as a number.
const MOSTLY_SMALL: f64 = 0.5;

/// Writes a report.
pub fn write(out: &mut dyn Write, report: &Report) -> io::Result<()> {
    let held = if report.assumed_fp16 {
        "; the program is fp32 and is held to fp16 as if it were converted"
    } else {
        ""
    };
    let inputs: Vec<String> = report
        .inputs
        .iter()
        .map(|set| match set.calls {
            1 => set.source.clone(),
            calls => format!("{} ({calls} calls)", set.source),
        })
        .collect();
    writeln!(out, "{BOLD}{}{RESET}{held}", report.model)?;
    writeln!(out, "inputs: {}\n", inputs.join(", "))?;
    for function in &report.functions {
        match &function.stream {
            Some(stream) => write_stream(out, function, stream)?,
            None => writeln!(
                out,
                "{}: no residual stream; looked for a value that a norm reads, with two or more `add`s \
                 one after the other from it\n",
                place(function)
            )?,
        }
    }
    write_runs(out, report)?;
    write_small(out, report)?;
    write_sweep(out, report)?;
    write_issues(out, report)
}

fn place(function: &FunctionReport) -> String {
    if function.stage.is_empty() {
        format!("function `{}`", function.function)
    } else {
        format!("{}, function `{}`", function.stage, function.function)
    }
}

fn write_stream(
    out: &mut dyn Write,
    function: &FunctionReport,
    stream: &StreamReport,
) -> io::Result<()> {
    let layers = match stream.layers.len() {
        1 => "1 layer".to_owned(),
        count => format!("{count} layers"),
    };
    writeln!(
        out,
        "{}: the residual stream from `{}` ({}) through {layers}",
        place(function),
        stream.start,
        number(stream.start_peak)
    )?;
    let most = stream.peak.max(HALF_MAX);
    let column = |value: f64| (value / most * WIDTH as f64).round() as usize;
    let marks = [(column(TARGET), '┊'), (column(HALF_MAX), '│')];
    let digits = stream.layers.len().saturating_sub(1).to_string().len();
    for layer in &stream.layers {
        let color = match layer.status {
            Status::Overflow => RED,
            Status::Close | Status::High => YELLOW,
            Status::Fine => "",
        };
        let reset = if color.is_empty() { "" } else { RESET };
        let status = match layer.status {
            Status::Overflow => "  overflows",
            Status::Close => "  close",
            Status::High | Status::Fine => "",
        };
        writeln!(
            out,
            "  layer {:>digits$} {color}{}{reset} {:>9}{status}",
            layer.layer,
            bar(layer.peak_within, most, &marks),
            number(layer.peak_within)
        )?;
    }
    writeln!(
        out,
        "  {:width$}┊ {}, │ {} (fp16)",
        "",
        number(TARGET),
        number(HALF_MAX),
        width = 7 + digits
    )?;
    if let Some(layer) = stream.first_overflow_layer {
        let class = if stream.is_accumulation {
            format!(
                "residual accumulation: nothing that is added is above {}",
                number(stream.branch_peak)
            )
        } else {
            format!(
                "what is added reaches {} by itself",
                number(stream.branch_peak)
            )
        };
        writeln!(out, "  first overflow: layer {layer}, {class}")?;
    }
    if let Some(alpha) = stream.alpha {
        writeln!(
            out,
            "  scale by {:.3} ({} / {}) or by {} (2^{:.0}, to {})",
            alpha.to_target,
            number(TARGET),
            number(stream.peak),
            alpha.power_of_two,
            alpha.power_of_two.log2(),
            number(alpha.power_of_two_peak)
        )?;
    }
    writeln!(out)
}

/// A bar, with marks where it does not reach.
fn bar(value: f64, most: f64, marks: &[(usize, char)]) -> String {
    let eighths = (value / most * (WIDTH * 8) as f64).round().max(0.0) as usize;
    (0..=WIDTH)
        .map(|column| {
            let filled = eighths.saturating_sub(column * 8);
            let mark = marks.iter().find(|(at, _)| *at == column);
            match (filled, mark) {
                (8.., _) => '█',
                (0, Some((_, mark))) => *mark,
                (part, _) => EIGHTHS.get(part).copied().unwrap_or(' '),
            }
        })
        .collect()
}

fn write_runs(out: &mut dyn Write, report: &Report) -> io::Result<()> {
    let fp32 = if report.fp32.works {
        "all outputs are finite".to_owned()
    } else {
        format!(
            "{} elements of outputs are NaN or infinite already here",
            report.fp32.not_finite
        )
    };
    writeln!(out, "fp32          {fp32}")?;
    write_run(out, "fp16", &report.fp16)?;
    if let Some(weights) = &report.fp16_weights {
        write_run(out, "fp16 weights", weights)?;
    }
    write_run(out, "ane (model)", &report.ane)?;
    let weights = &report.weights;
    let mut more = String::new();
    if weights.exceed_fp16 > 0 {
        more += &format!(", {} above {}", weights.exceed_fp16, number(HALF_MAX));
    }
    if weights.not_finite > 0 {
        more += &format!(", {} NaN or infinite", weights.not_finite);
    }
    if weights.total_params > 0 {
        writeln!(
            out,
            "weights       {} elements, the greatest {} in `{}`{more}",
            number(weights.total_params as f64),
            number(weights.max_abs),
            weights.max_value
        )?;
    }
    let meaning = match report.score {
        score if score >= 1.0 => "fp16 works",
        score if score >= 0.7 => "fp16 works if the stream is clamped",
        score if score >= 0.5 => "fp16 fails, fp16 weights work",
        _ => "fp16 weights alone break it, or fp32 does",
    };
    writeln!(
        out,
        "{BOLD}score         {:.1}{RESET}: {meaning}",
        report.score
    )
}

fn write_run(out: &mut dyn Write, name: &str, run: &LowRun) -> io::Result<()> {
    let verdict = match (&run.failed, run.works) {
        (Some(why), _) => format!("{RED}fails{RESET}: {why}"),
        (None, true) => "works".to_owned(),
        (None, false) => format!("{RED}fails{RESET}"),
    };
    let outputs: Vec<String> = run
        .outputs
        .iter()
        .map(|output| {
            let snr = match output.snr_db {
                None if output.not_finite > 0 => "nothing finite".to_owned(),
                Some(snr) if snr.is_finite() => format!("{snr:.1} dB"),
                Some(_) => "no signal left".to_owned(),
                None => "equal".to_owned(),
            };
            let broken = match output.not_finite {
                0 => String::new(),
                count => format!(", {count} not finite"),
            };
            format!(
                "`{}` {snr}, argmax {:.1} %{broken}",
                output.name,
                100.0 * output.argmax_match
            )
        })
        .collect();
    let of = if outputs.is_empty() { "" } else { ": " };
    writeln!(out, "{name:<13} {verdict}{of}{}", outputs.join("; "))?;
    if let Some(first) = &run.first_not_finite {
        writeln!(out, "{:13} first not finite: {}", "", told(first))?;
    }
    if let Some(first) = &run.first_departed {
        let is_same = |known: &WrongValue| known.value == first.value;
        if !run.first_not_finite.as_ref().is_some_and(is_same) {
            writeln!(out, "{:13} first far off: {}", "", told(first))?;
        }
    }
    Ok(())
}

fn told(wrong: &WrongValue) -> String {
    let layer = wrong
        .layer
        .map_or_else(String::new, |layer| format!(", layer {layer}"));
    let whose = match wrong.by_itself {
        Some(true) => ", by itself",
        Some(false) => ", by its arguments",
        None => "",
    };
    format!(
        "`{}` ({}, {}{layer}{whose}): {} for {}",
        wrong.value,
        wrong.op_type,
        wrong.class.words(),
        wrong.low,
        wrong.reference
    )
}

/// How many values are mostly too small to be normal.
fn write_small(out: &mut dyn Write, report: &Report) -> io::Result<()> {
    let values = report.functions.iter().flat_map(|f| &f.values);
    let small = values
        .filter(|value| {
            let others = value.range.elements - value.range.zeros;
            value.range.elements > 1 && value.range.subnormal as f64 > MOSTLY_SMALL * others as f64
        })
        .count();
    if small > 0 {
        let (values, have) = match small {
            1 => ("value", "has"),
            _ => ("values", "have"),
        };
        writeln!(
            out,
            "small         {small} {values} {have} more than half of the elements that are not zero below 2^-14, \
             which is zero where subnormals are flushed"
        )?;
    }
    Ok(())
}

fn write_sweep(out: &mut dyn Write, report: &Report) -> io::Result<()> {
    if report.sweep.is_empty() {
        return Ok(());
    }
    writeln!(out, "\nclamps of the stream, in fp16")?;
    writeln!(
        out,
        "    clamp  survives    clamped   argmax     KL, nats        SNR"
    )?;
    for clamp in &report.sweep {
        let kl = clamp
            .kl
            .map_or_else(|| "-".to_owned(), |kl| format!("{kl:.2e}"));
        let snr = clamp
            .snr_db
            .map_or_else(|| "equal".to_owned(), |snr| format!("{snr:.1} dB"));
        writeln!(
            out,
            "  {:>7}  {:<8} {:>10}  {:>5.1} %  {kl:>11}  {snr:>9}",
            number(clamp.value),
            if clamp.success { "yes" } else { "no" },
            clamp.clamped,
            100.0 * clamp.argmax_match
        )?;
    }
    Ok(())
}

fn write_issues(out: &mut dyn Write, report: &Report) -> io::Result<()> {
    if report.issues.is_empty() {
        return Ok(());
    }
    writeln!(out, "\nissues, in the order of the program")?;
    for (index, issue) in report.issues.iter().enumerate() {
        let layer = issue
            .layer
            .map_or_else(String::new, |layer| format!(", layer {layer}"));
        writeln!(
            out,
            "{:>3}. {BOLD}{}{RESET}{layer}: {}",
            index + 1,
            issue.class.words(),
            issue.message
        )?;
        if !issue.cures.is_empty() {
            writeln!(out, "     cured by {}", issue.cures.join(", or "))?;
        }
    }
    if !report.recommendations.is_empty() {
        writeln!(out)?;
    }
    for line in &report.recommendations {
        writeln!(out, "{line}")?;
    }
    Ok(())
}
