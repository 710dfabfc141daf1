"""What the workers of every engine run: sums of a chunk, noise on a block, any task on an item.

No failure shows a value: prdp's own errors hold none, and of any other only the kind leaves the task.
"""

import pickle
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Generic

import pyarrow as pa

from pipeline.base.build import code_digest
from pipeline.base.errors import MicrodataError, PrdpError, exhausted
from pipeline.engines.blocks import Block
from pipeline.engines.protocol import Item, Result, TaskFailed
from pipeline.engines.writers import write_block
from pipeline.microdata.read import read
from pipeline.microdata.source import Chunk, shown
from pipeline.storage.location import Location
from pipeline.storage.sealing import Seal, staging_errors
from udfs.noise.keystream import SecretKey
from udfs.records.contract import ContractBroken
from udfs.records.decoding import Decoder, SumSpec
from udfs.records.sums import Frame, sum_batches


def system_reason(error: Exception) -> str:
    """Return the operating system's words for an error, without the file that it names; of any other the kind."""
    return (error.strerror if isinstance(error, OSError) else None) or type(error).__name__


def without_values(
    run: Callable[[], Result], failed: Callable[[str], PrdpError], reason: Callable[[Exception], str] = system_reason
) -> Result:
    """Return the result of `run`; raises prdp's own errors as they are, and of any other `failed` of its reason.

    Where memory or threads are exhausted, it raises PrdpError: nothing is wrong with what was read or written.
    """
    try:
        return run()
    except (PrdpError, ContractBroken):
        raise
    except Exception as error:  # messages of Arrow and Python may show values
        failure, lacking = reason(error), exhausted(error)
    # Outside the handler, so that the value-bearing exception is not kept as context.
    raise PrdpError(lacking) if lacking else failed(failure)


def reading(chunk: Chunk, run: Callable[[], Result]) -> Result:
    """Return the result of `run`, which reads a chunk; of any other library's error a MicrodataError names the kind."""
    path = shown(chunk[0].path)
    return without_values(
        run,
        lambda kind: MicrodataError(f"microdata {path}: reading failed ({kind}); check that the file is whole"),
        lambda error: type(error).__name__,  # Arrow puts paths, which may show values, where the system's words stand
    )


def decoded(chunk: Chunk, spec: SumSpec, run: Callable[[Decoder, pa.RecordBatch], Result]) -> Iterator[Result]:
    """Yield the result of `run` for each batch of a chunk; raises as `reading` does."""
    decoder, batches = Decoder(spec), read(chunk, spec)

    def step() -> tuple[Result] | None:
        batch = next(batches, None)
        return None if batch is None else (run(decoder, batch),)

    while (result := reading(chunk, step)) is not None:
        yield result[0]


def require_same_code(code: str) -> None:
    """Return if this process runs the code whose digest is `code`; raises TaskFailed otherwise."""
    if code_digest() != code:
        raise TaskFailed("a worker runs another build of prdp than the driver: install the same on all machines")


@dataclass(frozen=True)
class SumTask:
    """Sums one chunk on a worker.

    `run` differs for every run: a cluster names tasks by their arguments, and shares the results of equal ones, even
    with a run that read the files before they changed. Threads share nothing and need none.
    """

    spec: SumSpec
    code: str
    run: str = ""

    def __call__(self, chunk: Chunk) -> Frame:
        """Return the chunk's frame of sums."""
        require_same_code(self.code)
        return reading(chunk, lambda: sum_batches(read(chunk, self.spec), self.spec))


@dataclass(frozen=True, eq=False, repr=False)
class SealedBlock:
    """Where a block of the table `query` lies sealed: for engines whose tasks pass through other processes."""

    query: str
    file: Location
    seal: Seal

    @classmethod
    def of(cls, block: Block, file: Location, seal: Seal) -> "SealedBlock":
        """Seal a block in a file; raises StateError where its place does not take it."""
        with staging_errors(f"table {block.query}"):
            file.write(seal.encrypt(file.name, pickle.dumps(block)))
        return cls(block.query, file, seal)

    def block(self) -> Block:
        """Return the block; raises cryptography's InvalidTag where the file is not as it was written."""
        block: Block = pickle.loads(self.seal.decrypt(self.file.name, self.file.read()))
        return block


@dataclass(frozen=True)
class NoiseTask:
    """Releases and writes one block on a worker."""

    code: str

    def __call__(self, block: Block | SealedBlock, *, key: SecretKey) -> int:
        """Write the block's file; return its number of rows."""
        require_same_code(self.code)
        return without_values(
            lambda: _written(block, key),
            lambda reason: TaskFailed(f"table {block.query}: drawing it failed ({reason})"),
        )


def _written(block: Block | SealedBlock, key: SecretKey) -> int:
    with staging_errors(f"table {block.query}"):
        opened = block.block() if isinstance(block, SealedBlock) else block
        write_block(opened, key)
        return opened.size


@dataclass(frozen=True, eq=False, repr=False)
class EachTask(Generic[Item, Result]):
    """Runs a task on an item on a worker."""

    task: Callable[[Item], Result]
    code: str

    def __call__(self, item: Item) -> Result:
        """Return the task's result for the item."""
        require_same_code(self.code)
        return without_values(
            lambda: self.task(item), lambda reason: TaskFailed(f"a task failed on a worker ({reason})")
        )
