//! Attention: `scaled_dot_product_attention`.

use crate::ops::dims::{Types, check_rank, one, same};
use crate::ops::infer::Rule;
use crate::ops::view::OpView;

pub(super) use evaluate::kernel;

mod evaluate;

pub(super) fn rule(op_type: &str) -> Option<Rule> {
    (op_type == "scaled_dot_product_attention").then_some(attention as Rule)
}

/// query \[B, …, L, E\], key \[B, …, S, E\], value \[B, …, S, EV\] give \[B, …, L, EV\].
fn attention(view: &OpView) -> Types {
    let (query, key, value) = (
        view.ranked("query")?,
        view.ranked("key")?,
        view.ranked("value")?,
    );
    check_rank("query", &query.dims, 3.., "3 or more")?;
    let rank = query.dims.len();
    check_rank("key", &key.dims, rank..=rank, "that of `query`")?;
    check_rank("value", &value.dims, rank..=rank, "that of `query`")?;
    let (length, inner) = (rank - 2, rank - 1);
    same(
        inner,
        ("query", query.dims[inner]),
        ("key", key.dims[inner]),
    )?;
    same(
        length,
        ("key", key.dims[length]),
        ("value", value.dims[length]),
    )?;
    let mut dims = query.dims.clone();
    dims[inner] = value.dims[inner];
    one(query.dtype, dims)
}
