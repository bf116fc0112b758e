// The ordinary use of ethers, over HTTP and over a WebSocket: reads, batches, and events, which it
// gets by filters or subscriptions.
import assert from "node:assert";
import { once } from "node:events";
import { connect } from "node:net";
import { ethers } from "ethers";

const [address, cutter] = process.argv.slice(2);

/// Cuts all connections.
async function cut() {
  const [host, port] = cutter.split(":");
  await once(connect(port, host), "close");
}

/// Resolves with the first `count` values of an event.
function heard(provider, event, count) {
  return new Promise((resolve, reject) => {
    const seen = [];
    const timer = setTimeout(() => reject(new Error(`${seen.length} of ${event}`)), 60_000);
    provider.on(event, (value) => {
      seen.push(value);
      if (seen.length === count) {
        clearTimeout(timer);
        resolve(seen);
      }
    });
  });
}

const providers = [
  new ethers.JsonRpcProvider(`http://${address}`),
  new ethers.WebSocketProvider(`ws://${address}`),
];
for (const provider of providers) {
  const [number, network, block] = await Promise.all([
    provider.getBlockNumber(),
    provider.getNetwork(),
    provider.getBlock("latest"),
  ]);
  assert(number > 0 && network.chainId > 0n && block.hash.length === 66);
  assert.equal((await provider.getBlock(block.hash)).number, block.number);
  assert((await provider.getLogs({ fromBlock: number - 10, toBlock: number - 1 })).length > 0);
  await assert.rejects(provider.send("eth_nothing", []), /method/);

  const numbers = await heard(provider, "block", 3);
  assert.deepEqual(numbers, [numbers[0], numbers[0] + 1, numbers[0] + 2]);
  const [log] = await heard(provider, { topics: [] }, 1);
  assert(log.blockNumber >= number && log.removed === false);
  await provider.removeAllListeners();
}

// Over HTTP a lost connection is no matter; for a WebSocket ethers wants a new provider.
const [polled, told] = providers;
await polled.getBlockNumber();
const lost = once(told.websocket, "close");
await cut();
assert((await polled.getBlockNumber()) > 0);
await lost;
const anew = new ethers.WebSocketProvider(`ws://${address}`);
assert.equal((await heard(anew, "block", 2)).length, 2);
process.exit(0);
