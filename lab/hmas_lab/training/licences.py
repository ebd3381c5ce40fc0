"""Which rows the shipped model may be trained on, decided row by row. Pure.

Permissive here: MIT, Apache-2.0, CC-BY, and CC-BY-SA with attribution (the model card carries it). No non-commercial, no research-only
data, and none whose underlying dataset declares no licence. For rows of the T0 collection what counts is the dataset under the template.
"""

from collections.abc import Mapping
from types import MappingProxyType

from hmas.agents.perception.training.data import licence_for_training

T0_PREFIX = "T0 template "

T0_DATASETS: Mapping[str, str | None] = MappingProxyType(
    {
        "adversarial_qa": "CC-BY-SA-4.0",
        "duorc": "MIT",
        "quoref": "CC-BY-4.0",
        "ropes": "CC-BY-4.0",
        "kilt_tasks_hotpotqa": "CC-BY-SA-4.0",
        "qasc": "CC-BY-4.0",
        "quarel": "CC-BY-4.0",
        "quartz": "CC-BY-4.0",
        "commonsense_qa": "MIT",
        "cosmos_qa": "CC-BY-4.0",
        "wiki_hop": "CC-BY-SA-3.0",
        "wiki_bio": "CC-BY-SA-3.0",
        "common_gen": "MIT",
        "cnn_dailymail": "Apache-2.0",
        "paws": "free for any purpose, with acknowledgement of Google LLC",
        "sciq": None,  # CC-BY-NC-3.0
        "dream": None,  # non-commercial research
        "samsum": None,  # CC-BY-NC-ND-4.0
        "multi_news": None,  # non-commercial research
        "gigaword": None,  # of the Linguistic Data Consortium
        "xsum": None,  # none declared for the articles
        "glue_mrpc": None,  # research licence
        "wiki_qa": None,  # research licence
        "social_i_qa": None,  # none declared
        "wiqa": None,  # none declared
    }
)
"""Licence of the dataset under a T0 template, by the beginning of the template's name; None where it must not be trained on."""

SOURCES: Mapping[str, str | None] = MappingProxyType(
    {
        "MBPP (copy in OckBench/OckBench)": "CC-BY-4.0",
        "lmarena/arena-hard-auto:v2.0": "Apache-2.0",
        "openai/human-eval": "MIT",
        "teknium1/GPTeacher:Codegen": "MIT",
        "teknium1/GPTeacher:Roleplay": "MIT",
        "google-research-datasets/dstc8-schema-guided-dialogue": "CC-BY-SA-4.0",
        "sierra-research/tau-bench:gpt-4o-airline": "MIT",
        "Quehry/HelloBench": "MIT",
        "leondz/emerging_entities_17 (WNUT17)": "CC-BY-4.0",
        "IFEval gpt4 responses (copy in Podtech-AI/IFEval)": "Apache-2.0",
        "YJiangcm/FollowBench": "Apache-2.0",
        "yizhongw/self-instruct:user_oriented": "Apache-2.0",
        "THUDM/LongWriter:longbench_write": "Apache-2.0",
        "openai/grade-school-math:example_model_solutions": "MIT",
        "openai/grade-school-math:train": "MIT",
        "chaitanyamalaviya/ExpertQA": "MIT",
        "Ayanami0730/deep_research_bench": "Apache-2.0",
        "fe1ixxu/ALMA:human_written_data (WMT)": None,  # the texts are WMT test data, for research
        "wmt-conference/wmt24-news-systems": None,  # research use
        "hiyouga/LLaMA-Factory:alpaca_en_demo": None,  # derived from Alpaca, CC-BY-NC
    }
)
"""Licence of every source that is known; None where it must not be trained on."""


def licence_of(source: str, label_rule: str, declared: str) -> str | None:
    """Licence under which a row may be trained on; None where it may not.

    Args:
        source: The row's source.
        label_rule: Names the T0 template where there is one.
        declared: The row's own licence field: what counts for sources that are not in the table (an operator's own data).
    """
    if label_rule.startswith(T0_PREFIX):
        return T0_DATASETS.get(dataset_of(label_rule).lstrip("/"))
    if source in SOURCES:
        return SOURCES[source]
    return licence_for_training(declared)


def dataset_of(label_rule: str) -> str:
    """The dataset under a T0 template, with a slash before it; empty for other rules and unknown datasets."""
    if not label_rule.startswith(T0_PREFIX):
        return ""
    template = label_rule.removeprefix(T0_PREFIX)
    matches = [name for name in T0_DATASETS if template.startswith(name)]
    return f"/{max(matches, key=len)}" if matches else ""
