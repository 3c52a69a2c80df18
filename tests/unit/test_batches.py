import pytest
from hypothesis import given
from hypothesis import strategies as st

from workflow_scripts.publishing.batches import BATCH, batch_chunks, batch_names


def test_batch_three_takes_chunks_150_to_199() -> None:
    chunks = [f"{number:05d}" for number in range(386)]
    assert batch_chunks("0003", chunks) == chunks[150:200]
    assert batch_chunks("0007", chunks) == chunks[350:]


@given(st.integers(min_value=0, max_value=1000))
def test_batches_cover_every_chunk_once(count: int) -> None:
    chunks = [f"{number:05d}" for number in range(count)]
    batches = [batch_chunks(name, chunks) for name in batch_names(count)]
    assert [chunk for batch in batches for chunk in batch] == chunks
    assert all(1 <= len(batch) <= BATCH for batch in batches)


@pytest.mark.parametrize("name", ["0002", "-001", "index"])
def test_a_batch_that_is_not_there_is_an_error(name: str) -> None:
    with pytest.raises(ValueError):
        batch_chunks(name, [f"{number:05d}" for number in range(100)])
