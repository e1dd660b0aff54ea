"""Small sizes by the names that transformers' configurations give them."""

from typing import Any

LENGTH = 9
VOCABULARY = 99
_WIDTH = "hidden_size d_model n_embd dim embedding_size embed_dim hidden_dim_size encoder_hidden_size d_embed emb_dim"
_LAYERS = """
num_hidden_layers num_layers n_layer n_layers encoder_layers decoder_layers num_encoder_layers num_decoder_layers layers
encoder_num_hidden_layers decoder_num_hidden_layers
"""
_HEADS = """
num_attention_heads n_head n_heads num_heads encoder_attention_heads decoder_attention_heads attention_heads
encoder_num_attention_heads decoder_num_attention_heads num_local_heads
"""
_INNER = """
intermediate_size d_ff ffn_dim encoder_ffn_dim decoder_ffn_dim hidden_dim n_inner ffn_hidden_size feed_forward_size
"""
_EIGHT = """
kv_lora_rank q_lora_rank qk_rope_head_dim qk_nope_head_dim v_head_dim head_dim qk_head_dim linear_key_head_dim
linear_value_head_dim attention_head_size d_kv mamba_head_dim mamba_d_head
"""
_FOUR = """
num_experts num_local_experts n_routed_experts state_size mamba_d_state mamba_n_heads ssm_state_size moe_num_experts
mamba_d_ssm linear_num_value_heads mamba_num_heads mamba_dt_rank num_routed_experts
"""
_TWO = """
num_key_value_heads num_experts_per_tok moe_top_k moe_k n_groups linear_num_key_heads
"""
_ONE = "n_group topk_group first_k_dense_replace n_shared_experts num_shared_experts mamba_n_groups"
_SIXTEEN = "moe_intermediate_size shared_expert_intermediate_size expert_ffn_hidden_size moe_ffn_hidden_size"
_LONG = "max_position_embeddings n_positions max_seq_len max_sequence_length max_source_positions n_ctx"
SIZES: dict[str, Any] = {
    **dict.fromkeys(_WIDTH.split(), 32), **dict.fromkeys(_LAYERS.split(), 2), **dict.fromkeys(_HEADS.split(), 4),
    **dict.fromkeys(_INNER.split(), 48), **dict.fromkeys(_EIGHT.split(), 8), **dict.fromkeys(_FOUR.split(), 4),
    **dict.fromkeys(_TWO.split(), 2), **dict.fromkeys(_ONE.split(), 1), **dict.fromkeys(_SIXTEEN.split(), 16),
    **dict.fromkeys(_LONG.split(), 64), "vocab_size": VOCABULARY, "image_size": 32, "patch_size": 8,
    "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "num_labels": 3, "max_target_positions": 64,
    "num_mel_bins": 16, "use_cache": False,
}  # fmt: skip
# Only where the configuration has a whole number there, not ``None``.
_OPTIONAL = frozenset({"q_lora_rank", "n_inner", "head_dim", "num_key_value_heads"})

# Model types with as many keys as queries.
_ALIKE = frozenset({"esmc", "dots3_note"})
# By name of a class or of a model type.
OVERRIDES: dict[str, dict[str, Any]] = {
    "ministral": {"head_dim": 8},
    "hunyuan_v1_dense": {"head_dim": 8},
    "hunyuan_v1_moe": {"head_dim": 8},
    "nemotron": {"num_key_value_heads": 2},
    "gptj": {"rotary_dim": 4},
    "codegen": {"rotary_dim": 4},
    "gpt_neo": {"attention_types": [[["global", "local"], 1]]},
    "reformer": {
        "axial_pos_embds_dim": [8, 24],
        "axial_pos_shape": [3, 3],
        "attn_layers": ["local", "lsh"],
        "local_attn_chunk_length": 3,
        "lsh_attn_chunk_length": 3,
        "num_buckets": 2,
    },
    "layoutlmv3": {"coordinate_size": 5, "shape_size": 6, "visual_embed": False},
    "xmod": {"default_language": "en_XX"},
    "lilt": {"hidden_size": 48, "channel_shrink_ratio": 2},
    "bamba": {"mamba_n_heads": 8, "mamba_d_head": 8, "mamba_expand": 2},
    "zamba": {"layer_types": ["mamba", "hybrid"]},
    "zamba2": {"layer_types": ["mamba", "hybrid"]},
    "mistral4": {"head_dim": 16, "qk_rope_head_dim": 8},
    "roc_bert": {"pronunciation_vocab_size": 9, "shape_vocab_size": 9},
    "markuplm": {
        "max_tree_id_unit_embeddings": 9,
        "max_xpath_tag_unit_embeddings": 9,
        "max_xpath_subs_unit_embeddings": 9,
    },
    "luke": {"entity_vocab_size": 9, "entity_emb_size": 8},
    "ctrl": {"dff": 32},
    "funnel": {"block_sizes": [1, 1], "num_decoder_layers": 1, "d_head": 8, "d_inner": 32},
    "perceiver": {"d_latents": 32, "num_latents": 4, "num_self_attends_per_block": 1},
    "canine": {"local_transformer_stride": 9, "num_hash_buckets": 9},
    "convnext": {"hidden_sizes": [8, 8, 16, 16], "depths": [1, 1, 1, 1], "patch_size": 4},
    "convnextv2": {"hidden_sizes": [8, 8, 16, 16], "depths": [1, 1, 1, 1], "patch_size": 4},
    "swin": {"embed_dim": 16, "depths": [1, 1], "num_heads": [2, 2], "window_size": 4, "patch_size": 2},
    "swinv2": {"embed_dim": 16, "depths": [1, 1], "num_heads": [2, 2], "window_size": 4, "patch_size": 2},
    "donut-swin": {"embed_dim": 16, "depths": [1, 1], "num_heads": [2, 2], "window_size": 4, "patch_size": 2},
    "maskformer-swin": {
        "embed_dim": 16,
        "depths": [1, 1],
        "num_heads": [2, 2],
        "window_size": 4,
        "patch_size": 2,
    },
    "resnet": {"embedding_size": 8, "hidden_sizes": [8, 16], "depths": [1, 1], "layer_type": "basic"},
    "regnet": {"embedding_size": 8, "hidden_sizes": [8, 16], "depths": [1, 1], "groups_width": 8},
    "bit": {"embedding_size": 8, "hidden_sizes": [8, 16], "depths": [1, 1], "num_groups": 4},
    "poolformer": {"hidden_sizes": [8, 8, 8, 8], "depths": [1, 1, 1, 1]},
    "segformer": {
        "hidden_sizes": [8, 8, 16, 16],
        "depths": [1, 1, 1, 1],
        "decoder_hidden_size": 8,
        "num_attention_heads": [1, 1, 2, 2],
    },
    "pvt": {"hidden_sizes": [8, 8, 16, 16], "depths": [1, 1, 1, 1], "num_attention_heads": [1, 1, 2, 2]},
    "focalnet": {
        "embed_dim": 16,
        "depths": [1, 1],
        "focal_levels": [2, 2],
        "focal_windows": [3, 3],
        "patch_size": 2,
    },
    "cvt": {"embed_dim": [8, 16, 16], "depth": [1, 1, 1], "num_heads": [1, 2, 2]},
    "hiera": {"embed_dim": 8, "depths": [1, 1, 1, 1], "num_heads": [1, 1, 2, 2], "image_size": [64, 64]},
    "hgnet_v2": {"depths": [1, 1, 1, 1]},
    "mobilevitv2": {"patch_size": 2, "image_size": 64},
    "sew": {"conv_dim": [16, 16], "conv_kernel": [10, 5], "conv_stride": [5, 4], "squeeze_factor": 2},
    "sew-d": {"conv_dim": [16, 16], "conv_kernel": [10, 5], "conv_stride": [5, 4], "squeeze_factor": 2},
    "siglip2": {"vision_config": {}},
    "audio-spectrogram-transformer": {"max_length": 24, "num_mel_bins": 16},
    "longformer": {"attention_window": 4},
    "led": {"attention_window": 4},
    "yolos": {"image_size": [32, 32]},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"]},
    "zaya": {"num_experts_per_tok": 1},
    "mamba2": {"num_heads": 8, "head_dim": 8, "n_groups": 2},
    "t5gemma": {"is_encoder_decoder": False},
}
_SPEECH = {
    "conv_dim": [16, 16], "conv_kernel": [10, 5], "conv_stride": [5, 4], "num_feat_extract_layers": 2,
    "num_conv_pos_embeddings": 4, "num_conv_pos_embedding_groups": 2, "mask_time_prob": 0.0, "mask_feature_prob": 0.0,
    "classifier_proj_size": 16, "feat_extract_norm": "layer",
}  # fmt: skip
for _speech in (
    "wav2vec2", "hubert", "wavlm", "unispeech", "unispeech-sat", "data2vec-audio", "wav2vec2-conformer"
):  # fmt: skip
    OVERRIDES[_speech] = dict(_SPEECH)


def small_sizes(kind: Any, *, dropout: bool = False) -> dict[str, Any]:
    """The arguments that make a configuration small, also those inside it."""
    usual = kind().to_dict()
    found: dict[str, Any] = {"num_labels": 3}
    if usual.get("is_encoder_decoder"):
        found["decoder_start_token_id"] = 0
    for key, value in usual.items():
        if isinstance(value, float) and ("drop" in key and key != "drop_tokens"):
            if not dropout:
                found[key] = 0.0
        elif key in SIZES and isinstance(value, (int, type(None))) and not isinstance(value, bool):
            if value is not None or key not in _OPTIONAL:
                found[key] = SIZES[key]
        elif key == "use_cache":
            found[key] = False
    if "kv_lora_rank" in found or ("num_key_value_heads" in found and kind.model_type in _ALIKE):
        found["num_key_value_heads"] = found["num_attention_heads"]
    for key, inner in getattr(kind, "sub_configs", {}).items():
        if key in usual and isinstance(usual[key], dict) and hasattr(inner, "model_type") and inner.model_type:
            found[key] = small_sizes(inner, dropout=dropout)
    return found
