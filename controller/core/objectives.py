"""The objectives of serving: SLO satisfaction, goodput, expected service gain, mismatch, fairness. Pure.

Names follow `vllm bench serve` and aiperf (goodput, ttft, tpot), so that results compare.
"""

import math
from collections.abc import Iterable

from hmas.controller.core.messages import Completion
from hmas.controller.core.types import OutcomeKind, Slo

INPUT_WEIGHT = 1.0
"""w_i of Eq. 6 (H-MAS B.2)."""
OUTPUT_WEIGHT = 2.0
"""w_o of Eq. 6 (H-MAS B.2)."""
LATENCY_EXPONENT = 1.0
"""Alpha of Eq. 6 (H-MAS B.2)."""


def slo_met(ttft_ms: float, tpot_ms: float, slo: Slo) -> bool:
    """OK(r) of H-MAS Eq. 1 and 8: both targets are met.

    Args:
        ttft_ms: Arrival to first token; negative if none came, which is never OK.
        tpot_ms: Mean time per output token after the first; negative with fewer than two tokens, and then only the TTFT decides.
        slo: The targets.
    """
    return 0.0 <= ttft_ms <= slo.ttft_ms and tpot_ms <= slo.tpot_ms


def whole_due_ms(output_tokens: float, slo: Slo) -> float:
    """When an answer in one piece is due, ms after its arrival: TTFT + TPOT x (l - 1), when its last token was due (H-MAS 3.5).

    Its first token cannot be observed, so this deadline replaces both targets. `output_tokens`: those of one answer.
    """
    return slo.ttft_ms + slo.tpot_ms * max(0.0, output_tokens - 1.0)


def is_judged(completion: Completion) -> bool:
    """Whether the end says anything about the service.

    Ends that the client caused do not count: answers 400 to 428 (malformed, unknown, too large), and clients that left while their TTFT
    target could still have been met.
    """
    if 400 <= completion.status < 429:
        return False
    if completion.outcome is OutcomeKind.CANCELLED:
        return completion.ttft_ms < 0 and 0 < completion.ttft_slo_ms < completion.total_ms
    return True


def missed_ttft(completion: Completion) -> bool:
    """Whether no first token came in time. For judged requests; an answer in one piece missed it if only its wait made it late."""
    if completion.ttft_ms < 0:
        return not completion.slo_met and not missed_tpot(completion)
    return 0 < completion.ttft_slo_ms < completion.ttft_ms


def missed_tpot(completion: Completion) -> bool:
    """Whether tokens came slower than their target. An answer in one piece did if it had been late without any wait."""
    if completion.ttft_ms < 0 and completion.outcome is OutcomeKind.COMPLETED and not completion.slo_met:
        slo = Slo(ttft_ms=completion.ttft_slo_ms, tpot_ms=completion.tpot_slo_ms)
        service_ms = completion.total_ms - max(0.0, completion.queue_ms)
        return completion.output_tokens > 0 and service_ms > whole_due_ms(completion.output_tokens / max(1, completion.sequences), slo)
    return 0 < completion.tpot_slo_ms < completion.tpot_ms


def goodput_rate(good: int, total: int) -> float:
    """Share of requests that met both targets (H-MAS Eq. 9), 0 to 1; 0 with no requests."""
    return good / total if total else 0.0


def goodput_rps(good: int, span_s: float) -> float:
    """Requests per second that met both targets ("goodput" in H-MAS section 4); 0 over an empty span."""
    return good / span_s if span_s > 0 else 0.0


def ttlt_ms(ttft_ms: float, tpot_ms: float, output_tokens: int) -> float:
    """TTLT = TTFT + L_o * TPOT (H-MAS section 4), milliseconds; a TPOT below 0 (fewer than two tokens) counts as 0."""
    return ttft_ms + output_tokens * max(0.0, tpot_ms)


def slo_ttlt_ms(slo: Slo, output_tokens: int) -> float:
    """SLO_ttlt = SLO_ttft + L_o * SLO_tpot. The paper gives no formula for it; this is that of TTLT with the targets inserted."""
    return slo.ttft_ms + output_tokens * slo.tpot_ms


def service_gain(prompt_tokens: int, output_tokens: int, ttft_ms: float, tpot_ms: float, slo: Slo) -> float:
    """One request's term of the expected service gain (H-MAS Eq. 6): (w_i L_i + w_o L_o) * min(1, (SLO_ttlt / TTLT)^alpha).

    L_o is the actual length. A negative `ttft_ms` means that no token came, which gains nothing; `tpot_ms` is as in `slo_met`.
    """
    if ttft_ms < 0.0:
        return 0.0
    value = INPUT_WEIGHT * prompt_tokens + OUTPUT_WEIGHT * output_tokens
    taken_ms = ttlt_ms(ttft_ms, tpot_ms, output_tokens)
    if taken_ms <= 0.0:
        return value
    return value * min(1.0, math.pow(slo_ttlt_ms(slo, output_tokens) / taken_ms, LATENCY_EXPONENT))


def mismatch(arriving_tps: float, served_tps: float) -> float:
    """Utilization-gap score M_rho = max(0, lambda_tok / (mu_tok + eps) - 1) (H-MAS Eq. 7), from tokens per second over one window.

    With tokens requested and none served, the score is huge by intent.
    """
    return max(0.0, arriving_tps / (served_tps + 1e-9) - 1.0)


def jain(shares: Iterable[float]) -> float:
    """Jain's fairness index (sum x)^2 / (n * sum x^2), from 1/n (one takes all) to 1 (all equal).

    1 with fewer than two shares or with none above 0: then none is treated worse than another. Shares must not be negative.
    """
    values = list(shares)
    squares = math.fsum(x * x for x in values)
    if len(values) < 2 or squares <= 0.0:
        return 1.0
    return min(1.0, math.fsum(values) ** 2 / (len(values) * squares))
