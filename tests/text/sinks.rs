//! Where text goes, and single nodes as text.

use milwright::ir::{Graph, ValueId};
use milwright::text::{PrintError, PrintOptions, print_op, program_text, write_program};

use crate::everything::everything;

#[test]
fn a_sink_that_fails_is_an_error_with_its_own_words() {
    struct Full;
    impl std::io::Write for Full {
        fn write(&mut self, _: &[u8]) -> std::io::Result<usize> {
            Err(std::io::Error::other("disk full"))
        }
        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }
    let error = write_program(&mut Full, &everything(), &PrintOptions::default())
        .expect_err("the sink is full");
    assert!(matches!(error, PrintError::Io(_)));
    assert!(error.to_string().contains("disk full"), "{error}");
    let mut bytes = Vec::new();
    write_program(&mut bytes, &everything(), &PrintOptions::default()).expect("room");
    let text = program_text(&everything(), &PrintOptions::default()).expect("functions");
    assert_eq!(bytes, text.into_bytes());
}

#[test]
fn nodes_that_are_not_operations_print_too() {
    let graph = Graph::new();
    let (output, _) = graph.nodes().next().expect("the return");
    assert_eq!(print_op(&graph, output), "-> ()");
    assert_eq!(
        graph.name(ValueId {
            node: output,
            result: 5
        }),
        ""
    );
}
