//! Expected values by the recurrences themselves, mostly with linear activations and weights with
//! which they can be followed by hand.

use crate::ops::Opset;
use crate::ops::evaluate::trial::{Trial, assert_close, floats};

fn results(trial: &Trial) -> Vec<Vec<f64>> {
    trial
        .run()
        .unwrap()
        .iter()
        .map(|result| result.as_tensor().unwrap().to_f64().unwrap())
        .collect()
}

/// One input, one state, three steps 1, 10, 100 of one sequence.
fn steps(op_type: &'static str) -> Trial {
    Trial::of(op_type)
        .with("x", floats(&[3, 1, 1], &[1., 10., 100.]))
        .text("activation", "linear")
}

/// h ← x + h / 2, from h = 4 on.
fn rnn() -> Trial {
    steps("rnn")
        .with("initial_h", floats(&[1, 1], &[4.]))
        .with("weight_ih", floats(&[1, 1], &[1.]))
        .with("weight_hh", floats(&[1, 1], &[0.5]))
}

#[test]
fn a_simple_layer_gives_the_last_step_or_every_step() {
    assert_eq!(results(&rnn()), [[105.75], [105.75]]);
    let every = results(&rnn().bool("output_sequence", true));
    assert_eq!(every, [vec![3., 11.5, 105.75], vec![105.75]]);
    let biased = results(&rnn().with("bias", floats(&[1], &[1.])));
    assert_eq!(biased, [[107.5], [107.5]]);
}

#[test]
fn a_reversed_layer_gives_its_steps_in_the_order_of_computation() {
    let reversed = rnn()
        .text("direction", "reverse")
        .bool("output_sequence", true);
    assert_eq!(results(&reversed), [vec![102., 61., 31.5], vec![31.5]]);
    rnn().text("direction", "bidirectional").error();
}

#[test]
fn the_rows_of_a_batch_and_of_the_weights_do_not_mix() {
    // Two sequences of one step, two states: h = W·x + R·h.
    let trial = Trial::of("rnn")
        .with("x", floats(&[1, 2, 3], &[1., 2., 3., 4., 5., 6.]))
        .with("initial_h", floats(&[2, 2], &[1., 0., 0., 1.]))
        .with("weight_ih", floats(&[2, 3], &[1., 0., 0., 0., 1., 1.]))
        .with("weight_hh", floats(&[2, 2], &[10., 20., 30., 40.]))
        .text("activation", "linear");
    assert_eq!(results(&trial)[1], [11., 35., 24., 51.]);
}

/// A layer whose gates depend on their biases alone but for the cell gate, which is x + h:
/// input gate 0.5, forget gate 0.25, output gate 2.
fn lstm() -> Trial {
    steps("lstm")
        .with("weight_ih", floats(&[4, 1], &[0., 0., 0., 1.]))
        .with("weight_hh", floats(&[4, 1], &[0., 0., 0., 1.]))
        .with("bias", floats(&[4], &[0.5, 0.25, 2., 0.]))
        .text("recurrent_activation", "linear")
        .text("cell_activation", "linear")
        .bool("output_sequence", true)
}

fn one_way() -> Trial {
    lstm()
        .with("initial_h", floats(&[1, 1], &[1.]))
        .with("initial_c", floats(&[1, 1], &[4.]))
}

#[test]
fn the_gates_are_input_forget_output_cell() {
    // c = 4/4 + (1 + 1)/2 = 2, h = 4; c = 2/4 + (10 + 4)/2 = 7.5, h = 15;
    // c = 7.5/4 + (100 + 15)/2 = 59.375, h = 118.75.
    assert_eq!(
        results(&one_way()),
        [vec![4., 15., 118.75], vec![118.75], vec![59.375]]
    );
}

#[test]
fn clip_holds_the_cell_state_before_the_output() {
    // c = 2, h = 4; c = 7.5 becomes 3, h = 6; c = 3/4 + (100 + 6)/2 becomes 3.
    let clipped = results(&one_way().float("clip", 3.));
    assert_eq!(clipped, [vec![4., 6., 6.], vec![6.], vec![3.]]);
}

#[test]
fn peepholes_see_the_old_cell_state_and_the_output_gate_the_new_one() {
    // First step: input 0.5 + 4, forget 0.25 + 2·4, c = 8.25·4 + 4.5·2 = 42,
    // output 2 + 3·42, h = 128·42.
    let trial = one_way().with("peephole", floats(&[3], &[1., 2., 3.]));
    assert_eq!(results(&trial)[0][0], 5376.);
}

#[test]
fn the_backward_half_stands_at_its_own_steps() {
    // Backward: input 1, forget 0, output 1, cell x: h is x itself, plus h of the step behind.
    let trial = lstm()
        .text("direction", "bidirectional")
        .with("initial_h", floats(&[1, 2], &[1., 1000.]))
        .with("initial_c", floats(&[1, 2], &[4., 0.]))
        .with("weight_ih_back", floats(&[4, 1], &[0., 0., 0., 1.]))
        .with("weight_hh_back", floats(&[4, 1], &[0., 0., 0., 1.]))
        .with("bias_back", floats(&[4], &[1., 0., 1., 0.]));
    let found = results(&trial);
    assert_eq!(found[0], [4., 1111., 15., 1110., 118.75, 1100.]);
    assert_eq!(found[1], [118.75, 1111.]);
    assert_eq!(found[2], [59.375, 1111.]);
}

/// Reset gate 0.5, update gate 0.25, from h = 8 on; the output gate is x + 2·(…) + 3.
fn gru() -> Trial {
    Trial::of("gru")
        .with("x", floats(&[1, 1, 1], &[1.]))
        .with("initial_h", floats(&[1, 1], &[8.]))
        .with("weight_ih", floats(&[3, 1], &[0., 1., 0.]))
        .with("weight_hh", floats(&[3, 1], &[0., 2., 0.]))
        .with("bias", floats(&[3], &[0.5, 3., 0.25]))
        .text("activation", "linear")
        .text("recurrent_activation", "linear")
}

#[test]
fn the_gates_are_reset_output_update() {
    // o = 1 + 2·(0.5·8) + 3 = 12, h = 0.75·12 + 0.25·8.
    assert_eq!(results(&gru()), [[11.], [11.]]);
}

#[test]
fn reset_after_takes_the_bias_into_the_reset() {
    // o = 1 + 7 + 0.5·(2·8 + 3) = 17.5, h = 0.75·17.5 + 0.25·8; the other gates get 0 of b′.
    let after = gru()
        .opset(Opset::CoreML8)
        .bool("reset_after", true)
        .with("input_bias", floats(&[3], &[0., 7., 0.]));
    assert_eq!(results(&after)[1], [15.125]);
}

#[test]
fn activations_are_their_standard_forms() {
    let of = |word: &str, x: f32| {
        let trial = Trial::of("rnn")
            .with("x", floats(&[1, 1, 1], &[x]))
            .with("initial_h", floats(&[1, 1], &[0.]))
            .with("weight_ih", floats(&[1, 1], &[1.]))
            .with("weight_hh", floats(&[1, 1], &[0.]))
            .text("activation", word);
        results(&trial)[1][0]
    };
    assert_close(&[of("tanh", 1.)], &[1f64.tanh()], 1e-6);
    assert_close(&[of("scaled_tanh", 1.)], &[1f64.tanh()], 1e-6);
    assert_close(&[of("sigmoid", 1.)], &[1. / (1. + (-1f64).exp())], 1e-6);
    assert_eq!(of("relu", -2.), 0.);
    assert!(of("relu", f32::NAN).is_nan());
    assert_close(&[of("hard_sigmoid", 1.)], &[0.7], 1e-6);
    assert_eq!(of("sigmoid_hard", 9.), 1.);
    assert_eq!(of("sigmoid", -1000.), 0.);
}

#[test]
fn weights_that_do_not_fit_are_errors() {
    Trial::of("rnn")
        .with("x", floats(&[1, 1, 1], &[1.]))
        .with("initial_h", floats(&[1, 1], &[0.]))
        .with("weight_ih", floats(&[1, 1], &[1.]))
        .with("weight_hh", floats(&[1, 1], &[0.]))
        .text("activation", "gelu")
        .error();
    let with = |h: &[usize], ih: &[usize], hh: &[usize]| {
        let tensor = |shape: &[usize]| floats(shape, &vec![0.; shape.iter().product()]);
        Trial::of("gru")
            .with("x", tensor(&[2, 1, 3]))
            .with("initial_h", tensor(h))
            .with("weight_ih", tensor(ih))
            .with("weight_hh", tensor(hh))
    };
    assert!(with(&[1, 2], &[6, 3], &[6, 2]).run().is_ok());
    with(&[1, 3], &[6, 3], &[6, 2]).error();
    with(&[0, 2], &[6, 3], &[6, 2]).error();
    with(&[1, 2], &[6, 2], &[6, 2]).error();
    with(&[1, 2], &[6, 3], &[4, 2]).error();
    with(&[1, 2], &[6, 3], &[6]).error();
    one_way().with("peephole", floats(&[2], &[1., 2.])).error();
}

#[test]
fn rows_of_states_beyond_the_batch_do_not_count() {
    let trial = Trial::of("rnn")
        .with("x", floats(&[1, 1, 1], &[1.]))
        .with("initial_h", floats(&[2, 1], &[4., 100.]))
        .with("weight_ih", floats(&[1, 1], &[1.]))
        .with("weight_hh", floats(&[1, 1], &[0.5]))
        .text("activation", "linear");
    assert_eq!(results(&trial), [[3.], [3.]]);
}

#[test]
fn no_step_leaves_the_first_state() {
    let trial = Trial::of("rnn")
        .with("x", floats(&[0, 1, 1], &[]))
        .with("initial_h", floats(&[1, 1], &[4.]))
        .with("weight_ih", floats(&[1, 1], &[1.]))
        .with("weight_hh", floats(&[1, 1], &[0.5]));
    assert_eq!(results(&trial), [[4.], [4.]]);
    assert_eq!(
        results(&trial.bool("output_sequence", true)),
        [vec![], vec![4.]]
    );
}
