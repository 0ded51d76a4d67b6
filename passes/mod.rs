//! All passes: plain `mod` lines, one folder each, and the one static list.

use crate::pass::{Pass, Rule};

#[path = "quantization/bad-scale/mod.rs"]
mod bad_scale;
#[path = "placement/cpu-op/mod.rs"]
mod cpu_op;
#[path = "cleanup/dead-code/mod.rs"]
mod dead_code;
#[path = "cleanup/dedup-consts/mod.rs"]
mod dedup_consts;
#[path = "placement/eliminate-concat/mod.rs"]
mod eliminate_concat;
#[path = "attention/explicit-attention/mod.rs"]
mod explicit_attention;
#[path = "numerics/finite-masks/mod.rs"]
mod finite_masks;
#[path = "numerics/fix-modulo/mod.rs"]
mod fix_modulo;
#[path = "cleanup/fold-consts/mod.rs"]
mod fold_consts;
#[path = "numerics/fold-rsqrt-epsilon/mod.rs"]
mod fold_rsqrt_epsilon;
#[path = "cleanup/forward-slices/mod.rs"]
mod forward_slices;
#[path = "cleanup/fuse-casts/mod.rs"]
mod fuse_casts;
#[path = "cleanup/fuse-conv-bias/mod.rs"]
mod fuse_conv_bias;
#[path = "numerics/gelu-tanh/mod.rs"]
mod gelu_tanh;
#[path = "placement/linear-to-conv/mod.rs"]
mod linear_to_conv;
#[path = "state/merge-states/mod.rs"]
mod merge_states;
#[path = "placement/name-immediates/mod.rs"]
mod name_immediates;
#[path = "state/nudge-state-update/mod.rs"]
mod nudge_state_update;
#[path = "placement/order-interface/mod.rs"]
mod order_interface;
#[path = "state/pad-states/mod.rs"]
mod pad_states;
#[path = "numerics/pow-to-mul/mod.rs"]
mod pow_to_mul;
#[path = "numerics/precise-silu/mod.rs"]
mod precise_silu;
#[path = "cleanup/remove-noops/mod.rs"]
mod remove_noops;
#[path = "attention/rope-as-matmul/mod.rs"]
mod rope_as_matmul;
#[path = "numerics/safe-rmsnorm/mod.rs"]
mod safe_rmsnorm;
#[path = "state/shifted-state/mod.rs"]
mod shifted_state;
#[path = "numerics/sink-attention-scale/mod.rs"]
mod sink_attention_scale;
#[path = "attention/slice-queries/mod.rs"]
mod slice_queries;
#[path = "state/slice-updates/mod.rs"]
mod slice_updates;
#[path = "placement/specialize-shapes/mod.rs"]
mod specialize_shapes;
#[path = "placement/split-conv-bias/mod.rs"]
mod split_conv_bias;
#[path = "placement/split-wide-conv/mod.rs"]
mod split_wide_conv;
#[path = "numerics/stable-log-softmax/mod.rs"]
mod stable_log_softmax;
#[path = "numerics/stable-logsumexp/mod.rs"]
mod stable_logsumexp;
#[path = "numerics/stable-softplus/mod.rs"]
mod stable_softplus;
#[path = "state/state-accesses/mod.rs"]
mod state_accesses;
#[path = "placement/uniform-interface/mod.rs"]
mod uniform_interface;
#[path = "numerics/wide-topk-index/mod.rs"]
mod wide_topk_index;

/// Every pass, by family and then by id.
pub static ALL: &[&dyn Pass] = &[
    &dead_code::DeadCode,
    &dedup_consts::DedupConsts,
    &fold_consts::FoldConsts,
    &forward_slices::ForwardSlices,
    &fuse_casts::FuseCasts,
    &fuse_conv_bias::FuseConvBias,
    &remove_noops::RemoveNoops,
    &finite_masks::FiniteMasks,
    &fix_modulo::FixModulo,
    &fold_rsqrt_epsilon::FoldRsqrtEpsilon,
    &gelu_tanh::GeluTanh,
    &pow_to_mul::PowToMul,
    &precise_silu::PreciseSilu,
    &safe_rmsnorm::SafeRmsNorm,
    &sink_attention_scale::SinkAttentionScale,
    &stable_log_softmax::StableLogSoftmax,
    &stable_logsumexp::StableLogSumExp,
    &stable_softplus::StableSoftplus,
    &wide_topk_index::WideTopkIndex,
    &explicit_attention::ExplicitAttention,
    &rope_as_matmul::RopeAsMatmul,
    &slice_queries::SliceQueries,
    &merge_states::MergeStates,
    &nudge_state_update::NudgeStateUpdate,
    &pad_states::PadStates,
    &shifted_state::ShiftedState,
    &slice_updates::SliceUpdates,
    &state_accesses::StateAccesses,
    &cpu_op::CpuOp,
    &eliminate_concat::EliminateConcat,
    &linear_to_conv::LinearToConv,
    &name_immediates::NameImmediates,
    &order_interface::OrderInterface,
    &specialize_shapes::SpecializeShapes,
    &split_conv_bias::SplitConvBias,
    &split_wide_conv::SplitWideConv,
    &uniform_interface::UniformInterface,
    &bad_scale::BadScale,
];

/// The pass with this id.
pub fn by_id(id: &str) -> Option<&'static dyn Pass> {
    ALL.iter().copied().find(|pass| pass.meta().id == id)
}

/// The rule with this id, and the pass that it belongs to.
pub fn rule(id: &str) -> Option<(&'static dyn Pass, &'static Rule)> {
    ALL.iter()
        .flat_map(|pass| pass.rules().iter().map(|rule| (*pass, rule)))
        .find(|(_, rule)| rule.id == id)
}
