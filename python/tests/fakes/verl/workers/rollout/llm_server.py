"""The client of the rollout servers."""

from typing import Any, Optional
from uuid import uuid4

from verl.workers.rollout.replica import TokenOutput


class LLMServerClient:
    def __init__(self, config: Any, load_balancer_handle: Any = None, **kwargs: Any):
        self.config = config
        self._load_balancer = load_balancer_handle

    async def generate(
        self,
        request_id,
        *,
        prompt_ids: list[int],
        sampling_params: dict[str, Any],
        image_data: Optional[list[Any]] = None,
        video_data: Optional[list[Any]] = None,
        audio_data: Optional[list[Any]] = None,
        mm_processor_kwargs: Optional[dict[str, Any]] = None,
        **kwargs: Any,
    ) -> TokenOutput:
        server_id, server = await self._load_balancer.acquire_server.remote(request_id=request_id)
        try:
            output: TokenOutput = await server.generate.remote(
                request_id=uuid4().hex,
                prompt_ids=prompt_ids,
                sampling_params=sampling_params,
                image_data=image_data,
                video_data=video_data,
            )
        finally:
            self._load_balancer.release_server.remote(server_id=server_id)
        step = output.extra_fields.get("global_steps")
        output.extra_fields.setdefault("min_global_steps", step)
        output.extra_fields.setdefault("max_global_steps", step)
        return output
