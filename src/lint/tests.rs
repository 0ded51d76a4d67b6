//! Tests of the linter, with rules made for the purpose.
