"""The parts of the documents that are made from the code are those that the code makes now."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

from quorumlog.consensus.dispatcher import TRANSITIONS, DispatcherEvent, DispatcherState

DOCS = Path(__file__).parents[2] / "docs"


@pytest.fixture(scope="module")
def generate() -> ModuleType:
    spec = importlib.util.spec_from_file_location("docs_generate", DOCS / "generate.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_generated_part_is_up_to_date(generate: ModuleType) -> None:
    documents = sorted({document for document, _ in generate.PARTS})
    assert documents
    for document in documents:
        text = (DOCS / document).read_text()
        made = generate.with_generated_parts(document, text)
        assert made == text, f"docs/{document}: run python docs/generate.py"


def test_the_picture_of_the_dispatcher_shows_every_transition(generate: ModuleType) -> None:
    picture = generate.dispatcher_automaton()
    for (state, event), following in TRANSITIONS.items():
        if event is DispatcherEvent.BEGUN:
            assert following is DispatcherState.COMPARE
        else:
            assert f"{state.name} --> {following.name}: {event.name}" in picture


def test_a_part_without_a_place_is_an_error(generate: ModuleType) -> None:
    with pytest.raises(ValueError, match="0 places"):
        generate.with_generated_parts(next(iter(generate.PARTS))[0], "no markers here")
