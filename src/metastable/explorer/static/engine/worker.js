// The Web Worker: takes the messages that the server takes, and answers alike. Tasks are generators; between slices of them the worker
// listens, so that the last wish of each panel counts.

import { file } from "./files.js";
import { attention, simulate } from "./job.js";
import { SettingError } from "./setting.js";

const SLICE = 5; // milliseconds until a newer wish is heard
const MAKERS = { simulate, attention };
const tasks = new Map();
const bell = new MessageChannel();
let busy = false;

function explain(error) {
  return error instanceof SettingError || error.constructor === Error ? error.message : `the run failed unexpectedly (${error.name}: ${error.message})`;
}

// Go on with the tasks in turn until time is up.
function work() {
  const end = performance.now() + SLICE;
  while (tasks.size && performance.now() < end) {
    const [name, task] = tasks.entries().next().value;
    tasks.delete(name); // to the end of the line
    try {
      let done = false;
      while (!done && performance.now() < end) {
        const step = task.steps.next();
        done = step.done;
        const message = step.value?.message;
        if (message instanceof ArrayBuffer) postMessage(message, [message]);
        else if (message) postMessage(message);
      }
      if (!done) tasks.set(name, task);
    } catch (error) {
      postMessage({ type: "error", ...task.tag, about: task.kind, message: explain(error), until: error.until });
    }
  }
  busy = tasks.size > 0;
  if (busy) bell.port2.postMessage(null);
}
bell.port1.onmessage = work;

function begin(name, task) {
  tasks.delete(name);
  tasks.set(name, task);
  if (!busy) { busy = true; bell.port2.postMessage(null); }
}

function* answer({ number, name, body }) {
  try {
    const made = yield* file(name, body);
    postMessage({ type: "reply", number, ...made });
  } catch (error) {
    postMessage({ type: "reply", number, error: explain(error) });
  }
}

self.onmessage = ({ data: order }) => {
  const { type: kind, panel, run } = order;
  if (kind === "ping") postMessage({ type: "pong" });
  else if (kind === "cancel") tasks.delete(`simulate/${panel}`);
  else if (kind === "request") begin(`request/${order.number}`, { kind, tag: {}, steps: answer(order) });
  else if (MAKERS[kind]) begin(`${kind}/${panel}`, { kind, tag: { panel, run }, steps: MAKERS[kind](order) });
};
