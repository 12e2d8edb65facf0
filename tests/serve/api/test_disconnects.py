import asyncio

import pytest
from starlette.requests import ClientDisconnect

from slm.serve.api.core.streaming import unless_disconnected


def receiver(gone: asyncio.Event):
    async def receive():
        await gone.wait()
        return {"type": "http.disconnect"}

    return receive


def test_the_result_of_a_client_that_stays():
    async def main():
        return await unless_disconnected(receiver(asyncio.Event()), asyncio.sleep(0, "done"))

    assert asyncio.run(main()) == "done"


def test_work_is_cancelled_when_the_client_leaves():
    cancelled = []

    async def main():
        gone = asyncio.Event()

        async def work():
            gone.set()
            try:
                await asyncio.sleep(60)
            finally:
                cancelled.append(True)

        await unless_disconnected(receiver(gone), work())

    with pytest.raises(ClientDisconnect):
        asyncio.run(main())
    assert cancelled == [True]


def test_an_error_of_the_work_is_raised():
    async def main():
        async def work():
            raise ValueError("bad")

        await unless_disconnected(receiver(asyncio.Event()), work())

    with pytest.raises(ValueError, match="bad"):
        asyncio.run(main())
