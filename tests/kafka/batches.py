"""Record batches as a producer makes them: those of the simulator."""

from __future__ import annotations

from sim.kafka.batches import made_batch, zigzag

__all__ = ["made_batch", "zigzag"]
