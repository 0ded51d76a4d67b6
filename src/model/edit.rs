//! Changes to a model's description that follow a change of the program's interface.

use std::collections::BTreeMap;

use super::describe::{DescribeError, Describer, Side};
use super::description::Interface;
use super::proto::specification as spec;
use crate::ir::{Program, ValueType};

/// A program of a model with its description, both to be changed.
pub struct PartMut<'a> {
    /// Which stage of a pipeline; empty if the model is one program.
    pub stage: String,
    /// The program.
    pub program: &'a mut Program,
    /// Its description.
    pub description: DescriptionMut<'a>,
}

impl<'a> PartMut<'a> {
    /// A program that stands alone, without a description.
    pub fn alone(program: &'a mut Program) -> Self {
        Self {
            stage: String::new(),
            program,
            description: DescriptionMut::default(),
        }
    }
}

/// A model's description, to be changed; of a program that stands alone there is none, and changes
/// to it are no changes.
#[derive(Default)]
pub struct DescriptionMut<'a> {
    envelope: Option<&'a mut spec::Model>,
}

/// A description as it was at some time.
pub struct DescriptionSnapshot(Option<spec::ModelDescription>);

/// One function's features, wherever the description has them.
struct Lists<'a> {
    inputs: &'a mut Vec<spec::FeatureDescription>,
    outputs: &'a mut Vec<spec::FeatureDescription>,
    states: &'a mut Vec<spec::FeatureDescription>,
    predicted: [&'a mut String; 2],
}

impl<'a> Lists<'a> {
    fn side(self, side: Side) -> &'a mut Vec<spec::FeatureDescription> {
        match side {
            Side::Input => self.inputs,
            Side::Output => self.outputs,
            Side::State => self.states,
        }
    }
}

impl<'a> DescriptionMut<'a> {
    pub(super) fn of(envelope: &'a mut spec::Model) -> Self {
        Self {
            envelope: Some(envelope),
        }
    }

    /// The same description, lent on.
    pub fn reborrow(&mut self) -> DescriptionMut<'_> {
        DescriptionMut {
            envelope: self.envelope.as_deref_mut(),
        }
    }

    /// What it says now, for [`DescriptionMut::restore`].
    pub fn snapshot(&self) -> DescriptionSnapshot {
        DescriptionSnapshot(self.envelope.as_ref().and_then(|e| e.description.clone()))
    }

    /// Lets it say again what it said.
    pub fn restore(&mut self, snapshot: DescriptionSnapshot) {
        if let Some(envelope) = &mut self.envelope {
            envelope.description = snapshot.0;
        }
    }

    /// The interface that it declares.
    pub fn interface(&self) -> Interface {
        self.envelope
            .as_deref()
            .map_or_else(Interface::default, Interface::of)
    }

    /// The metadata that its author defined.
    pub fn user_defined(&self) -> BTreeMap<String, String> {
        let description = self.envelope.as_ref().and_then(|e| e.description.as_ref());
        let metadata = description.and_then(|description| description.metadata.as_ref());
        metadata.map_or_else(BTreeMap::new, |metadata| metadata.user_defined.clone())
    }

    /// Sets an entry of the metadata; `None` removes it.
    pub fn set_user_defined(&mut self, key: &str, value: Option<String>) {
        let Some(envelope) = &mut self.envelope else {
            return;
        };
        let description = envelope.description.get_or_insert_default();
        let entries = &mut description.metadata.get_or_insert_default().user_defined;
        match value {
            Some(value) => entries.insert(key.to_owned(), value),
            None => entries.remove(key),
        };
    }

    /// Gives a feature another name.
    pub fn rename(&mut self, function: &str, side: Side, name: &str, new: &str) {
        let Some(lists) = self.lists(function) else {
            return;
        };
        let Lists {
            inputs,
            outputs,
            states,
            predicted,
        } = lists;
        let features = match side {
            Side::Input => inputs,
            Side::Output => outputs,
            Side::State => states,
        };
        for feature in features.iter_mut().filter(|f| f.name == name) {
            new.clone_into(&mut feature.name);
        }
        if side == Side::Output {
            for known in predicted.into_iter().filter(|known| *known == name) {
                new.clone_into(known);
            }
        }
    }

    /// Removes a feature.
    pub fn remove(&mut self, function: &str, side: Side, name: &str) {
        if let Some(lists) = self.lists(function) {
            lists.side(side).retain(|feature| feature.name != name);
        }
    }

    /// Describes a feature anew from its type in the program: one that is not there yet comes last,
    /// one that is keeps its place and its text. The shape is fixed where the type's is.
    ///
    /// # Errors
    ///
    /// If a description has no place for such a type.
    pub fn describe(
        &mut self,
        function: &str,
        side: Side,
        name: &str,
        ty: &ValueType,
    ) -> Result<(), DescribeError> {
        let version = self
            .envelope
            .as_ref()
            .map_or(0, |e| e.specification_version);
        let Some(lists) = self.lists(function) else {
            return Ok(());
        };
        let mut describer = Describer::new(version);
        let feature = describer.feature(function, side, name, Some(ty), None);
        describer.finish()?;
        let features = lists.side(side);
        match features.iter_mut().find(|known| known.name == name) {
            Some(known) => {
                let is_optional = known.r#type.as_ref().is_some_and(|t| t.is_optional);
                known.r#type = feature.r#type;
                if let Some(ty) = &mut known.r#type {
                    ty.is_optional = is_optional;
                }
            }
            None => features.push(feature),
        }
        Ok(())
    }

    /// Puts the features of one side in the order of these names; others come behind.
    pub fn order(&mut self, function: &str, side: Side, names: &[String]) {
        if let Some(lists) = self.lists(function) {
            let place = |name: &str| names.iter().position(|known| known == name);
            let features = lists.side(side);
            features.sort_by_key(|feature| place(&feature.name).unwrap_or(usize::MAX));
        }
    }

    /// The features of a function; a description without functions describes the only one there is.
    fn lists(&mut self, function: &str) -> Option<Lists<'_>> {
        let description = self.envelope.as_mut()?.description.as_mut()?;
        if description.functions.is_empty() {
            return Some(Lists {
                inputs: &mut description.input,
                outputs: &mut description.output,
                states: &mut description.state,
                predicted: [
                    &mut description.predicted_feature_name,
                    &mut description.predicted_probabilities_name,
                ],
            });
        }
        let mut functions = description.functions.iter_mut();
        let described = functions.find(|known| known.name == function)?;
        Some(Lists {
            inputs: &mut described.input,
            outputs: &mut described.output,
            states: &mut described.state,
            predicted: [
                &mut described.predicted_feature_name,
                &mut described.predicted_probabilities_name,
            ],
        })
    }
}
