//! What several passes and lint rules need to see: patterns larger than one operation, found in the
//! graph and never by name. Each module says which spellings it covers.

pub mod joined;
pub mod product;
pub mod weight;

#[cfg(test)]
mod sample;
