// A main thread and two workers that exchange buffers and grow their heaps.
const { Worker, isMainThread, parentPort, workerData } = require("worker_threads");

if (isMainThread) {
  let done = 0;
  for (const seed of [1, 2]) {
    const worker = new Worker(__filename, { workerData: seed });
    worker.on("message", (buffer) => {
      if (new Uint8Array(buffer)[seed] !== seed) process.exit(1);
      done += 1;
    });
    worker.on("error", () => process.exit(1));
    worker.on("exit", () => {
      if (done === 2) process.exitCode = 0;
    });
  }
  process.exitCode = 1;
} else {
  const kept = [];
  for (let i = 0; i < 20000; i++) kept.push({ i, text: "x".repeat(i % 100) });
  const buffer = new ArrayBuffer(1 << 22);
  new Uint8Array(buffer)[workerData] = workerData;
  parentPort.postMessage(buffer, [buffer]);
}
