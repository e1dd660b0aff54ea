"""Arguments of Hugging Face trainers that were looked at: those that `refusals` has no rule for change nothing of
batches, clipping, noise or loss, or take part as they should."""

import dataclasses
from collections.abc import Iterator
from typing import Any, cast

from decrescendo.base.assumption import Assumption
from decrescendo.base.assumptions import assumed

# Of transformers 5.24 and trl 1.16.
_NAMES = """
output_dir per_device_train_batch_size num_train_epochs max_steps learning_rate lr_scheduler_kwargs warmup_steps
optim_args weight_decay adam_beta1 adam_beta2 adam_epsilon optim_target_modules average_tokens_across_devices bf16
bf16_full_eval fp16_full_eval tf32 activation_checkpointing gradient_checkpointing liger_kernel_config
torch_compile_backend torch_compile_mode use_cache neftune_noise_alpha torch_empty_cache_steps logging_strategy
logging_steps logging_first_step log_on_each_node logging_nan_inf_filter log_level log_level_replica disable_tqdm
report_to run_name project trackio_space_id trackio_bucket_id trackio_static_space_id eval_strategy eval_steps
eval_delay per_device_eval_batch_size prediction_loss_only eval_on_start eval_do_concat_batches eval_use_gather_object
eval_accumulation_steps include_for_metrics batch_eval_metrics save_only_model save_steps save_on_each_node
save_total_limit hub_token hub_private_repo hub_model_id hub_strategy hub_always_push hub_revision greater_is_better
ignore_data_skip restore_callback_states_from_checkpoint full_determinism seed data_seed use_cpu accelerator_config
dataloader_num_workers dataloader_pin_memory dataloader_persistent_workers dataloader_prefetch_factor
dataloader_multiprocessing_context dataloader_in_order remove_unused_columns label_names length_column_name
precompute_ref_log_probs precompute_ref_batch_size
ddp_find_unused_parameters ddp_bucket_cap_mb ddp_broadcast_buffers ddp_static_graph ddp_backend ddp_timeout
fsdp_config do_train do_eval do_predict resume_from_checkpoint local_rank model_init_kwargs trust_remote_code
chat_template_path dataset_text_field dataset_kwargs dataset_num_proc eos_token max_length truncation_mode
shuffle_dataset packing_strategy pad_to_multiple_of eval_packing completion_only_loss assistant_only_loss pad_token
warmup_ratio logging_dir save_safetensors overwrite_output_dir per_gpu_train_batch_size per_gpu_eval_batch_size
no_cuda use_mps_device jit_mode_eval use_ipex half_precision_backend fp16_opt_level fp16_backend tpu_num_cores
tpu_metrics_debug past_index push_to_hub_model_id push_to_hub_organization push_to_hub_token mp_parameters ray_scope
torchdynamo include_inputs_for_metrics evaluation_strategy include_tokens_per_second
"""
KNOWN = frozenset(_NAMES.split())


def unknown(arguments: Any, rules: frozenset[str]) -> Iterator[str]:
    """Names of arguments that the trainer's package has, nobody here has looked at, and that are not at their default.

    Args:
        arguments: a ``TrainingArguments``.
        rules: names that there is a rule for.
    """
    own = {
        name
        for kind in type(arguments).__mro__
        if kind.__module__.split(".")[0] in ("transformers", "trl")
        for name in vars(kind).get("__annotations__", {})
    }
    for field in dataclasses.fields(arguments) if dataclasses.is_dataclass(arguments) else ():
        if field.name not in own or field.name in KNOWN | rules:
            continue
        default = field.default
        if field.default_factory is not dataclasses.MISSING:
            default = cast("Any", field.default_factory)()
        if getattr(arguments, field.name) != default:
            yield field.name


def assumed_of(names: list[str]) -> Assumption | None:
    """What is assumed of arguments that nobody here has looked at; `None` where there are none."""
    return assumed("unknown-arguments", ", ".join(names)) if names else None
