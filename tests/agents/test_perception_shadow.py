"""What becomes of a better model in perception's shadow when the store fails, or when another model comes into force."""

import pytest
from perception_kit import WordReader, add, config, done, events, started
from typing_kit import known

from hmas.agents.model_store.comparison import Verdict
from hmas.agents.model_store.store import ModelStore
from hmas.agents.perception import readers
from hmas.agents.perception.shadow import Shadow
from hmas.controller.core.errors import ModelError


@pytest.fixture
def store(tmp_path, monkeypatch) -> ModelStore:
    monkeypatch.setitem(readers.FORMATS, "words", WordReader)
    monkeypatch.setattr(readers, "shipped_lengths", lambda: None)
    monkeypatch.setattr(Shadow, "verdict", lambda _shadow: Verdict(better=True, pairs=1000, gain=0.1, evidence=30.0))
    store = ModelStore(tmp_path / "state" / "models")
    for _ in range(3):
        add(store, tmp_path)
    store.use("perception", "v1")
    store.set_shadow("perception", "v2")
    return store


def refused(*_args):
    raise ModelError("choice.json cannot be written: no space left on device")


async def test_a_promotion_that_the_store_could_not_write_is_tried_again(tmp_path, store, monkeypatch):
    agent = await started(config(tmp_path, model_promotion="auto"))
    assert ("model_promoted", "v1", "v2") in events(agent.on_tick(300.0))
    with monkeypatch.context() as full:
        full.setattr(ModelStore, "_write", refused)
        with pytest.raises(ModelError, match="no space"):
            done(agent.beside(301.0))
    assert agent.beside(302.0) is None, "not at once"
    assert events(agent.on_tick(311.0)) == []
    done(agent.beside(312.0))
    assert store.choice("perception").current == "v2"


async def test_a_choice_that_is_made_before_the_promotion_is_written_stays(tmp_path, store):
    agent = await started(config(tmp_path, model_promotion="auto"))
    assert agent.beside(299.5) is None
    assert ("model_promoted", "v1", "v2") in events(agent.on_tick(300.0))
    store.use("perception", "v3")
    done(agent.beside(300.5))
    assert (store.choice("perception").current, store.choice("perception").shadow) == ("v3", "v2")


async def test_a_better_model_takes_the_place_of_one_that_is_broken(tmp_path, store):
    for file in store.folder("perception", "v1").iterdir():
        file.unlink()
    agent = await started(config(tmp_path, model_promotion="auto"))
    assert ("model_promoted", "rules", "v2") in events(agent.on_tick(300.0))
    done(agent.beside(301.0))
    assert store.choice("perception").current == "v2"


async def test_a_shadow_is_compared_anew_with_another_model_in_force_and_keeps_what_it_has_learnt(tmp_path, store):
    agent = await started(config(tmp_path, model_promotion="auto"))
    before = known(agent.shadow)
    assert ("model_promoted", "v1", "v2") in events(agent.on_tick(300.0))
    store.use("perception", "v3")
    assert events(done(agent.beside(303.0))) == [("model_changed", "v1", "v3")]
    after = known(agent.shadow)
    assert after is not before
    assert (after.name, after.model) == ("v2", before.model)
    assert agent.beside(304.0) is None, "it was better than the model that has gone"
    assert (store.choice("perception").current, store.choice("perception").shadow) == ("v3", "v2")
    assert ("model_promoted", "v3", "v2") in events(agent.on_tick(320.0))
