"""Builds a tiny random-weight Qwen3 model directory that a real vLLM serves on a CPU. No downloads.

    python scripts/build_tiny_model.py build/tiny-model

Needs torch, transformers and tokenizers (vLLM's environment has them). What it says is noise; what it costs is real: 4 layers, hidden
size 256, 8 query and 2 KV heads, a byte-level BPE vocabulary of 8184 tokens trained on this repository's own texts.
"""

import argparse
import itertools
import sys
from collections.abc import Iterator
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

ROOT = Path(__file__).resolve().parent.parent
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
VOCABULARY = 8184
MAX_POSITIONS = 8192

CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n"
    "{% if message['content'] is string %}{{ message['content'] }}"
    "{% else %}{% for part in message['content'] %}{{ part['text'] }}{% endfor %}{% endif %}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def texts() -> Iterator[str]:
    """What the vocabulary is trained on: this repository's documents and sources, and invented words to fill it up."""
    for pattern in ("*.md", "docs/**/*.md", "*/**/*.py"):
        for path in sorted(ROOT.glob(pattern)):
            if not {".venv", "build"} & set(path.relative_to(ROOT).parts):
                yield path.read_text(encoding="utf-8")
    heads = ["ba", "ce", "dri", "fo", "gla", "hu", "ji", "ke", "lo", "mar", "ne", "pla", "qui", "ro", "sta", "tre", "vo", "wi", "ya", "zen"]
    tails = [
        "ble",
        "ction",
        "der",
        "fy",
        "ging",
        "hood",
        "ing",
        "ket",
        "lation",
        "ment",
        "ness",
        "or",
        "pling",
        "rous",
        "sion",
        "ty",
        "ure",
    ]
    for first, second in itertools.product(heads, heads):
        yield " ".join(f"{first}{second}{tail}" for tail in tails for _ in range(3))


def byte_pairs(vocabulary: int, special: list[str]) -> Tokenizer:
    """A byte-level BPE tokenizer of at most `vocabulary` tokens, trained on this repository's own texts."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=vocabulary, special_tokens=special, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(texts(), trainer)
    return tokenizer


def chat_tokenizer(pairs: Tokenizer, max_tokens: int) -> PreTrainedTokenizerFast:
    """The same with Qwen's special tokens (`SPECIAL`, which it must have) and a chat template."""
    fast = PreTrainedTokenizerFast(
        tokenizer_object=pairs, eos_token="<|im_end|>", pad_token="<|endoftext|>", additional_special_tokens=["<|im_start|>"]
    )
    fast.chat_template = CHAT_TEMPLATE
    fast.model_max_length = max_tokens
    return fast


def build_tokenizer() -> PreTrainedTokenizerFast:
    """A chat tokenizer with exactly `VOCABULARY` tokens."""
    pairs = byte_pairs(VOCABULARY, SPECIAL)
    if pairs.get_vocab_size() != VOCABULARY:
        raise SystemExit(f"the texts gave {pairs.get_vocab_size()} tokens instead of {VOCABULARY}")
    return chat_tokenizer(pairs, MAX_POSITIONS)


def build_model(end: int, padding: int) -> Qwen3ForCausalLM:
    """The model with seeded random weights."""
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=VOCABULARY,
        hidden_size=256,
        intermediate_size=768,
        num_hidden_layers=4,
        num_attention_heads=8,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=MAX_POSITIONS,
        tie_word_embeddings=True,
        bos_token_id=padding,
        eos_token_id=end,
        pad_token_id=padding,
    )
    return Qwen3ForCausalLM(config).to(torch.bfloat16)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="where the model is written")
    folder = parser.parse_args().folder
    tokenizer = build_tokenizer()
    model = build_model(tokenizer.convert_tokens_to_ids("<|im_end|>"), tokenizer.convert_tokens_to_ids("<|endoftext|>"))
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save_pretrained(folder)
    model.save_pretrained(folder)
    print(f"{folder}: {model.num_parameters() / 1e6:.1f} M parameters, {len(tokenizer)} tokens", file=sys.stderr)


if __name__ == "__main__":
    main()
