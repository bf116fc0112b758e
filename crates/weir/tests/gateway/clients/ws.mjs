// The ws library, which asks for packed messages (permessage-deflate) as browsers do.
import assert from "node:assert";
import { WebSocket } from "ws";

const [address] = process.argv.slice(2);
const socket = new WebSocket(`ws://${address}`, { perMessageDeflate: { threshold: 0 } });

/// Resolves with the next message.
function told() {
  return new Promise((resolve, reject) => {
    socket.once("message", (data) => resolve(JSON.parse(data)));
    socket.once("close", () => reject(new Error("closed")));
  });
}

function ask(method, params) {
  socket.send(JSON.stringify({ jsonrpc: "2.0", id: 1, method, params }));
  return told();
}

await new Promise((resolve, reject) => {
  socket.once("open", resolve);
  socket.once("error", reject);
});
assert(socket.extensions.includes("permessage-deflate"), "messages are packed");
for (let round = 0; round < 20; round += 1) {
  const { result } = await ask("eth_getBlockByNumber", ["latest", true]);
  assert(result.transactions.length > 0);
}
const { result: id } = await ask("eth_subscribe", ["newHeads"]);
for (let round = 0; round < 5; round += 1) {
  const { params } = await told();
  assert(params.subscription === id && params.result.hash.length === 66);
}
process.exit(0);
