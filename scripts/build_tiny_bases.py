"""Builds two tiny random-weight bases on which the training path of perception is tried: a causal Qwen3 and a BERT encoder. No downloads.

    python scripts/build_tiny_bases.py build/tiny-bases

Needs torch, transformers and tokenizers. They know nothing; what an adapter makes of them on real prompts is learnt from these prompts.
"""

import argparse
import sys
from pathlib import Path

import torch
from build_tiny_model import SPECIAL, byte_pairs, chat_tokenizer
from tokenizers import processors
from transformers import BertConfig, BertModel, PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

VOCABULARY = 4096
MAX_POSITIONS = 4096
ENCODER = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
SPREAD = 0.08
"""Standard deviation of the weights: with the usual 0.02 a tiny untrained model hardly tells texts apart, and no adapter could."""

HEAD_GAIN = 4.0


def build_causal(folder: Path) -> int:
    tokenizer = chat_tokenizer(byte_pairs(VOCABULARY, SPECIAL), MAX_POSITIONS)
    config = Qwen3Config(
        vocab_size=VOCABULARY,
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=MAX_POSITIONS,
        tie_word_embeddings=False,
        initializer_range=SPREAD,
        bos_token_id=tokenizer.pad_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    model = Qwen3ForCausalLM(config)
    with torch.no_grad():
        # A frozen head of small weights could not be sure of any token, whatever comes in.
        model.lm_head.weight.mul_(HEAD_GAIN)
    tokenizer.save_pretrained(folder)
    model.save_pretrained(folder)
    return int(model.num_parameters())


def build_encoder(folder: Path) -> int:
    bpe = byte_pairs(VOCABULARY, ENCODER)
    bpe.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", bpe.token_to_id("[CLS]")), ("[SEP]", bpe.token_to_id("[SEP]"))]
    )
    names = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]", "mask_token": "[MASK]"}
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=bpe, model_max_length=512, **names)
    config = BertConfig(
        vocab_size=VOCABULARY,
        hidden_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=256,
        max_position_embeddings=512,
        initializer_range=SPREAD,
        pad_token_id=tokenizer.pad_token_id,
    )
    model = BertModel(config, add_pooling_layer=False)
    tokenizer.save_pretrained(folder)
    model.save_pretrained(folder)
    return int(model.num_parameters())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="where the folders causal and encoder are written")
    folder = parser.parse_args().folder
    for name, build in (("causal", build_causal), ("encoder", build_encoder)):
        torch.manual_seed(0)
        (folder / name).mkdir(parents=True, exist_ok=True)
        print(f"{folder / name}: {build(folder / name) / 1e6:.2f} M parameters", file=sys.stderr)


if __name__ == "__main__":
    main()
