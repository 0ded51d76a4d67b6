//! What an op does besides computing its results.

use super::op;

/// What an op does besides computing its results; decides whether it may be erased when unused,
/// merged with an equal op, or moved across another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Effect {
    /// Nothing: equal arguments give equal results.
    Pure,
    /// Reads a state: the result depends on the writes before it.
    ReadsState,
    /// Writes a state.
    WritesState,
    /// Draws random numbers. With `seed` −1 each run differs; with a fixed seed the runs agree,
    /// but nothing documents whether two ops of one seed do, so they are not merged either. An
    /// unused one may be erased.
    Random,
    /// Whatever the ops in its blocks do: `cond` and `while_loop`.
    Nested,
    /// Unknown to the registry; may do anything.
    Opaque,
}

impl Effect {
    /// Whether an op whose results nobody uses may be erased.
    pub fn is_erasable(self) -> bool {
        matches!(self, Self::Pure | Self::ReadsState | Self::Random)
    }
}

/// The effect of an op type.
///
/// List ops count as pure, as in coremltools: `list_write` and `list_scatter` result in a new list.
pub fn effect(op_type: &str) -> Effect {
    match op_type {
        "read_state" => Effect::ReadsState,
        "write_state" => Effect::WritesState,
        "random_bernoulli" | "random_categorical" | "random_normal" | "random_uniform" => {
            Effect::Random
        }
        "cond" | "while_loop" => Effect::Nested,
        _ if op(op_type).is_some() => Effect::Pure,
        _ => Effect::Opaque,
    }
}
