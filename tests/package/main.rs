//! Opening, reading and saving packages, as files on disk; no program is looked at.
#![cfg(unix)]

mod blobs;
mod corpus;
mod failures;
mod open;
mod peer;
mod sample;
mod save;
mod weights;
mod zips;
