//! Outputs that are concats become several, one for each operand.

use super::plan::{Plan, pointwise_operand};
use super::{MakesOutputs, apply, joined};
use crate::analysis::joined::Joined;
use crate::ir::{Function, Node, NodeId, ValueId};
use crate::model::{Form, Side};
use crate::pass::{Block, Edit, EditError, Whole, WholeAttempt, WholeEdit, WholeError};

/// Operations between an output and the concat that it is made of.
const MAX_DEPTH: usize = 16;

/// The concats of a function that are, or whose elements become, its outputs.
pub(super) fn attempts(whole: &Whole<'_>, name: &str, function: &Function) -> Vec<WholeAttempt> {
    let mut attempts = Vec::new();
    let Some(opset) = function.specializations.keys().next() else {
        return attempts;
    };
    let Some(block) = whole.block(name, opset) else {
        return attempts;
    };
    for node in candidates(&block) {
        // What stops it otherwise, the matcher of blocks says.
        let Ok(joined) = joined(&block, node) else {
            continue;
        };
        let Ok(plan) = Plan::of(&block, ValueId::first(node), &joined, true) else {
            continue;
        };
        if plan.outputs.is_empty() {
            continue;
        }
        let label = block.label(node);
        let place = [name, label.as_str(), "concat"];
        if let Err(why) = check(whole, name, function, &block, &plan, &joined) {
            attempts.push(WholeAttempt::missed(place, why));
            continue;
        }
        let outputs = names(function, &block, &plan, joined.operands.len());
        let change = Change {
            function: name.to_owned(),
            opset: opset.clone(),
            node,
            axis: joined.axis,
            operands: joined.operands.iter().map(|(value, ..)| *value).collect(),
            outputs,
        };
        let what = change.what(&plan);
        attempts.push(WholeAttempt::matched(place, what, move |edit| {
            change.apply(edit, plan)
        }));
    }
    attempts
}

/// The concats that outputs are made of, each once.
fn candidates(block: &Block<'_>) -> Vec<NodeId> {
    let mut found = Vec::new();
    for output in block.graph.outputs() {
        let mut value = *output;
        for _ in 0..=MAX_DEPTH {
            let Some(op) = block.op(value.node) else {
                break;
            };
            if op.op_type() == "concat" {
                if !found.contains(&value.node) {
                    found.push(value.node);
                }
                break;
            }
            match pointwise_operand(block, op) {
                Some(operand) => value = operand,
                None => break,
            }
        }
    }
    found
}

/// Why the outputs cannot become several.
fn check(
    whole: &Whole<'_>,
    name: &str,
    function: &Function,
    block: &Block<'_>,
    plan: &Plan,
    joined: &Joined,
) -> Result<(), String> {
    if function.specializations.len() > 1 {
        return Err("the function has several bodies".to_owned());
    }
    let mut operands = joined.operands.iter();
    if operands.any(|(value, ..)| block.constant(*value).is_some()) {
        return Err("an operand is a constant, and an output should be computed".to_owned());
    }
    let described = whole.interface.function(name);
    for value in &plan.outputs {
        let output = block.graph.name(*value);
        let all = block.graph.outputs().iter();
        if all.filter(|other| *other == value).count() > 1 {
            return Err(format!("`{output}` is more than one output"));
        }
        let Some(described) = described else {
            continue;
        };
        if described.predicted.iter().any(|known| known == output) {
            return Err(format!("`{output}` is what a classifier predicts"));
        }
        let mut features = described.outputs.iter();
        if let Some(feature) = features.find(|feature| feature.name == output)
            && !matches!(feature.form, Form::Array { .. })
        {
            return Err(format!(
                "`{output}` is described as something else than an array"
            ));
        }
    }
    Ok(())
}

/// Each output with the names of what it becomes, which no value of the function has.
fn names(
    function: &Function,
    block: &Block<'_>,
    plan: &Plan,
    operands: usize,
) -> Vec<(String, Vec<String>)> {
    let width = operands.saturating_sub(1).to_string().len();
    let mut taken: Vec<String> = Vec::new();
    let mut outputs = Vec::new();
    for value in &plan.outputs {
        let old = block.graph.name(*value).to_owned();
        let mut names = Vec::new();
        for index in 0..operands {
            let base = format!("{old}_{index:0width$}");
            let mut name = function.fresh_name(&base);
            // Only outputs with such names as `y` and `y_0` come near each other.
            while taken.contains(&name) {
                name = function.fresh_name(&format!("{name}_1"));
            }
            taken.push(name.clone());
            names.push(name);
        }
        outputs.push((old, names));
    }
    outputs
}

struct Change {
    function: String,
    opset: String,
    /// The concat.
    node: NodeId,
    axis: usize,
    operands: Vec<ValueId>,
    /// Each output with the names of what it becomes.
    outputs: Vec<(String, Vec<String>)>,
}

impl Change {
    /// What happens, in one line.
    fn what(&self, plan: &Plan) -> String {
        let outputs: Vec<String> = self
            .outputs
            .iter()
            .map(|(old, names)| format!("the output {old} becomes {}", names.join(", ")))
            .collect();
        let outputs = outputs.join("; ");
        plan.what()
            .map_or(outputs.clone(), |readers| format!("{outputs}; {readers}"))
    }

    fn apply(self, edit: &mut WholeEdit<'_>, plan: Plan) -> Result<(), WholeError> {
        let parts = edit.at(&self.function, &self.opset, self.node, |edit| {
            let mut parts = apply(edit, plan, &self.operands)?;
            own_values(edit, &mut parts)?;
            Ok(parts)
        })?;
        let body = edit.body(&self.function, &self.opset)?;
        let mut outputs = Vec::new();
        for output in body.graph.outputs() {
            match parts.iter().find(|(old, _)| old == output) {
                Some((_, values)) => outputs.extend(values),
                None => outputs.push(*output),
            }
        }
        body.set_outputs(outputs.clone());
        edit.at(&self.function, &self.opset, self.node, |edit| {
            for (old, _) in &parts {
                if !edit.graph().is_used(old.node) {
                    edit.remove(old.node)?;
                }
            }
            Ok(())
        })?;
        for ((_, values), (old, names)) in parts.iter().zip(&self.outputs) {
            self.name(edit, &outputs, values, names)?;
            self.describe(edit, values, (old, names))?;
            edit.note_ports(|map| map.split(&self.function, old, self.axis, names))?;
        }
        Ok(())
    }

    /// Gives the new outputs their names.
    fn name(
        &self,
        edit: &mut WholeEdit<'_>,
        outputs: &[ValueId],
        values: &[ValueId],
        names: &[String],
    ) -> Result<(), WholeError> {
        for (value, name) in values.iter().zip(names) {
            if let Some(index) = outputs.iter().position(|output| output == value) {
                edit.function(&self.function)?.rename_output(index, name)?;
            }
        }
        Ok(())
    }

    /// Puts the new outputs in the old one's place in the description.
    fn describe(
        &self,
        edit: &mut WholeEdit<'_>,
        values: &[ValueId],
        (old, names): (&str, &[String]),
    ) -> Result<(), WholeError> {
        let interface = edit.description().interface();
        let described = interface.functions.iter();
        let mut order = Vec::new();
        for function in described.filter(|known| known.name == self.function) {
            for feature in &function.outputs {
                if feature.name == old {
                    order.extend(names.iter().cloned());
                } else {
                    order.push(feature.name.clone());
                }
            }
        }
        let graph = &edit.body(&self.function, &self.opset)?.graph;
        let types: Vec<_> = values
            .iter()
            .map(|value| graph.ty(*value).cloned())
            .collect();
        let mut description = edit.description().reborrow();
        for (name, ty) in names.iter().zip(types) {
            if let Some(ty) = ty {
                description.describe(&self.function, Side::Output, name, &ty)?;
            }
        }
        description.remove(&self.function, Side::Output, old);
        description.order(&self.function, Side::Output, &order);
        Ok(())
    }
}

/// Sees to it that each part of an output is a value that can be an output, and one of its own: what
/// is an input, another output or a part before is copied.
fn own_values(edit: &mut Edit<'_>, parts: &mut MakesOutputs) -> Result<(), EditError> {
    let mut taken: Vec<ValueId> = Vec::new();
    for value in parts.iter_mut().flat_map(|(_, values)| values) {
        let is_computed = match edit.graph().node(value.node) {
            Some(Node::Op(op)) => op.op_type() != "read_state",
            _ => false,
        };
        if !is_computed || edit.graph().is_output(*value) || taken.contains(value) {
            *value = edit.op("identity", &[("x", crate::ir::Binding::Value(*value))])?;
        }
        taken.push(*value);
        edit.keep(value.node);
    }
    Ok(())
}
