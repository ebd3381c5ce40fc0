"""The checks of the agents' models in `hmas doctor`."""

from collections.abc import Iterator
from typing import Any

from hmas.cli.checks import Check

OUTSIDE_SHARE = 0.05
"""Share of requests with an input outside of a model's training data above which there is a warning."""


def check_models(reports: list[dict[str, Any]]) -> Iterator[Check]:
    """Whether the agents' models get inputs like those of their training; skips models without any input."""
    for report in reports:
        if report["role"] != "active" or not report["requests"]:
            continue
        name = f"model {report['model']} of {report['agent']}" + (f" {report['instance']}" if report["instance"] else "")
        # Meta's model gets long views, not requests.
        asked = f"{report['requests']} {'long views' if report['agent'] == 'meta' else 'requests'}"
        outside = {key.partition("/")[2]: count for key, count in report["figures"].items() if key.startswith("out_of_range/")}
        many = {key: count for key, count in sorted(outside.items()) if count > OUTSIDE_SHARE * report["requests"]}
        if many:
            words = ", ".join(f"{key} {count:.0f} times" for key, count in many.items())
            do = "its answers on such inputs are worth less; train it on traffic like yours (`hmas train`), and compare it in the shadow"
            yield Check(name, "WARN", f"of {asked} outside of what it was trained on: {words}", do)
        else:
            yield Check(name, "OK", f"{asked}, within {OUTSIDE_SHARE:.0%} like those that it was trained on")
