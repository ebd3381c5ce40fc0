"""The requests of the front door: every cell in equal parts, in an order that is drawn."""

from collections.abc import Sequence
from itertools import product
from typing import NamedTuple

import msgspec
import numpy as np

from hmas.controller.core.slo import IMPORTANCE_MIN
from hmas.controller.core.types import Slo
from hmas.engines.tokens import estimate_tokens
from hmas.loadgen.arrivals import ArrivalSpec, arrival_times
from hmas.loadgen.client_load import Clients, Terms
from hmas.loadgen.dataset import PromptData
from hmas.loadgen.prompts import PromptWriter
from hmas.loadgen.streams import stream
from hmas.loadgen.workload import Arrival, Turn
from hmas_lab.frontdoor.settings import MODEL_LEN, TARGETS, TIGHTER, DoorSettings
from hmas_lab.questions import Question

TENANT = "default"
MOST_SEED = 1 << 31
RAMPS = 1_000_000
"""Ramps but the first draw their requests from numbers that no load of arrivals has."""


class Cell(NamedTuple):
    """A kind of request: its form, whether it sends `max_tokens`, and whether it declares targets."""

    form: str
    capped: bool
    declared: bool


def cells(forms: Sequence[str]) -> list[Cell]:
    """All cells of the forms."""
    return [Cell(*one) for one in product(forms, (True, False), (True, False))]


class DoorLoad:
    """Arrivals out of questions.

    Attributes:
        stretch: Factor on all targets, 1 or more: for engines that are too slow for them.
    """

    def __init__(self, settings: DoorSettings, questions: Sequence[Question], prompts: PromptData) -> None:
        self._settings = settings
        self._questions = questions
        self._writer = PromptWriter(prompts)
        self.stretch = 1.0

    def arrivals(self, number: int, *, rps: float, seconds: float) -> list[Arrival]:
        """A Poisson stream. The same number gives the same requests, at times that only the rate stretches."""
        spec = ArrivalSpec(mean_rps=rps, duration_s=seconds, process="poisson")
        return self._dress(arrival_times(spec, stream(self._settings.seed, "door-times", number)).tolist(), number)

    def one_by_one(self, count: int, every_s: float) -> list[Arrival]:
        """So many requests at a fixed distance, for what an engine does with one alone."""
        return self._dress([every_s * place for place in range(count)], -2)

    def ramp(self, low_rps: float, high_rps: float, seconds: float, number: int = 0) -> list[Arrival]:
        """Arrivals whose rate rises linearly, on which capacity is measured; evenly spaced, so that chance has no part in the rate.

        Another number gives other requests at the same times.
        """
        slope = (high_rps - low_rps) / seconds
        count = int((low_rps + high_rps) / 2.0 * seconds)
        # The cumulative rate is low t + slope t^2 / 2; each time is where it passes a half beyond a whole number.
        times = (-low_rps + np.sqrt(low_rps**2 + 2.0 * slope * (np.arange(count) + 0.5))) / slope
        return self._dress(times.tolist(), RAMPS + number if number else -1)

    def _dress(self, times: Sequence[float], number: int) -> list[Arrival]:
        settings, seed = self._settings, self._settings.seed
        all_cells = cells(settings.forms)
        texts = [question.text for question in self._questions]
        clients = Clients(texts, self._writer, seed=seed + 1000 * (number + 2), past=settings.past)
        rng = stream(seed, "door-cells", number + 2)
        chosen = stream(seed, "door-questions", number + 2).integers(0, len(texts), size=len(times)).tolist()
        seeds = stream(seed, "door-answers", number + 2).integers(0, MOST_SEED, size=len(times)).tolist()
        order: list[int] = []
        found = []
        for index, (at_s, which) in enumerate(zip(times, chosen, strict=True)):
            if not order:
                order = rng.permutation(len(all_cells)).tolist()
            cell = all_cells[order.pop()]
            slo = _stretched(TIGHTER if cell.declared and rng.random() < 0.5 else TARGETS, self.stretch)
            terms = Terms(settings.cap if cell.capped else 0, cell.declared, slo)
            sent = clients.send(_bare(at_s, self._questions[which], slo), index, cell.form, terms)
            found.append(sent if settings.forced else _for_a_model(sent, seeds[index]))
        return found


def _stretched(slo: Slo, factor: float) -> Slo:
    return Slo(ttft_ms=slo.ttft_ms * factor, tpot_ms=slo.tpot_ms * factor)


def _for_a_model(arrival: Arrival, seed: int) -> Arrival:
    """A real model draws its answer: by the request's own seed, so that all arms get the same work, up to the cap or the context."""
    assert arrival.body is not None
    body = msgspec.structs.replace(arrival.body, document=arrival.body.document | {"seed": seed})
    longest = arrival.max_tokens or MODEL_LEN - arrival.prompt_tokens
    return msgspec.structs.replace(arrival, body=body, output_tokens=longest)


def _bare(at_s: float, question: Question, slo: Slo) -> Arrival:
    return Arrival(
        at_s=at_s,
        messages=(Turn("user", question.text),),
        prompt_tokens=estimate_tokens(question.text),
        output_tokens=question.output_tokens,
        max_tokens=0,
        task_type=question.task,
        importance=IMPORTANCE_MIN,
        slo=slo,
        tenant=TENANT,
        kind="",
    )
