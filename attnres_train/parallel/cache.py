"""The depth history of every micro-batch in flight on one rank, and the account of its gradients.

One source on its way, P = 2, V = 2, seen from rank 1, where stage 1 receives source 0 and stage 3 reads it again:

    forward of stage 1     the received tensor becomes a leaf with a gradient buffer; it is held for stage 3
    forward of stage 3     a second leaf, the same memory, the same buffer; nothing is held any more
    backward of stage 3    its readers deposit in the buffer
    backward of stage 1    what stage 2 returned is deposited, then the readers' gradients; the buffer now holds
                           the whole gradient of rank 1, which is taken and sent to stage 0

How many deposits each stage owes is in the wire plan. A gradient that is missing, doubled or left over is an error
that names micro-batch, source, stage and rank. So is a call out of turn: see `Visit`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from attnres_train.depth.history import History
from attnres_train.depth.source import GradientBuffer, Source
from attnres_train.parallel.offload import HostOffload
from attnres_train.parallel.pool import BufferPool
from attnres_train.parallel.visit import InFlight, Visit
from attnres_train.parallel.wire import WirePlan


class HistoryError(RuntimeError):
    """The depth history or its gradients are not what the wire plan says."""


@dataclass(frozen=True)
class _Held:
    """A source for later stages of this rank: its value, and the buffer that all its readers here share."""

    value: Tensor
    buffer: GradientBuffer | None


@dataclass(frozen=True)
class Departure:
    """What a stage hands on: the tensors whose gradients come back, in the hop's order, and those that travel."""

    micro_batch: int
    stage: int
    tapped: tuple[Tensor, ...]
    travelling: tuple[Tensor, ...]


class HistoryCache:
    """The history on one pipeline rank; `where` names it in errors.

    `pool` gets received buffers back once their stage has run backward. With `offload` slices wait in host memory
    from `left`, when what a stage sends has gone, to `wanted`, before it runs backward.
    """

    def __init__(
        self, plan: WirePlan, pipeline_rank: int, pool: BufferPool, where: str, offload: HostOffload | None = None
    ):
        self.plan, self.pool, self.where, self.offload = plan, pool, where, offload
        self.peak_slices = 0
        self._kept = plan.kept_on(pipeline_rank)
        self._held: dict[tuple[int, int], _Held] = {}
        self._in_flight: dict[tuple[int, int], InFlight] = {}
        self._buffers: dict[tuple[int, int], GradientBuffer | None] = {}
        """Where the gradients of what is or was held belong, until the stage that opened it has run backward."""
        self._gone: dict[tuple[int, int], int] = {}
        self._backwards: deque[tuple[int, int]] = deque()
        """Micro-batch and stage of those to come."""

    def begin(self, backwards: Sequence[tuple[int, int]]) -> None:
        """Called before a schedule runs, with micro-batch and stage of the backwards of this rank, in order. The last
        stage sends nothing on, so that nothing of it is away."""
        last = self.plan.num_stages - 1
        self._backwards = deque(visit for visit in backwards if visit[1] != last)

    def arrive(self, micro_batch: int, stage: int, received: Sequence[Tensor]) -> History:
        """The history that `stage` starts with: `received`, as the hop orders it, and what is held for it."""
        hop = self.plan.hop_into(stage)
        opened = [Source.leaf(tensor) for tensor in received]
        partial = opened.pop() if hop.partial else None
        sources = dict(zip(hop.sources, opened, strict=True))
        sources |= {number: self._known(micro_batch, stage, number) for number in self.plan.known_on(stage)}
        if (micro_batch, stage) in self._in_flight:
            raise self._out_of_turn(micro_batch, stage, Visit.COMPUTING)
        self._in_flight[micro_batch, stage] = InFlight(tuple(received), sources, partial, len(received))
        self._note_peak()
        return History(dict(sorted(sources.items())), partial)

    def depart(self, micro_batch: int, stage: int, history: History) -> Departure:
        """What goes on to the next stage; what later stages of this rank need is held."""
        for entry in self._kept:
            if entry.opened == stage and entry.readers:
                source = history.sources[entry.number]
                self._held[micro_batch, entry.number] = _Held(source.value.detach(), source.gradient)
                self._buffers[micro_batch, entry.number] = source.gradient
        if stage == 0 and 0 in history.sources:
            self._start(micro_batch, history.sources[0])
        flight = self._in_flight.get((micro_batch, stage))
        if flight is not None:
            made = self.plan.made_on(stage)
            flight.sources |= {number: history.sources[number] for number in made if number in history.sources}
        self.end(micro_batch, stage)
        hop = self.plan.hop_into(stage + 1)
        tapped = tuple(history.sources[number].tap(release=self._release_buffer) for number in hop.returned)
        partial = (
            (history.partial.tap(release=self._release_buffer),) if hop.partial and history.partial is not None else ()
        )
        travelling = self.complete(micro_batch, stage, history)
        del self._gone[micro_batch, stage]
        travelling = (*travelling, *(tensor.detach() for tensor in partial))
        return Departure(micro_batch, stage, (*tapped, *partial), travelling)

    def complete(self, micro_batch: int, stage: int, history: History) -> tuple[Tensor, ...]:
        """What `stage` owes the next one, is complete, and has not been asked for before; in the hop's order."""
        owed, gone = self.plan.hop_into(stage + 1).sources, self._gone.get((micro_batch, stage), 0)
        ready = [number for number in owed[gone:] if number in history.sources]
        self._gone[micro_batch, stage] = gone + len(ready)
        return tuple(history.sources[number].value.detach() for number in ready)

    def end(self, micro_batch: int, stage: int) -> None:
        """The forward of `stage` is done. In evaluation that was the whole visit."""
        flight = self._move(micro_batch, stage, Visit.KEPT)
        if flight is not None:
            flight.slices += len(self.plan.made_on(stage))
        self._note_peak()
        for entry in self._kept:
            if entry.readers and entry.last_reader == stage:
                self._release(micro_batch, entry.number)
        if not torch.is_grad_enabled():
            self._in_flight.pop((micro_batch, stage), None)

    def left(self, micro_batch: int, stage: int) -> None:
        """What `stage` sent has left its memory: until its backward nobody needs what it keeps."""
        flight = self._in_flight.get((micro_batch, stage))
        if flight is None or flight.visit is Visit.WANTED:
            return
        self._move(micro_batch, stage, Visit.AWAY)
        wanted_next = bool(self._backwards) and self._backwards[0] == (micro_batch, stage)
        if self.offload is not None and torch.is_grad_enabled() and not wanted_next:
            self.offload.park(flight.values(), in_use=self._in_use(micro_batch))

    def _in_use(self, micro_batch: int) -> Iterator[Tensor]:
        """What visits compute with, or still send: what one of them has sent may be what the next one reads."""
        for (of_micro_batch, _), flight in self._in_flight.items():
            if of_micro_batch == micro_batch and flight.visit is not Visit.AWAY:
                yield from flight.values()

    def wanted(self, micro_batch: int, stage: int) -> None:
        """`stage` is about to run backward."""
        flight = self._move(micro_batch, stage, Visit.WANTED)
        if self.offload is None:
            return
        if flight is not None:
            self.offload.fetch(flight.values())
        if self._backwards and self._backwards[0] == (micro_batch, stage):
            self._backwards.popleft()
        following = self._in_flight.get(self._backwards[0]) if self._backwards else None
        if following is not None:
            self.offload.bring(following.values())

    def returned(self, micro_batch: int, stage: int) -> tuple[Tensor, ...]:
        """The gradients that `stage`, whose backward is done, owes the stage before it, in the hop's order.

        Raises HistoryError where the deposits are not those of the wire plan.
        """
        flight = self._in_flight.get((micro_batch, stage))
        last = stage == self.plan.num_stages - 1  # its output is a loss, which wants nothing of the history
        if flight is None or flight.visit is not (Visit.KEPT if last else Visit.WANTED):
            raise self._out_of_turn(micro_batch, stage, Visit.OVER)
        del self._in_flight[micro_batch, stage]
        for number, source in flight.sources.items():
            self._settle(micro_batch, stage, number, source)
        if flight.partial is not None:
            self._count(micro_batch, stage, None, flight.partial, self.plan.partial_consumers(stage))
        for entry in self._kept:
            if entry.opened == stage:
                self._buffers.pop((micro_batch, entry.number), None)
        self.pool.give(flight.received)
        if stage == 0:
            return ()
        taken = [self._take(micro_batch, stage, n, flight.sources[n]) for n in self.plan.hop_into(stage).returned]
        if flight.partial is not None:
            taken.append(self._take(micro_batch, stage, None, flight.partial))
        return tuple(taken)

    def finish(self) -> None:
        """Called when a schedule has run. Raises HistoryError for what was not released."""
        for micro_batch, number in self._held:
            (entry,) = [entry for entry in self._kept if entry.number == number]
            raise self._error(micro_batch, number, f"is still held after its last reader, stage {entry.last_reader}")
        for micro_batch, stage in self._in_flight:
            raise HistoryError(f"{self.where}: micro-batch {micro_batch} never ran backward on stage {stage}")

    def clear(self) -> None:
        """Let go of everything, after an exception."""
        self._held.clear()
        self._in_flight.clear()
        self._buffers.clear()
        self._gone.clear()
        if self.offload is not None:
            self.offload.clear()

    def take_peak_slices(self) -> int:
        """The most slices that stood at once since this was last asked."""
        peak, self.peak_slices = self.peak_slices, 0
        return peak

    def _start(self, micro_batch: int, embedding: Source) -> None:
        """Open the account of the first stage, which no gradient leaves: its embedding is settled last."""
        self._in_flight[micro_batch, 0] = InFlight((), {}, None, 0)
        if embedding.gradient is None:
            return
        assert embedding.value.grad_fn is not None
        embedding.value.grad_fn.register_hook(lambda *_: self._first_stage_done(micro_batch))

    def _first_stage_done(self, micro_batch: int) -> None:
        self.returned(micro_batch, 0)

    def _move(self, micro_batch: int, stage: int, to: Visit) -> InFlight | None:
        """The visit, which a call has just brought to `to`; None on a first stage whose embedding nobody reads."""
        flight = self._in_flight.get((micro_batch, stage))
        if (stage > 0) if flight is None else not flight.may_move(to):
            raise self._out_of_turn(micro_batch, stage, to)
        if flight is not None:
            flight.visit = to
        return flight

    def _out_of_turn(self, micro_batch: int, stage: int, call: Visit) -> HistoryError:
        flight = self._in_flight.get((micro_batch, stage))
        since = "nothing" if flight is None else f"`{flight.visit.value}`"
        what = f"`{call.value}` came after {since}"
        return HistoryError(f"{self.where}: micro-batch {micro_batch} on stage {stage}: {what}")

    def _known(self, micro_batch: int, stage: int, number: int) -> Source:
        held = self._held.get((micro_batch, number))
        if held is None:
            raise self._error(micro_batch, number, f"is not held for stage {stage}")
        if self.offload is not None:
            self.offload.fetch([held.value])
        return Source.leaf(held.value, None if self.plan.exact_gradients else held.buffer)

    def _release_buffer(self, gradient: Tensor) -> None:
        self.pool.give([gradient])

    def _release(self, micro_batch: int, number: int) -> None:
        del self._held[micro_batch, number]

    def _settle(self, micro_batch: int, stage: int, number: int, source: Source) -> None:
        """Hold the deposits of the rank's stages so far against the plan."""
        if not self.plan.exact_gradients:
            home = self._buffers.get((micro_batch, number), source.gradient)
            if source.gradient is not home:
                raise self._error(
                    micro_batch,
                    number,
                    f"lost the gradients of stage {stage}: they went to another buffer, another micro-batch's perhaps",
                )
        self._count(micro_batch, stage, number, source, self.plan.deposits_by(stage, number))

    def _count(self, micro_batch: int, stage: int, number: int | None, source: Source, expected: int) -> None:
        deposits = 0 if source.gradient is None else source.gradient.deposits
        if deposits != expected:
            what = "is missing gradients" if deposits < expected else "got gradients twice"
            counts = f"{deposits} by the backward of stage {stage}, the wire plan says {expected}"
            raise self._error(micro_batch, number, f"{what}: {counts}")

    def _take(self, micro_batch: int, stage: int, number: int | None, source: Source) -> Tensor:
        total = None if source.gradient is None else source.gradient.take()
        if total is None:
            raise self._error(micro_batch, number, f"got no gradient on stage {stage}")
        return total

    def _error(self, micro_batch: int, number: int | None, what: str) -> HistoryError:
        name = "the partial" if number is None else f"source {number}"
        return HistoryError(f"{self.where}: {name} of micro-batch {micro_batch} {what}")

    def _note_peak(self) -> None:
        slices = sum(flight.slices for flight in self._in_flight.values())
        if not torch.is_grad_enabled():
            slices += len(self._held)
        self.peak_slices = max(self.peak_slices, slices)
