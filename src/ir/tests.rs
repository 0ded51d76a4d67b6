//! Tests of the graph: scoping, order, captures, rewriting, and what the verifier sees.

use std::collections::BTreeMap;

use super::graph::Edge;
use super::*;

fn fp16(shape: &[u64]) -> ValueType {
    ValueType::Tensor(TensorType::fixed(DType::Float16, shape))
}

fn named(name: &str, ty: &ValueType) -> NamedType {
    NamedType {
        name: name.to_owned(),
        ty: Some(ty.clone()),
    }
}

fn draft(op_type: &str, result: &str, arguments: &[(&str, &str)]) -> OpDraft {
    let results = if result.is_empty() {
        Vec::new()
    } else {
        vec![named(result, &fp16(&[2]))]
    };
    OpDraft {
        op_type: op_type.to_owned(),
        arguments: arguments
            .iter()
            .map(|(parameter, value)| {
                let binding = DraftBinding::Name((*value).to_owned());
                ((*parameter).to_owned(), vec![binding])
            })
            .collect(),
        results,
        attributes: BTreeMap::from([("name".to_owned(), Value::string(format!("op_{result}")))]),
        ..OpDraft::default()
    }
}

/// A body with the input `x` (and the state `s`) and these operations.
fn body(ops: Vec<OpDraft>, outputs: &[&str]) -> Result<Body, BuildError> {
    let mut builder = BodyBuilder::new();
    builder.input(named("x", &fp16(&[2])), InputOrigin::Function)?;
    let state = ValueType::State(Some(Box::new(fp16(&[2]))));
    builder.input(named("s", &state), InputOrigin::Function)?;
    for op in ops {
        builder.op(op)?;
    }
    let outputs: Vec<String> = outputs.iter().map(ToString::to_string).collect();
    builder.finish(&outputs, BTreeMap::new())
}

fn program(body: &Body) -> Program {
    let state = ValueType::State(Some(Box::new(fp16(&[2]))));
    let function = Function {
        inputs: vec![named("x", &fp16(&[2])), named("s", &state)],
        opset: "CoreML8".to_owned(),
        specializations: BTreeMap::from([("CoreML8".to_owned(), body.clone())]),
        attributes: BTreeMap::new(),
    };
    Program {
        functions: BTreeMap::from([("main".to_owned(), function)]),
        ..Program::default()
    }
}

fn order(graph: &Graph) -> Vec<String> {
    graph
        .schedule()
        .expect("no cycle")
        .iter()
        .filter_map(|node| graph.op(*node))
        .map(|op| match op.results().first() {
            Some(result) => result.name.clone(),
            None => op.op_type().to_owned(),
        })
        .collect()
}

fn find(graph: &Graph, name: &str) -> NodeId {
    graph
        .ops()
        .find(|(_, op)| op.results().iter().any(|result| result.name == name))
        .map(|(node, _)| node)
        .expect("the operation exists")
}

/// As the registry has it for the operations of these tests.
fn removable(op: &Operation) -> bool {
    op.op_type() != "mystery"
}

fn relu_of(value: ValueId) -> NewOp {
    NewOp {
        op_type: "relu".to_owned(),
        arguments: BTreeMap::from([("x".to_owned(), vec![Binding::Value(value)])]),
        results: vec![fp16(&[2])],
        attributes: BTreeMap::new(),
    }
}

#[test]
fn an_unchanged_graph_keeps_its_order_even_where_dependence_allows_another() {
    let ops = vec![
        draft("relu", "c", &[("x", "x")]),
        draft("abs", "a", &[("x", "x")]),
        draft("exp", "b", &[("x", "c")]),
    ];
    let body = body(ops, &["b", "a"]).expect("a body");
    assert_eq!(order(&body.graph), ["c", "a", "b"]);
}

#[test]
fn a_name_that_is_used_before_its_definition_is_refused_with_the_user() {
    let error = body(vec![draft("relu", "y", &[("x", "z")])], &["y"]).expect_err("refused");
    let by = "`relu` op `op_y`, parameter `x`".to_owned();
    let name = "z".to_owned();
    assert_eq!(error, BuildError::Undefined { name, by });
}

#[test]
fn a_name_that_is_defined_twice_is_refused_also_by_an_operation_and_an_input() {
    for name in ["x", "y"] {
        let ops = vec![
            draft("relu", "y", &[("x", "x")]),
            draft("abs", name, &[("x", "x")]),
        ];
        let error = body(ops, &["y"]).expect_err("refused");
        assert!(matches!(error, BuildError::DefinedTwice { name: n, .. } if n == name));
    }
}

#[test]
fn accesses_to_one_state_keep_their_order_though_no_value_connects_them() {
    let ops = vec![
        draft("read_state", "old", &[("input", "s")]),
        draft("write_state", "", &[("input", "s"), ("data", "x")]),
        draft("read_state", "new", &[("input", "s")]),
    ];
    let body = body(ops, &["old", "new"]).expect("a body");
    let (old, new) = (find(&body.graph, "old"), find(&body.graph, "new"));
    let write = body
        .graph
        .ops()
        .find(|(_, op)| op.op_type() == "write_state");
    let write = write.expect("the write exists").0;
    let mut edges: Vec<_> = body.graph.order_edges().collect();
    edges.sort_unstable();
    assert_eq!(edges, [(old, write), (write, new)]);
    assert!(body.graph.writes_state(write));
    assert!(!body.graph.writes_state(old));
    assert_eq!(verify::verify(&program(&body)), Ok(()));
}

#[test]
fn a_state_whose_accesses_are_not_ordered_does_not_verify() {
    let ops = vec![
        draft("read_state", "old", &[("input", "s")]),
        draft("write_state", "", &[("input", "s"), ("data", "x")]),
    ];
    let mut body = body(ops, &["old"]).expect("a body");
    for edge in body.graph.store.edge_indices().collect::<Vec<_>>() {
        if matches!(body.graph.store[edge], Edge::Order) {
            body.graph.store[edge] = Edge::Dead;
        }
    }
    let violation = verify::verify(&program(&body)).expect_err("a violation");
    assert!(violation.what.contains("in no fixed order"), "{violation}");
}

#[test]
fn erasing_an_access_keeps_what_was_before_it_before_what_was_after_it() {
    let ops = vec![
        draft("write_state", "", &[("input", "s"), ("data", "x")]),
        draft("read_state", "unused", &[("input", "s")]),
        draft("write_state", "", &[("input", "s"), ("data", "x")]),
        draft("relu", "y", &[("x", "x")]),
    ];
    let mut body = body(ops, &["y"]).expect("a body");
    let unused = find(&body.graph, "unused");
    let rewriter = Rewriter::new(&mut body.graph, &mut body.names, "test", unused, removable);
    assert_eq!(rewriter.finish(), 1);
    assert_eq!(order(&body.graph), ["write_state", "write_state", "y"]);
    assert_eq!(body.graph.order_edges().count(), 1);
    assert_eq!(verify::verify(&program(&body)), Ok(()));
}

#[test]
fn a_new_operation_stands_where_the_old_one_stood_and_has_its_names() {
    let ops = vec![
        draft("relu", "a", &[("x", "x")]),
        draft("abs", "b", &[("x", "a")]),
        draft("exp", "c", &[("x", "b")]),
        draft("sin", "d", &[("x", "x")]),
    ];
    let mut body = body(ops, &["c", "d"]).expect("a body");
    let (a, b) = (find(&body.graph, "a"), find(&body.graph, "b"));
    let mut rewriter = Rewriter::new(&mut body.graph, &mut body.names, "my-pass", b, removable);
    let first = rewriter.make(relu_of(ValueId::first(a)));
    let second = rewriter.make(relu_of(ValueId::first(first)));
    rewriter
        .replace(ValueId::first(b), ValueId::first(second))
        .expect("the types agree");
    assert_eq!(rewriter.finish(), 1);
    assert_eq!(order(&body.graph), ["a", "b_my_pass", "b", "c", "d"]);
    let new = body.graph.op(second).expect("it exists");
    assert_eq!((new.name(), new.made_by()), (Some("op_b"), Some("my-pass")));
    assert_eq!(verify::verify(&program(&body)), Ok(()));
}

#[test]
fn a_value_of_another_type_cannot_replace_one() {
    let mut ops = vec![draft("relu", "a", &[("x", "x")])];
    ops.push(OpDraft {
        results: vec![named("b", &fp16(&[3]))],
        ..draft("abs", "b", &[("x", "x")])
    });
    let mut body = body(ops, &["a", "b"]).expect("a body");
    let (a, b) = (find(&body.graph, "a"), find(&body.graph, "b"));
    let mut rewriter = Rewriter::new(&mut body.graph, &mut body.names, "test", a, removable);
    let refusal = rewriter.replace(ValueId::first(a), ValueId::first(b));
    assert!(matches!(refusal, Err(Refusal::TypeDiffers { .. })));
}

#[test]
fn an_output_gives_its_name_to_what_replaces_it_unless_that_is_an_input_or_an_output() {
    let ops = || {
        vec![
            draft("relu", "inner", &[("x", "x")]),
            draft("identity", "outer", &[("x", "inner")]),
        ]
    };
    let mut body_ = body(ops(), &["outer"]).expect("a body");
    let (inner, outer) = (find(&body_.graph, "inner"), find(&body_.graph, "outer"));
    let mut rewriter = Rewriter::new(&mut body_.graph, &mut body_.names, "test", outer, removable);
    rewriter
        .replace(ValueId::first(outer), ValueId::first(inner))
        .expect("relu can take the name");
    rewriter.finish();
    assert_eq!(order(&body_.graph), ["outer"]);
    assert_eq!(body_.graph.name(body_.graph.outputs()[0]), "outer");

    let both = body(ops(), &["inner", "outer"]).expect("a body");
    let (inner, outer) = (find(&both.graph, "inner"), find(&both.graph, "outer"));
    let refusal = both
        .graph
        .can_replace(ValueId::first(outer), ValueId::first(inner));
    assert!(matches!(
        refusal,
        Err(Refusal::OutputName {
            what: "another output",
            ..
        })
    ));
    let input = ValueId::first(both.graph.inputs()[0]);
    let refusal = both.graph.can_replace(ValueId::first(outer), input);
    assert!(matches!(
        refusal,
        Err(Refusal::OutputName {
            what: "an input",
            ..
        })
    ));
}

#[test]
fn erasing_takes_along_what_only_the_erased_used_but_nothing_of_unknown_effect() {
    let ops = vec![
        draft("mystery", "kept", &[("x", "x")]),
        draft("relu", "gone", &[("x", "kept")]),
        draft("abs", "shared", &[("x", "x")]),
        draft("exp", "anchor", &[("x", "gone")]),
        draft("sin", "y", &[("x", "shared")]),
    ];
    let mut body = body(ops, &["y"]).expect("a body");
    let anchor = find(&body.graph, "anchor");
    let rewriter = Rewriter::new(&mut body.graph, &mut body.names, "test", anchor, removable);
    assert_eq!(rewriter.finish(), 2);
    assert_eq!(order(&body.graph), ["kept", "shared", "y"]);
}

/// `cond` in the outer block whose branches capture `a`, the second one from a block nested in it.
fn nested() -> Body {
    let mut builder = BodyBuilder::new();
    let input = |builder: &mut BodyBuilder, name: &str| {
        builder
            .input(named(name, &fp16(&[2])), InputOrigin::Function)
            .expect("a fresh name");
    };
    input(&mut builder, "x");
    builder
        .op(draft("relu", "a", &[("x", "x")]))
        .expect("an op");
    builder.begin_block();
    builder.op(draft("abs", "b", &[("x", "a")])).expect("an op");
    let first = builder
        .end_block(&["b".to_owned()], BTreeMap::new())
        .expect("a block");
    builder.begin_block();
    builder.begin_block();
    builder.op(draft("exp", "d", &[("x", "a")])).expect("an op");
    let inner = builder
        .end_block(&["d".to_owned()], BTreeMap::new())
        .expect("a block");
    let mut deep = draft("cond", "e", &[("pred", "x")]);
    deep.blocks = vec![inner];
    builder.op(deep).expect("an op");
    let second = builder
        .end_block(&["e".to_owned()], BTreeMap::new())
        .expect("a block");
    let mut cond = draft("cond", "y", &[("pred", "x")]);
    cond.blocks = vec![first, second];
    builder.op(cond).expect("an op");
    builder
        .finish(&["y".to_owned()], BTreeMap::new())
        .expect("a body")
}

#[test]
fn an_outer_value_used_in_blocks_has_a_use_for_each_block_that_captures_it() {
    let body = nested();
    let a = ValueId::first(find(&body.graph, "a"));
    let captures: Vec<_> = body.graph.uses(a).collect();
    assert_eq!(captures.len(), 2);
    assert!(
        captures
            .iter()
            .all(|site| matches!(site.slot, Slot::Capture { .. }))
    );
    assert_eq!(body.graph.only_user(a), None);
}

#[test]
fn captures_follow_a_renamed_and_a_replaced_value_into_deeper_blocks() {
    let mut body = nested();
    let a = find(&body.graph, "a");
    let x = ValueId::first(body.graph.inputs()[0]);
    let mut rewriter = Rewriter::new(&mut body.graph, &mut body.names, "test", a, removable);
    rewriter
        .replace(ValueId::first(a), x)
        .expect("the types agree");
    rewriter.finish();
    let cond = body.graph.op(find(&body.graph, "y")).expect("it exists");
    for block in cond.blocks() {
        let (capture, source) = block.captures().next().expect("a capture");
        assert_eq!(source, x);
        assert_eq!(block.name(ValueId::first(capture)), "x");
    }
    let deep = cond.blocks()[1]
        .op(find(&cond.blocks()[1], "e"))
        .expect("it exists");
    let (capture, _) = deep.blocks()[0].captures().next().expect("a capture");
    assert_eq!(deep.blocks()[0].name(ValueId::first(capture)), "x");
}

#[test]
fn a_capture_that_a_block_no_longer_needs_is_no_use_of_the_outer_value() {
    let mut body = nested();
    let a = ValueId::first(find(&body.graph, "a"));
    let cond = find(&body.graph, "y");
    let mut block = body.graph.take_block(cond, 0).expect("a block");
    let b = find(&block, "b");
    let mut rewriter = Rewriter::new(&mut block, &mut body.names, "test", b, removable);
    let constant = rewriter.constant(Value::tensor(
        TensorType::fixed(DType::Float16, &[2]),
        TensorData::Bytes(vec![0; 4]),
    ));
    rewriter.bind(b, "x", Some(vec![Binding::Value(constant)]));
    rewriter.finish();
    body.graph.return_block(cond, 0, block);
    assert_eq!(body.graph.uses(a).count(), 1);
}

#[test]
fn ids_stay_valid_when_thousands_of_operations_are_erased() {
    let mut ops = vec![draft("relu", "shared", &[("x", "x")])];
    for index in 0..2000 {
        ops.push(draft("abs", &format!("dead_{index}"), &[("x", "shared")]));
    }
    ops.push(draft("exp", "y", &[("x", "shared")]));
    let mut body = body(ops, &["y"]).expect("a body");
    let y = find(&body.graph, "y");
    for node in body.graph.schedule().expect("no cycle").iter() {
        if !body.graph.is_used(*node) {
            Rewriter::new(&mut body.graph, &mut body.names, "test", *node, removable).finish();
        }
    }
    assert_eq!(order(&body.graph), ["shared", "y"]);
    assert_eq!(find(&body.graph, "y"), y);
    assert!(body.graph.dead_edges < 1000, "dead edges are swept");
    assert_eq!(verify::verify(&program(&body)), Ok(()));
}

#[test]
fn an_edge_that_no_argument_stands_for_does_not_verify() {
    let mut body = body(vec![draft("relu", "y", &[("x", "x")])], &["y"]).expect("a body");
    let edge = body.graph.store.edge_indices().next().expect("an edge");
    body.graph.store[edge] = Edge::Dead;
    let violation = verify::verify(&program(&body)).expect_err("a violation");
    assert!(violation.what.contains("disagree"), "{violation}");
}

#[test]
fn fresh_names_are_identifiers_that_nobody_has() {
    let mut names = Names::of(&nested().graph);
    assert_eq!(names.fresh("d"), "d_1");
    assert_eq!(names.fresh("d"), "d_2");
    assert_eq!(names.fresh("7 a.b"), "_7_a_b");
}

mod interface {
    use std::collections::BTreeMap;

    use super::super::*;

    /// `main(x, y) { z = add(x, y) } -> (z)`, for two opsets.
    fn program() -> Program {
        let ty = ValueType::Tensor(TensorType::fixed(DType::Float16, &[2]));
        let named = |name: &str| NamedType {
            name: name.to_owned(),
            ty: Some(ty.clone()),
        };
        let body = || {
            let mut builder = BodyBuilder::new();
            for name in ["x", "y"] {
                builder.input(named(name), InputOrigin::Function).unwrap();
            }
            let argument = |name: &str| {
                let binding = DraftBinding::Name(name.to_owned());
                (name.to_owned(), vec![binding])
            };
            let draft = OpDraft {
                op_type: "add".to_owned(),
                arguments: BTreeMap::from([argument("x"), argument("y")]),
                results: vec![named("z")],
                ..OpDraft::default()
            };
            builder.op(draft).unwrap();
            builder.finish(&["z".to_owned()], BTreeMap::new()).unwrap()
        };
        let bodies = ["CoreML7", "CoreML8"].map(|opset| (opset.to_owned(), body()));
        let main = Function {
            inputs: vec![named("x"), named("y")],
            opset: "CoreML8".to_owned(),
            specializations: BTreeMap::from(bodies),
            attributes: BTreeMap::new(),
        };
        Program {
            version: 1,
            functions: BTreeMap::from([("main".to_owned(), main)]),
            ..Program::default()
        }
    }

    fn inputs(program: &Program) -> Vec<Vec<String>> {
        let main = &program.functions["main"];
        let mut all = vec![main.inputs.iter().map(|input| input.name.clone()).collect()];
        for body in main.specializations.values() {
            let graph = &body.graph;
            let names = graph.inputs().iter();
            all.push(
                names
                    .map(|node| graph.name(ValueId::first(*node)).to_owned())
                    .collect(),
            );
        }
        all
    }

    #[test]
    fn inputs_come_and_go_in_the_function_and_in_every_body() {
        let mut program = program();
        let main = program.functions.get_mut("main").unwrap();
        let ty = main.inputs[0].ty.clone();
        let named = |name: &str| NamedType {
            name: name.to_owned(),
            ty: ty.clone(),
        };
        main.add_input(1, named("between")).unwrap();
        main.order_inputs(&[2, 0, 1]);
        main.rename_input("y", "why").unwrap();
        assert_eq!(inputs(&program), vec![vec!["why", "x", "between"]; 3]);
        let main = program.functions.get_mut("main").unwrap();
        main.remove_input("between").unwrap();
        main.rename_output(0, "sum").unwrap();
        assert_eq!(inputs(&program), vec![vec!["why", "x"]; 3]);
        verify::verify(&program).unwrap();
    }

    #[test]
    fn what_would_break_a_body_is_refused() {
        let mut program = program();
        assert_eq!(program.fresh_name("z"), "z_1");
        let main = program.functions.get_mut("main").unwrap();
        let taken = InterfaceError::NameTaken("z".to_owned());
        assert_eq!(main.rename_input("x", "z"), Err(taken.clone()));
        let named = NamedType {
            name: "z".to_owned(),
            ty: None,
        };
        assert_eq!(main.add_input(0, named), Err(taken));
        let used = InterfaceError::InUse("x".to_owned());
        assert_eq!(main.remove_input("x"), Err(used));
        let none = InterfaceError::NoInput("w".to_owned());
        assert_eq!(main.remove_input("w"), Err(none));
        assert_eq!(main.rename_output(1, "w"), Err(InterfaceError::NoOutput(1)));
        assert_eq!(inputs(&program), vec![vec!["x", "y"]; 3]);
    }
}
