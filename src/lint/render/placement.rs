//! Where operations are expected to run, as a table for people.

use std::io::{self, Write};

use crate::lint::placement::{Device, Placement, facts};

/// So many reasons are shown of a function.
const MOST: usize = 8;

/// Writes the placement of each function.
pub fn write(out: &mut dyn Write, placements: &[Placement]) -> io::Result<()> {
    for placement in placements {
        let stage = match placement.stage.as_str() {
            "" => String::new(),
            stage => format!("{stage}, "),
        };
        let count = placement.count();
        let basis = match placement.measured {
            0 => "an estimate".to_owned(),
            measured if measured == count => "from the plan".to_owned(),
            measured => format!("{measured} of {count} from the plan, the rest an estimate"),
        };
        writeln!(
            out,
            "placement of {stage}function `{}`, {basis}:",
            placement.function
        )?;
        for device in Device::ALL {
            let index = device as usize;
            writeln!(
                out,
                "  {}  {:>6} {:4} {:>10} of weights",
                device.name(),
                placement.ops[index],
                if placement.ops[index] == 1 {
                    "op,"
                } else {
                    "ops,"
                },
                size(placement.bytes[index])
            )?;
        }
        let changes = match placement.changes() {
            0 => "it stays on one device".to_owned(),
            1 => "the data goes to another device once".to_owned(),
            changes => format!("the data goes to another device {changes} times"),
        };
        writeln!(out, "  {changes}")?;
        for reason in placement.reasons.iter().take(MOST) {
            writeln!(
                out,
                "  {} {:>6}: {}, first `{}`",
                reason.device.name(),
                reason.ops,
                reason.why,
                reason.first
            )?;
        }
        if placement.reasons.len() > MOST {
            writeln!(out, "  and {} more reasons", placement.reasons.len() - MOST)?;
        }
    }
    if placements
        .iter()
        .any(|placement| placement.measured < placement.count())
    {
        writeln!(
            out,
            "what is an estimate follows from compute plans that others published:"
        )?;
        for source in facts::SOURCES {
            writeln!(out, "  {source}")?;
        }
    }
    Ok(())
}

fn size(bytes: u64) -> String {
    match bytes {
        0..10_000 => format!("{bytes} B"),
        10_000..10_000_000 => format!("{} kB", bytes / 1000),
        _ => format!("{} MB", bytes / 1_000_000),
    }
}
