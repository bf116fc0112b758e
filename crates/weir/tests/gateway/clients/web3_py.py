"""The ordinary use of web3.py: reads, batches and filters over HTTP, subscriptions over a WebSocket,
also over one that is lost."""

import asyncio
import socket
import sys
import time

from web3 import AsyncWeb3, Web3, WebSocketProvider
from websockets.exceptions import ConnectionClosed

ADDRESS, CUTTER = sys.argv[1:]
PATIENCE_S = 60


def cut():
    """Cuts all connections."""
    host, port = CUTTER.split(":")
    with socket.create_connection((host, int(port))) as told:
        told.recv(1)


def over_http():
    w3 = Web3(Web3.HTTPProvider(f"http://{ADDRESS}"))
    number = w3.eth.block_number
    assert number > 0 and w3.eth.chain_id > 0
    block = w3.eth.get_block("latest")
    assert w3.eth.get_block(block.hash).number == block.number
    with w3.batch_requests() as batch:
        for below in range(3):
            batch.add(w3.eth.get_block(number - below))
        blocks = batch.execute()
    assert [block.number for block in blocks] == [number, number - 1, number - 2]

    blocks, events = w3.eth.filter("latest"), w3.eth.filter({})
    hashes, logs = [], []
    until = time.monotonic() + PATIENCE_S
    while (len(hashes) < 3 or not logs) and time.monotonic() < until:
        hashes += blocks.get_new_entries()
        logs += events.get_new_entries()
        time.sleep(0.1)
    assert len(hashes) >= 3 and logs, (hashes, logs)
    parents = [w3.eth.get_block(hash).parentHash for hash in hashes]
    assert parents[1:] == hashes[:-1]
    assert w3.eth.uninstall_filter(blocks.filter_id)
    cut()
    assert w3.eth.block_number >= number


async def over_websocket():
    async with AsyncWeb3(WebSocketProvider(f"ws://{ADDRESS}")) as w3:
        assert await w3.eth.block_number > 0
        heads = await w3.eth.subscribe("newHeads")
        await w3.eth.subscribe("logs", {})
        numbers, logs = [], 0
        async for message in w3.socket.process_subscriptions():
            if message["subscription"] == heads:
                numbers.append(message["result"]["number"])
            else:
                logs += 1
            if len(numbers) >= 3 and logs:
                break
        assert numbers == list(range(numbers[0], numbers[0] + len(numbers))), numbers
        assert await w3.eth.unsubscribe(heads)


async def over_websockets_that_are_lost():
    connections, heads = 0, []
    async for w3 in AsyncWeb3(WebSocketProvider(f"ws://{ADDRESS}")):
        connections += 1
        try:
            await w3.eth.subscribe("newHeads")
            async for message in w3.socket.process_subscriptions():
                heads.append(message["result"]["number"])
                if connections == 3:
                    assert heads == sorted(heads), heads
                    return
                cut()
        except ConnectionClosed:
            continue


over_http()
asyncio.run(asyncio.wait_for(over_websocket(), PATIENCE_S))
asyncio.run(asyncio.wait_for(over_websockets_that_are_lost(), PATIENCE_S))
