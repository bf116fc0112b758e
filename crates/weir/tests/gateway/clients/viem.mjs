// The ordinary use of viem, over HTTP with batches and over a WebSocket: reads, and what it watches,
// by polls, filters or subscriptions.
import assert from "node:assert";
import { once } from "node:events";
import { connect } from "node:net";
import { setTimeout } from "node:timers/promises";
import { createPublicClient, http, webSocket } from "viem";

const [address, cutter] = process.argv.slice(2);

/// Cuts all connections.
async function cut() {
  const [host, port] = cutter.split(":");
  await once(connect(port, host), "close");
}

/// Resolves with the first `count` values that are told.
function heard(count, watch) {
  return new Promise((resolve, reject) => {
    const seen = [];
    const timer = globalThis.setTimeout(
      () => reject(new Error(`${seen.length} were told`)),
      60_000,
    );
    const stop = watch((value) => {
      seen.push(value);
      if (seen.length === count) {
        clearTimeout(timer);
        resolve(seen);
        queueMicrotask(() => stop());
      }
    }, reject);
  });
}

const transports = [http(`http://${address}`, { batch: true }), webSocket(`ws://${address}`)];
for (const transport of transports) {
  const client = createPublicClient({ transport, pollingInterval: 100 });
  const [number, id, block] = await Promise.all([
    client.getBlockNumber({ cacheTime: 0 }),
    client.getChainId(),
    client.getBlock(),
  ]);
  assert(number > 0n && id > 0 && block.hash.length === 66);

  const numbers = await heard(3, (onBlockNumber, onError) =>
    client.watchBlockNumber({ emitMissed: true, onBlockNumber, onError }),
  );
  assert.deepEqual(numbers, [numbers[0], numbers[0] + 1n, numbers[0] + 2n]);
  const blocks = await heard(3, (onBlock, onError) =>
    client.watchBlocks({ emitMissed: true, onBlock, onError }),
  );
  assert.equal(blocks[1].parentHash, blocks[0].hash);
  assert.equal(blocks[2].parentHash, blocks[1].hash);
  const [logs] = await heard(1, (onLogs, onError) => client.watchEvent({ onLogs, onError }));
  assert(logs.length > 0 && logs[0].blockNumber >= number);

  // The connection is lost, and viem opens another; what it was told of it watches again.
  await cut();
  while (!(await client.getChainId().catch(() => null))) await setTimeout(200);
  const later = await heard(2, (onBlockNumber, onError) =>
    client.watchBlockNumber({ onBlockNumber, onError }),
  );
  assert(later[1] > numbers[2]);
}
process.exit(0);
