// Writes crates/wire/chains.toml: chains with their ids, names and block times. Run in an empty
// folder, and again for a new version of viem:
//
//     npm install viem@2.57.20
//     node path/to/xtask/chains.mjs > path/to/crates/wire/chains.toml
//
// The facts are those of viem (wevm/viem, MIT licence), `viem/chains`: main networks that have a
// block time or a multicall contract there, and test networks that have a block time. What viem does
// not know is listed below, each with its source.
import { createRequire } from "node:module";
import { join } from "node:path";
import { pathToFileURL } from "node:url";

const VERSION = "2.57.20";
const require = createRequire(join(process.cwd(), "chains.js"));
const chains = await import(pathToFileURL(require.resolve("viem/chains")));

// Names that differ from viem's, by id.
const NAMES = { 1: "ethereum", 196: "xlayer", 204: "opbnb", 324: "zksync", 999: "hyperevm" };
const ALIASES = {
  1: ["mainnet"],
  10: ["op-mainnet"],
  56: ["bnb"],
  100: ["xdai"],
  137: ["matic"],
  42161: ["arbitrum-one"],
  43114: ["avax"],
};
const BLOCK_MS = {
  // https://docs.filecoin.io/basics/the-blockchain/blocks-and-tipsets: an epoch of 30 seconds
  314: 30000,
  // https://hyperliquid.gitbook.io/hyperliquid-docs/hyperevm: small blocks of one second
  999: 1000,
};
const TRAITS = {
  // https://docs.filecoin.io/basics/the-blockchain/blocks-and-tipsets: epochs without a block
  314: ["null-rounds"],
  // https://docs.polygon.technology/pos/architecture/bor/state-sync: transactions outside the root
  137: ["state-sync"],
  // https://hyperliquid.gitbook.io/hyperliquid-docs/hyperevm: system transactions outside the root
  999: ["system-transactions"],
};
// https://docs.harmony.one/home/developers/getting-started/network-and-faucets; Bitcoin, whose nodes
// report no id; https://ethereum.org/en/developers/docs/networks.
const OTHERS = [
  { name: "bitcoin", title: "Bitcoin", family: "bitcoin", block_ms: 600000 },
  { name: "harmony", aliases: ["harmony-0"], title: "Harmony shard 0", family: "harmony", id: 1666600000, block_ms: 2000 },
  { name: "harmony-1", title: "Harmony shard 1", family: "harmony", id: 1666600001, block_ms: 2000 },
  { name: "hoodi", title: "Hoodi", id: 560048, block_ms: 12000, testnet: true },
  { name: "sepolia", title: "Sepolia", id: 11155111, block_ms: 12000, testnet: true },
];

const withoutSuffix = (key) => (key.replace(/Mainnet$/, "") in chains ? key : key.replace(/Mainnet$/, ""));
const toName = (key) =>
  withoutSuffix(key)
    .replace(/(zk|Zk)(EVM|Evm)$/, "-zkevm")
    .replace(/([a-z0-9])([A-Z])/g, "$1-$2")
    .toLowerCase();

const rows = new Map(OTHERS.map((row) => [row.name, row]));
const ids = new Set(OTHERS.map((row) => row.id));
for (const [key, chain] of Object.entries(chains)) {
  const { id, name: title, blockTime, testnet, contracts } = chain ?? {};
  const isListed = blockTime || (contracts?.multicall3 && !testnet);
  if (!id || !isListed || ids.has(id) || /local/i.test(key)) continue;
  ids.add(id);
  const name = NAMES[id] ?? toName(key);
  if (rows.has(name)) throw new Error(`two chains have the name ${name}`);
  const traits = [...(contracts?.portal ? ["op-stack"] : []), ...(TRAITS[id] ?? [])];
  rows.set(name, { name, aliases: ALIASES[id], title: title.trim(), id, block_ms: BLOCK_MS[id] ?? blockTime, testnet, traits });
}

console.log(`# Written by xtask/chains.mjs from viem ${VERSION} (https://github.com/wevm/viem, MIT licence).`);
console.log("# Do not edit. src/chain_profile.rs explains the columns.\n\nchain = [");
for (const row of [...rows.values()].sort((a, b) => (a.name < b.name ? -1 : 1))) {
  const fields = Object.entries(row).filter(([, value]) => value && value.length !== 0);
  console.log(`  { ${fields.map(([key, value]) => `${key} = ${JSON.stringify(value)}`).join(", ")} },`);
}
console.log("]");
