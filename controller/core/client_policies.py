"""Sentences of company policies, built from templates, for system prompts of thousands of tokens. Pure."""

from typing import NamedTuple, Protocol


class _Draws(Protocol):
    def random(self) -> float: ...


class Policies(NamedTuple):
    """Templates and the values for their fields `{who}`, `{topic}`, `{what}`, `{when}` and `{number}`."""

    templates: tuple[str, ...]
    who: tuple[str, ...]
    topics: tuple[str, ...]
    what: tuple[str, ...]
    when: tuple[str, ...]


TRAINING = Policies(
    templates=(
        "{who} decides about {topic} within {number} days.",
        "Requests about {topic} go to {who}, and the customer is given a reference of {number} digits.",
        "If a customer asks about {topic} {when}, explain that {who} must {what} first.",
        "Never promise {topic} before {who} has agreed to {what}.",
        "For {topic} the limit is {number} per month; {who} may raise it {when}.",
        "When {who} is not available, offer to {what} and to call back within {number} hours.",
        "{topic} must be noted in the file {when}, together with the reason.",
        "Do not discuss {topic} with third parties, not even when they claim to be {who}.",
        "In the case of {topic}, first {what}, then inform {who}.",
        "A fee of {number} applies to {topic} {when}.",
        "Customers with more than {number} orders may {what} without a further check.",
        "It is allowed to {what} {when}, but only after {who} was asked.",
        "Complaints about {topic} are answered by {who} and closed after {number} days without a reply.",
        "Where {topic} and {who} contradict each other, the written contract counts.",
    ),
    who=(
        "the support team",
        "the shift leader",
        "the finance department",
        "the account manager",
        "the data protection officer",
        "the warehouse",
        "a supervisor",
        "the legal department",
        "the technician on duty",
        "the partner company",
    ),
    topics=(
        "late deliveries",
        "refunds",
        "damaged goods",
        "changes of address",
        "contract renewals",
        "discounts",
        "password resets",
        "access to buildings",
        "travel expenses",
        "overtime",
        "data exports",
        "spare parts",
        "gift cards",
        "holiday requests",
        "cancelled bookings",
        "invoices",
        "loyalty points",
        "security incidents",
    ),
    what=(
        "check the order number",
        "confirm the identity of the caller",
        "open a ticket",
        "ask for a photograph",
        "compare the two records",
        "return the goods",
        "sign the form",
        "update the entry",
        "choose another date",
        "wait for the confirmation",
    ),
    when=(
        "at the end of the quarter",
        "outside of office hours",
        "during the first year",
        "after the second reminder",
        "on public holidays",
        "before the parcel has left",
        "while the account is locked",
        "in urgent cases",
    ),
)

JUDGING = Policies(
    templates=(
        "Should {topic} come up {when}, refer the person to {who}.",
        "{who} keeps a record of {topic} for {number} weeks.",
        "No more than {number} attempts to {what} are permitted {when}.",
        "Prior to any talk of {topic}, {what}.",
        "Only {who} can waive {topic}; everybody else has to {what}.",
        "Section {number} covers {topic}, including cases that arise {when}.",
        "We {what} {when} because {topic} would otherwise pile up.",
        "An exception for {topic} lapses after {number} weeks unless {who} extends it.",
    ),
    who=("the desk in Lisbon", "our duty vet", "the ski patrol", "an auditor", "the rota planner", "your nearest branch", "the archive"),
    topics=(
        "meter swaps",
        "lift passes",
        "vaccination records",
        "backup windows",
        "loaned paintings",
        "lost luggage",
        "tuition waivers",
        "guest parking",
        "failed replicas",
        "direct debits",
    ),
    what=("fetch a signed slip", "ring the front office", "scan the badge", "rerun the job", "quote the tariff", "reserve a slot"),
    when=("past midnight", "in the low season", "amid an outage", "with minors present", "upon a second visit", "by phone"),
)


def sentence(policies: Policies, rng: _Draws) -> str:
    """One sentence from a random template."""

    def pick(items: tuple[str, ...]) -> str:
        return items[int(rng.random() * len(items))]

    text = pick(policies.templates).format(
        who=pick(policies.who),
        topic=pick(policies.topics),
        what=pick(policies.what),
        when=pick(policies.when),
        number=2 + int(rng.random() * 89),
    )
    return text[0].upper() + text[1:]
