"""vLLM's CPU build with batches that overlap, as a GPU has them: the next step is scheduled while the last one still runs.

The CPU platform switches that off; this switches it on again and then starts the server. Set HMAS_VLLM_OVERLAP=1 to have the tests use it.
It runs in vLLM's environment.
"""

import runpy

if __name__ == "__main__":
    from vllm.platforms.cpu import CpuPlatform

    stock = CpuPlatform.check_and_update_config

    def overlapping(vllm_config):
        stock(vllm_config)
        vllm_config.scheduler_config.async_scheduling = True

    CpuPlatform.check_and_update_config = staticmethod(overlapping)
    runpy.run_module("vllm.entrypoints.openai.api_server", run_name="__main__", alter_sys=True)
