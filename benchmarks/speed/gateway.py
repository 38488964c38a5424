"""What the gateway adds to a request, how soon it passes the first byte on, and how many streams it carries at once.

python benchmarks/speed/gateway.py [REQUESTS] [STREAMS]
"""

import json
import statistics
import sys
import time
from collections.abc import Iterator

import anyio
import h11

from race.agent import Recorder
from race.gateway import Gateway, Upstream
from race.testing.http_server import HTTPServer, Response

ANSWER = json.dumps(
    {
        "choices": [
            {"index": 0, "message": {"role": "assistant", "content": "word " * 200}, "finish_reason": "stop"}
        ],
        "usage": {"prompt_tokens": 1000, "completion_tokens": 200, "cost": 0.001},
    }
).encode()
PAUSE = 0.2
EVENTS = 10
MESSAGES = [{"role": "user", "content": "x" * 4000}]
JSON = {"Content-Type": "application/json"}


def stream() -> Iterator[bytes]:
    for n in range(EVENTS):
        yield (
            b'data: {"choices": [{"index": 0, "delta": {"content": "word %d"}, "finish_reason": null}]}\n\n'
            % n
        )
        time.sleep(PAUSE)
    yield b'data: {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}\n\n'
    yield b'data: {"choices": [], "usage": {"prompt_tokens": 1000, "completion_tokens": 200, "cost": 0.001}}\n\n'
    yield b"data: [DONE]\n\n"


def respond(_method, _path, _headers, body):
    if b'"stream": true' in body:
        return Response(body=stream(), headers={"Content-Type": "text/event-stream"})
    return Response(body=ANSWER, headers=JSON)


class Client:
    """One kept connection."""

    def __init__(self, port, token):
        self.port, self.token = port, token

    async def __aenter__(self):
        self.stream = await anyio.connect_tcp("127.0.0.1", self.port)
        self.http = h11.Connection(h11.CLIENT)
        return self

    async def __aexit__(self, *_):
        await self.stream.aclose()

    async def ask(self, *, streamed=False):
        """Seconds to the first byte of the body, and to its end."""
        body = json.dumps({"model": "bench", "messages": MESSAGES, "stream": streamed}).encode()
        headers = [
            ("host", "x"),
            ("authorization", f"Bearer {self.token}"),
            ("content-length", str(len(body))),
        ]
        began = time.perf_counter()
        head = self.http.send(h11.Request(method="POST", target="/v1/chat/completions", headers=headers))
        await self.stream.send(
            head + self.http.send(h11.Data(data=body)) + self.http.send(h11.EndOfMessage())
        )
        first = None
        while True:
            event = self.http.next_event()
            if event is h11.NEED_DATA:
                self.http.receive_data(await self.stream.receive())
            elif isinstance(event, h11.Data):
                first = first or time.perf_counter() - began
            elif isinstance(event, h11.EndOfMessage):
                self.http.start_next_cycle()
                return first, time.perf_counter() - began


async def main(requests, streams):
    upstream = HTTPServer(0, respond)
    try:
        async with Gateway() as gateway:
            account = gateway.account("bench", Recorder(10**6))
            async with account.line(Upstream(f"http://127.0.0.1:{upstream.port}/v1")) as line:
                through = int(line.url.rpartition(":")[2])
                took = {"direct": [], "gateway": []}
                async with Client(upstream.port, "x") as direct, Client(through, line.token) as passed:
                    for _ in range(requests):  # in turn, so that both meet the same machine
                        took["direct"].append((await direct.ask())[1])
                        took["gateway"].append((await passed.ask())[1])
                middle = {k: statistics.median(v) * 1000 for k, v in took.items()}
                print(f"median of {requests} requests: direct {middle['direct']:.2f} ms,", end=" ")
                print(f"through the gateway {middle['gateway']:.2f} ms,", end=" ")
                print(f"added {middle['gateway'] - middle['direct']:.2f} ms")
                firsts, whole = [], []

                async def one():
                    async with Client(through, line.token) as client:
                        first, end = await client.ask(streamed=True)
                        firsts.append(first)
                        whole.append(end)

                async with anyio.create_task_group() as group:
                    for _ in range(streams):
                        group.start_soon(one)
                middle = statistics.median(firsts) * 1000
                print(f"{len(whole)} streams at once: first byte after {middle:.0f} ms (median),", end=" ")
                print(
                    f"{max(firsts) * 1000:.0f} ms (last); whole after {max(whole):.2f} s of {PAUSE * EVENTS:.2f} s"
                )
                usage = account.state.purse.usage
                expected = (requests + streams) * 1200
                print(f"tokens counted: {usage.input_tokens + usage.output_tokens:,} of {expected:,}")
    finally:
        upstream.close()


if __name__ == "__main__":
    anyio.run(main, int((sys.argv[1:] or ["500"])[0]), int((sys.argv[2:] or ["100"])[0]))
