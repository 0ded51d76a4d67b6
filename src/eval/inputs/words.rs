//! How the inputs of a model are made, in words.

use std::fmt;

use super::integers::Integers;
use super::trace::Role;
use super::{FEW_ELEMENTS, MASKED, Plan, Planned};
use crate::model::Form;
use crate::tensor::elements;

impl fmt::Display for Plan {
    /// One line for each input: its name, type, shape in the first call, and what is in it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shapes = self.shapes(0);
        let integers = self.integers(0, 0, 0, &shapes);
        for (number, (input, shape)) in self.inputs.iter().zip(&shapes).enumerate() {
            if number > 0 {
                writeln!(f)?;
            }
            let sizes: Vec<String> = shape.iter().map(ToString::to_string).collect();
            write!(
                f,
                "{}: {} [{}]: ",
                input.name,
                input.dtype,
                sizes.join(", ")
            )?;
            f.write_str(&self.words(number, input, &integers))?;
            for growing in self.growing.iter().filter(|g| g.input == number) {
                write!(
                    f,
                    "; axis {} grows by {} each call",
                    growing.axis, growing.step
                )?;
            }
        }
        Ok(())
    }
}

impl Plan {
    fn words(&self, number: usize, input: &Planned, integers: &Integers) -> String {
        if let Form::Array {
            default: Some(value),
            ..
        } = input.form
        {
            return format!("its default value {value}");
        }
        if matches!(input.form, Form::Image { .. }) {
            return "an image, integers from 0 to 255".to_owned();
        }
        let reason = self.trace.reasons.get(&number);
        match (self.trace.roles.get(&number), reason) {
            (Some(Role::AdditiveMask), _) if input.dtype.is_float() => {
                return format!("a causal mask of 0 and {MASKED}");
            }
            (Some(Role::Flags), None) => return "flags, seven in eight 1, others 0".to_owned(),
            (_, None) if input.dtype.is_float() => return "standard normal".to_owned(),
            (_, None) => {
                let (low, high) = self.loose(input, number);
                let why = match self.trace.limits.get(&number) {
                    Some(_) => "what it is compared with",
                    None => "nothing says how large they may be",
                };
                return format!("integers from {low} to {high} ({why})");
            }
            _ => {}
        }
        let reason = reason.map_or("", String::as_str);
        // Whatever the number of elements, only so many have ranges of their own.
        let count = elements(&input.shape).unwrap_or(usize::MAX);
        if let (1, Some(value)) = (count, integers.chosen(number, 0)) {
            format!("{value} in the first call ({reason})")
        } else {
            let ranges = (0..count.min(FEW_ELEMENTS)).filter_map(|at| integers.bounds(number, at));
            let (low, high) = ranges.fold((i64::MAX, 0), |(low, high), (l, h)| {
                (low.min(l), high.max(h))
            });
            format!("integers from {} to {high} ({reason})", low.min(high))
        }
    }
}
