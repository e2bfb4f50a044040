// Runs that travel with the page whoever computes the others: the layers of a language model on a sentence. Their setting says
// { recorded, parts }, and `Connection` plays them instead of asking.

import { canonical, decode } from "./engine/recorded.js";
import { SENTENCE } from "./sentence.js";

const decoded = new Map();
const flowOf = (setting) => SENTENCE.flows[setting.parts];

export const sentence = SENTENCE.text;
export const isRecorded = (setting) => Boolean(setting?.recorded);

// The state of the page that shows a flow: "all" or "attention".
export const recordedState = (parts) => structuredClone({ panels: [SENTENCE.flows[parts].setting], clock: SENTENCE.clock });

// A promise of the recording of a wish; fails where the setting is not the recorded one any more.
export async function recordingOf({ setting, clock }) {
  const flow = flowOf(setting);
  if (!flow || canonical([setting, clock]) !== canonical([flow.setting, SENTENCE.clock])) throw new Error("this run was recorded and cannot be changed; choose a preset to compute others");
  if (!decoded.has(setting.parts)) decoded.set(setting.parts, decode(flow.frames));
  return decoded.get(setting.parts);
}

// What `request` has to say about a recorded run.
export function recordedFile(name, setting) {
  if (name !== "python" || !flowOf(setting)) throw new Error("this run was recorded; the Python code makes it anew, with everything in it");
  return { name: "run.py", blob: new Blob([flowOf(setting).python], { type: "text/plain" }) };
}
