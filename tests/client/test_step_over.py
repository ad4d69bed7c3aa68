"""`step_over`: an operator has a state machine leave an entry out. Both clients."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from quorumlog import BadRequest, CommandError, LocalCluster, StepOverRefused, UnknownMachine
from tests.client.both_clients import Client
from tests.node.machines import Chain


def test_an_entry_is_stepped_over_and_asked_again_it_is_done(new_client: Callable[..., Client]) -> None:
    with LocalCluster(members=3, state_machines={"chain": Chain}) as cluster:
        log = new_client(cluster.servers, producer_id="p")
        index = log.append(b"a", machine="chain", sequence=0).first_index
        log.append(b"b", machine="chain", sequence=1)
        with pytest.raises(StepOverRefused, match=f"entry {index} was applied to chain on"):
            log.step_over("chain", index)
        ordered_at = log.step_over("chain", index, unsafe=True)
        assert ordered_at > index
        assert log.step_over("chain", index) == ordered_at
        assert log.ask("chain", b"") == b"1"
        with pytest.raises(CommandError, match=f"entry {index} was stepped over"):
            log.append(b"a", machine="chain", sequence=0)
        with pytest.raises(UnknownMachine, match="it binds: chain"):
            log.step_over("other", index)


@pytest.mark.parametrize(
    ("machine", "index"), [("", 1), (7, 1), ("a", -1), ("a", 2**62 + 1), ("a", "1")]
)
def test_nonsense_is_refused_before_it_is_sent(
    new_client: Callable[..., Client], machine: object, index: object
) -> None:
    log = new_client("127.0.0.1:1")
    with pytest.raises(BadRequest, match="must be"):
        log.step_over(machine, index)  # type: ignore[arg-type]
