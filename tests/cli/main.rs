//! The command as its users meet it: the binary is run, and what it writes is looked at.

#![allow(clippy::print_stdout, reason = "tests say what they skip and measure")]

mod bisecting;
mod command;
mod contract;
mod kept;
mod leftovers;
mod lint_config;
mod lint_corpus;
mod linting;
mod listing;
mod main_job;
mod models;
mod new_pass;
mod numbers;
mod optimizing;
mod orion;
mod placement;
mod preflight_classes;
mod preflighting;
mod printing;
mod readme;
mod refusals_of_models;
mod refusals_of_packages;
mod refusals_of_weights;
mod round_trip;
mod running;
mod second_opinion;
mod states;
#[path = "../support/mod.rs"]
mod support;
mod verifying;
mod wire;
