//! Two casts in a row.

use super::{holds, loses};
use crate::ir::{Binding, NodeId, Operation, ValueId};
use crate::pass::{Attempt, Block};

/// `cast(cast(x: A → B): B → C)`: one cast A → C, or x itself if C is A.
pub(super) fn attempt(
    block: &Block<'_>,
    outer: NodeId,
    middle: ValueId,
    inner: &Operation,
) -> Attempt {
    let result = ValueId::first(outer);
    let Some(x) = inner.value("x") else {
        return Attempt::NoMatch;
    };
    let (Some(a), Some(b), Some(c)) = (block.dtype(x), block.dtype(middle), block.dtype(result))
    else {
        return Attempt::NoMatch;
    };
    if !holds(b, a) {
        return loses(middle.node, b, a);
    }
    if a != c {
        return Attempt::matched(
            format!("{a} → {b} → {c} becomes {a} → {c}"),
            move |edit| {
                edit.bind(outer, "x", Some(vec![Binding::Value(x)]));
                Ok(())
            },
        );
    }
    if let Err(refusal) = block.graph.can_replace(result, x) {
        return Attempt::missed(outer, refusal.to_string());
    }
    let what = format!("{a} → {b} → {a} is `{}`", block.graph.name(x));
    Attempt::matched(what, move |edit| edit.replace(result, x))
}
