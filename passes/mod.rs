//! All passes: plain `mod` lines, one folder each, and the one static list.

use crate::pass::{Pass, Rule};

#[path = "numerics/accumulator-range/mod.rs"]
mod accumulator_range;
#[path = "quantization/activation-quantization/mod.rs"]
mod activation_quantization;
#[path = "quantization/bad-scale/mod.rs"]
mod bad_scale;
#[path = "integrity/blob-integrity/mod.rs"]
mod blob_integrity;
#[path = "attention/blocked-softmax/mod.rs"]
mod blocked_softmax;
#[path = "quantization/blockwise-scale/mod.rs"]
mod blockwise_scale;
#[path = "numerics/clamp-residual/mod.rs"]
mod clamp_residual;
#[path = "integrity/constant-output/mod.rs"]
mod constant_output;
#[path = "placement/conv-limits/mod.rs"]
mod conv_limits;
#[path = "placement/cpu-op/mod.rs"]
mod cpu_op;
#[path = "cleanup/dead-code/mod.rs"]
mod dead_code;
#[path = "cleanup/dedup-consts/mod.rs"]
mod dedup_consts;
#[path = "integrity/duplicate-weights/mod.rs"]
mod duplicate_weights;
#[path = "placement/element-types/mod.rs"]
mod element_types;
#[path = "placement/eliminate-concat/mod.rs"]
mod eliminate_concat;
#[path = "attention/explicit-attention/mod.rs"]
mod explicit_attention;
#[path = "numerics/final-norm-in-chunk/mod.rs"]
mod final_norm_in_chunk;
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
#[path = "placement/image-scale/mod.rs"]
mod image_scale;
#[path = "placement/interface-layout/mod.rs"]
mod interface_layout;
#[path = "integrity/interface-mismatch/mod.rs"]
mod interface_mismatch;
#[path = "numerics/keep-fp32/mod.rs"]
mod keep_fp32;
#[path = "quantization/large-kernel-palette/mod.rs"]
mod large_kernel_palette;
#[path = "placement/layout-limits/mod.rs"]
mod layout_limits;
#[path = "placement/linear-to-conv/mod.rs"]
mod linear_to_conv;
#[path = "numerics/lost-guard/mod.rs"]
mod lost_guard;
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
#[path = "numerics/power-spectrum-log/mod.rs"]
mod power_spectrum_log;
#[path = "numerics/precise-silu/mod.rs"]
mod precise_silu;
#[path = "placement/program-size/mod.rs"]
mod program_size;
#[path = "cleanup/remove-noops/mod.rs"]
mod remove_noops;
#[path = "attention/rope-as-matmul/mod.rs"]
mod rope_as_matmul;
#[path = "numerics/round-large/mod.rs"]
mod round_large;
#[path = "attention/runtime-trig/mod.rs"]
mod runtime_trig;
#[path = "numerics/safe-rmsnorm/mod.rs"]
mod safe_rmsnorm;
#[path = "numerics/sanitize-weights/mod.rs"]
mod sanitize_weights;
#[path = "numerics/scale-residual/mod.rs"]
mod scale_residual;
#[path = "attention/sdpa-rank/mod.rs"]
mod sdpa_rank;
#[path = "attention/several-global-sdpa/mod.rs"]
mod several_global_sdpa;
#[path = "integrity/shape-mismatch/mod.rs"]
mod shape_mismatch;
#[path = "state/shifted-state/mod.rs"]
mod shifted_state;
#[path = "quantization/signed-affine/mod.rs"]
mod signed_affine;
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
#[path = "placement/tensor-limits/mod.rs"]
mod tensor_limits;
#[path = "placement/uniform-interface/mod.rs"]
mod uniform_interface;
#[path = "numerics/wide-reduction/mod.rs"]
mod wide_reduction;
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
    &accumulator_range::AccumulatorRange,
    &clamp_residual::ClampResidual,
    &final_norm_in_chunk::FinalNormInChunk,
    &finite_masks::FiniteMasks,
    &fix_modulo::FixModulo,
    &fold_rsqrt_epsilon::FoldRsqrtEpsilon,
    &gelu_tanh::GeluTanh,
    &keep_fp32::KeepFp32,
    &lost_guard::LostGuard,
    &pow_to_mul::PowToMul,
    &power_spectrum_log::PowerSpectrumLog,
    &precise_silu::PreciseSilu,
    &round_large::RoundLarge,
    &safe_rmsnorm::SafeRmsNorm,
    &sanitize_weights::SanitizeWeights,
    &scale_residual::ScaleResidual,
    &sink_attention_scale::SinkAttentionScale,
    &stable_log_softmax::StableLogSoftmax,
    &stable_logsumexp::StableLogSumExp,
    &stable_softplus::StableSoftplus,
    &wide_reduction::WideReduction,
    &wide_topk_index::WideTopkIndex,
    &blocked_softmax::BlockedSoftmax,
    &explicit_attention::ExplicitAttention,
    &rope_as_matmul::RopeAsMatmul,
    &runtime_trig::RuntimeTrig,
    &sdpa_rank::SdpaRank,
    &several_global_sdpa::SeveralGlobalSdpa,
    &slice_queries::SliceQueries,
    &merge_states::MergeStates,
    &nudge_state_update::NudgeStateUpdate,
    &pad_states::PadStates,
    &shifted_state::ShiftedState,
    &slice_updates::SliceUpdates,
    &state_accesses::StateAccesses,
    &conv_limits::ConvLimits,
    &cpu_op::CpuOp,
    &element_types::ElementTypes,
    &eliminate_concat::EliminateConcat,
    &image_scale::ImageScale,
    &interface_layout::InterfaceLayout,
    &layout_limits::LayoutLimits,
    &linear_to_conv::LinearToConv,
    &name_immediates::NameImmediates,
    &order_interface::OrderInterface,
    &program_size::ProgramSize,
    &specialize_shapes::SpecializeShapes,
    &split_conv_bias::SplitConvBias,
    &split_wide_conv::SplitWideConv,
    &tensor_limits::TensorLimits,
    &uniform_interface::UniformInterface,
    &activation_quantization::ActivationQuantization,
    &bad_scale::BadScale,
    &blockwise_scale::BlockwiseScale,
    &large_kernel_palette::LargeKernelPalette,
    &signed_affine::SignedAffine,
    &blob_integrity::BlobIntegrity,
    &constant_output::ConstantOutput,
    &duplicate_weights::DuplicateWeights,
    &interface_mismatch::InterfaceMismatch,
    &shape_mismatch::ShapeMismatch,
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
