"""Words and tool calls: the same for the same prompt, and fitting their schema."""

import jsonschema
from hypothesis import given
from hypothesis import strategies as st

from hmas.engines.sim.text import drawn_output_tokens, instance_of, seed_of, split_text

leaves = st.one_of(
    st.fixed_dictionaries({"type": st.sampled_from(["string", "integer", "number", "boolean", "null"])}),
    st.fixed_dictionaries({"type": st.just("integer"), "minimum": st.integers(-5, 50)}),
    st.fixed_dictionaries({"enum": st.lists(st.one_of(st.text(max_size=4), st.integers()), min_size=1, max_size=3)}),
    st.fixed_dictionaries({"const": st.integers()}),
    st.fixed_dictionaries({"type": st.just(["string", "null"])}),
)
schemas = st.recursive(
    leaves,
    lambda inner: st.one_of(
        st.fixed_dictionaries({"type": st.just("array"), "items": inner, "minItems": st.integers(0, 3)}),
        st.fixed_dictionaries({"anyOf": st.lists(inner, min_size=1, max_size=2)}),
        st.dictionaries(st.text(max_size=5), inner, max_size=3).map(
            lambda properties: {"type": "object", "properties": properties, "required": list(properties)}
        ),
    ),
    max_leaves=6,
)


@given(schemas)
def test_arguments_fit_their_schema(schema):
    jsonschema.validate(instance_of(schema), schema)


@given(st.recursive(st.none() | st.integers() | st.text(), lambda x: st.lists(x) | st.dictionaries(st.text(), x), max_leaves=8))
def test_a_schema_that_is_none_breaks_nothing(junk):
    instance_of(junk)


def test_a_schema_without_end_ends():
    loop: dict = {"type": "object", "properties": {}}
    loop["properties"]["again"] = loop
    assert instance_of(loop)


@given(st.text(max_size=80), st.integers(1, 100))
def test_pieces_join_to_the_text(text, count):
    pieces = split_text(text, count)
    assert len(pieces) == count
    assert "".join(pieces) == text


def test_seeds_and_drawn_lengths():
    assert seed_of("a") == seed_of("a") != seed_of("b")
    lengths = sorted(drawn_output_tokens(seed_of(str(i))) for i in range(2000))
    assert 130 < lengths[1000] < 170
    assert lengths[0] >= 1
    assert lengths[1900] > 400
