"""verl rollout ``hf``: a transformers model in a Ray actor.

For machines without accelerator: half the installation and memory of vLLM, and a start-up of seconds. One
replica is one actor (`HFServer`), reached by token ids only; there is no HTTP endpoint.
"""

from __future__ import annotations

import asyncio
import os
import sys
import traceback
from collections.abc import AsyncIterator, Iterator, Mapping
from typing import Any

import ray
import torch
from verl.utils.config import omega_conf_to_dataclass
from verl.utils.tokenizer import normalize_token_ids
from verl.workers.config import HFModelConfig
from verl.workers.rollout.base import BaseRollout
from verl.workers.rollout.replica import RolloutReplica, TokenOutput
from verl.workers.rollout.utils import ensure_async_iterator

from verl_ext.cpu.hf_sampling import Request, Result, decode, parse_sampling_params

#: A batch is closed when no request has come for this long (seconds) ...
QUIET = 0.004
#: ... or after this long in any case.
MAX_WAIT = 0.1


def _refuse_unsupported(config: Any, model_config: Any) -> None:
    """Say at start-up what this rollout cannot do."""
    for name, value, allowed in (
        ("rollout.tensor_model_parallel_size", config.tensor_model_parallel_size, (1,)),
        ("rollout.data_parallel_size", config.data_parallel_size, (1,)),
        ("rollout.pipeline_model_parallel_size", config.pipeline_model_parallel_size, (1,)),
        ("rollout.dtype", config.dtype, ("float32", "fp32", "bfloat16", "bf16")),
        ("rollout.logprobs_mode", config.logprobs_mode, ("processed_logprobs", "raw_logprobs", None)),
        ("rollout.quantization", config.quantization, (None,)),
        ("rollout.repetition_penalty", config.repetition_penalty, (1.0,)),
        ("rollout.full_determinism", config.full_determinism, (False,)),
        ("rollout.enable_rollout_routing_replay", config.enable_rollout_routing_replay, (False,)),
        ("model.lora_rank", model_config.lora_rank, (0,)),
    ):
        if value not in allowed:
            raise ValueError(
                f"hf rollout: actor_rollout_ref.{name}={value!r} is not supported; use "
                f"{' or '.join(repr(a) for a in allowed)}, or actor_rollout_ref.rollout.name=vllm."
            )


class HFServer:
    """Async Ray actor that owns the model. Requests that arrive together are decoded as one batch."""

    def __init__(self, config: Any, model_config: Any, replica_rank: int) -> None:
        torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
        from transformers import AutoModelForCausalLM

        self.config = omega_conf_to_dataclass(config)
        self.model_config = omega_conf_to_dataclass(model_config, dataclass_type=HFModelConfig)
        _refuse_unsupported(self.config, self.model_config)
        dtype = torch.float32 if self.config.dtype in ("float32", "fp32") else torch.bfloat16
        self.model = AutoModelForCausalLM.from_pretrained(
            self.model_config.local_path,
            dtype=dtype,
            attn_implementation="sdpa",
            trust_remote_code=self.model_config.trust_remote_code,
        ).eval()
        tokenizer = self.model_config.tokenizer
        self.vocab_size = len(tokenizer)
        declared = self.model.generation_config.eos_token_id
        eos = declared if isinstance(declared, list) else [declared]
        self.eos_token_ids = frozenset(t for t in [*eos, tokenizer.eos_token_id] if t is not None)
        self.generator = torch.Generator().manual_seed(int(self.config.seed) + replica_rank)
        self.global_steps: int | None = None
        self.arrived: set[str] = set()
        self.queue: list[tuple[Request, asyncio.Future[Result]]] = []
        self.model_lock = asyncio.Lock()
        self.batcher: asyncio.Task[None] | None = None
        self.admitting = asyncio.Event()
        self.admitting.set()
        self.abort = False

    # -- weights ---------------------------------------------------------------------------------------------

    async def load_weights(self, named: Mapping[str, torch.Tensor]) -> None:
        """Write part of a new set of weights. `finish_weights` checks that the parts were complete."""
        async with self.model_lock:
            own = self.model.state_dict()
            for name, value in named.items():
                if name not in own:
                    raise KeyError(f"hf rollout: the trainer sent weight {name!r}, which the model does not have.")
                if own[name].shape != value.shape:
                    raise ValueError(
                        f"hf rollout: weight {name!r} has shape {tuple(own[name].shape)} in the rollout and "
                        f"{tuple(value.shape)} in the trainer."
                    )
                own[name].detach().copy_(value)
            self.arrived.update(named)

    async def finish_weights(self, global_steps: int | None = None) -> None:
        """End of a set of weights; every weight, or one that shares its storage, must have come."""
        async with self.model_lock:
            own = self.model.state_dict()
            # Tied embeddings are two names for one storage; the trainer may send either or both.
            storages = {own[name].data_ptr() for name in self.arrived}
            missing = [name for name, tensor in own.items() if tensor.data_ptr() not in storages]
            self.arrived.clear()
            if missing:
                raise RuntimeError(
                    f"hf rollout: the trainer sent no value for {len(missing)} weights ({', '.join(missing[:5])}"
                    f"{', ...' if len(missing) > 5 else ''}); the rollout would go on with stale ones."
                )
            self.global_steps = global_steps

    async def set_global_steps(self, global_steps: int | None) -> None:
        self.global_steps = global_steps

    # -- generation ------------------------------------------------------------------------------------------

    async def generate(
        self,
        prompt_ids: Any,
        sampling_params: Mapping[str, Any],
        request_id: str,
        image_data: Any = None,
        video_data: Any = None,
        audio_data: Any = None,
        **_unused: Any,
    ) -> TokenOutput:
        """Continue one prompt. An error in the batch it falls into is raised here."""
        if any(data for data in (image_data, video_data, audio_data)):
            raise ValueError("hf rollout: images, video and audio are not supported; use rollout.name=vllm.")
        prompt_ids = normalize_token_ids(prompt_ids)
        request = parse_sampling_params(
            {"ignore_eos": self.config.ignore_eos, **sampling_params},
            prompt_ids=prompt_ids,
            default_max_tokens=min(
                self.config.response_length,
                self.config.prompt_length + self.config.response_length - len(prompt_ids),
            ),
            max_model_len=self.config.max_model_len,
        )
        await self.admitting.wait()
        future: asyncio.Future[Result] = asyncio.get_running_loop().create_future()
        self.queue.append((request, future))
        if self.batcher is None or self.batcher.done():
            self.batcher = asyncio.create_task(self._decode_queue())
        result = await future
        return TokenOutput(
            token_ids=result.token_ids,
            log_probs=result.log_probs if request.logprobs else None,
            stop_reason=result.stop_reason,
            extra_fields={"global_steps": self.global_steps},
        )

    async def _decode_queue(self) -> None:
        while self.queue:
            await self._gather_requests()
            async with self.model_lock:
                taken = self.queue[: self.config.max_num_seqs]
                del self.queue[: len(taken)]
                try:
                    results = await asyncio.to_thread(
                        decode,
                        self.model,
                        [request for request, _ in taken],
                        eos_token_ids=self.eos_token_ids,
                        generator=self.generator,
                        vocab_size=self.vocab_size,
                        raw_log_probs=self.config.logprobs_mode == "raw_logprobs",
                        aborted=lambda: self.abort,
                    )
                except Exception as error:
                    # verl turns a failed request into a failed rollout, and its cause is easily lost.
                    traceback.print_exc(file=sys.stderr)
                    for _, future in taken:
                        if not future.done():
                            future.set_exception(error)
                    continue
                for (_, future), result in zip(taken, results, strict=True):
                    if not future.done():
                        future.set_result(result)

    async def _gather_requests(self) -> None:
        """Wait until requests stop arriving, so that a batch of prompts is decoded as one."""
        deadline = asyncio.get_running_loop().time() + MAX_WAIT
        seen = -1
        while seen != len(self.queue) and asyncio.get_running_loop().time() < deadline:
            seen = len(self.queue)
            await asyncio.sleep(QUIET)

    # -- control ---------------------------------------------------------------------------------------------

    async def ready(self) -> bool:
        return True

    async def abort_all_requests(self, reject_request: bool = False) -> dict[str, Any]:
        """Stop generating; requests in flight return what they have. New ones wait for `resume_generation`."""
        self.admitting.clear()
        self.abort = True
        if self.batcher is not None:
            await self.batcher
        self.abort = False
        return {"aborted_count": 0, "request_ids": []}

    async def resume_generation(self) -> None:
        self.admitting.set()

    async def nothing(self, *_args: Any, **_kwargs: Any) -> None:
        """Memory and profiling calls that have no meaning for this rollout."""

    sleep = wake_up = clear_kv_cache = release_kv_cache = resume_kv_cache = nothing
    start_profile = stop_profile = nothing


def server_name(replica_rank: int, suffix: str = "") -> str:
    return f"hf_server_{replica_rank}_0{suffix}"


class HFReplica(RolloutReplica):
    """Starts one `HFServer`."""

    async def launch_servers(self) -> None:
        server = (
            ray.remote(HFServer)
            .options(
                name=server_name(self.replica_rank, self.name_suffix),
                num_cpus=0,
                max_concurrency=self.max_concurrency,
            )
            .remote(self.config, self.model_config, self.replica_rank)
        )
        await server.ready.remote()
        self.servers = [server]
        self._server_handle = server
        self._server_address = server_name(self.replica_rank, self.name_suffix)  # an id, not an address


class HFServerAdapter(BaseRollout):
    """Lives in the training worker and hands its weights to the server."""

    def __init__(self, config: Any, model_config: Any, device_mesh: Any, replica_rank: int = -1) -> None:
        super().__init__(config, model_config, device_mesh)
        # One rank is one replica: other layouts were refused by the server.
        self.replica_rank = int(os.environ["RANK"]) if replica_rank == -1 else replica_rank
        self._server: Any = None

    @property
    def server(self) -> Any:
        if self._server is None:  # started after the workers
            self._server = ray.get_actor(server_name(self.replica_rank))
        return self._server

    async def resume(self, tags: list[str]) -> None:
        pass

    async def release(self) -> None:
        pass

    async def update_weights(
        self,
        weights: Iterator[tuple[str, torch.Tensor]] | AsyncIterator[tuple[str, torch.Tensor]],
        global_steps: int | None = None,
        wire_format: str = "named_tensors",
        peft_config: Any = None,
        **_unused: Any,
    ) -> None:
        if wire_format != "named_tensors" or peft_config is not None:
            raise NotImplementedError(
                f"hf rollout: can only take whole weights; got wire_format={wire_format!r}, "
                f"peft_config={peft_config!r}. Use rollout.name=vllm, or model.lora.merge=True."
            )
        limit = self.config.checkpoint_engine.update_weights_bucket_megabytes * 2**20
        bucket: dict[str, torch.Tensor] = {}
        size = 0
        # Every rank must drain the iterator: each item is an all-gather.
        async for name, tensor in ensure_async_iterator(weights):
            bucket[name] = tensor.detach().to("cpu", copy=True)
            size += tensor.numel() * tensor.element_size()
            if size >= limit:
                await self.server.load_weights.remote(bucket)
                bucket, size = {}, 0
        if bucket:
            await self.server.load_weights.remote(bucket)
        await self.server.finish_weights.remote(global_steps)
